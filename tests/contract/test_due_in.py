"""due_in: the time until a claim can next return a job. It only reads."""

from collections.abc import Callable

import pytest

from interlock.core.outcome import Errored
from interlock.store import OpenStore
from interlock.store.contract import Store
from tests.contract.kit import claim, claim_rules, claimed, many, pause, resume, settle, stored, taken
from tests.kit import Place, Raw, SettableClock


def due_in(store: Store, *kinds: str, queues: tuple[str, ...] = ("default",)) -> float | None:
    return store.queue.due_in(claim_rules(*(kinds or ("mail",))), queues)


def lose(raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET lease_losses = 1, updated_at = {later} WHERE id = :id", id=id)


def test_due_in_is_none_if_no_job_waits(store: Store) -> None:
    """In an empty store, and if all jobs are running."""
    assert due_in(store) is None
    claimed(store)
    assert due_in(store) is None


@pytest.mark.parametrize("ttl", [None, 500.0])
@pytest.mark.parametrize("suspect", [False, True])
def test_due_in_is_the_time_until_the_first_job_is_due(
    store: Store, raw: Raw, clock: SettableClock, ttl: float | None, suspect: bool
) -> None:
    """It is zero from that moment on; with or without a TTL, also for suspects."""
    soon, later = stored(store, delay=60.5, ttl=ttl), stored(store, delay=90, ttl=ttl, priority=9)
    if suspect:
        lose(raw, soon.id)
        lose(raw, later.id)
    assert due_in(store) == pytest.approx(60.5)
    clock.advance(60)
    assert due_in(store) == pytest.approx(0.5)
    clock.advance(0.5)
    assert due_in(store) == 0.0
    clock.advance(20)
    assert due_in(store) == 0.0
    assert [lease.job.id for lease in claim(store)] == [soon.id]
    assert due_in(store) == pytest.approx(9.5)


def test_due_in_counts_only_known_kinds_queues_and_states(store: Store) -> None:
    """No kind, queue or state that the worker did not name."""
    stored(store, "chore")
    stored(store, queue="elsewhere")
    resting = settle(store, claimed(store, "paint"), Errored("busy", retryable=True, after=7)).job
    assert due_in(store) is None
    assert (
        store.queue.due_in([rule for rule in claim_rules("paint") if rule.state != resting.state], ["default"]) is None
    )
    assert due_in(store, "paint") == pytest.approx(7)
    assert due_in(store, "paint", "chore") == 0.0
    assert due_in(store, queues=("default", "elsewhere")) == 0.0
    assert store.queue.due_in([], ["default"]) is None
    assert store.queue.due_in(claim_rules("mail"), []) is None


def _held(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET held_at = updated_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=id)


def _asked_to_stop(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET cancel_requested_at = updated_at, updated_at = {later} WHERE id = :id", id=id)


def _cancelled(store: Store, raw: Raw, id: str) -> None:
    assert store.transitions.take([taken(store.inspect.get(id))]) == []


@pytest.mark.parametrize("obstacle", [_held, _asked_to_stop, _cancelled])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_held_or_cancelled_job_does_not_count(
    store: Store, raw: Raw, obstacle: Callable[[Store, Raw, str], None], ttl: float | None
) -> None:
    """Nor does a job with a cancel request."""
    obstacle(store, raw, stored(store, ttl=ttl).id)
    assert due_in(store) is None


@pytest.mark.parametrize("suspect", [False, True])
def test_job_that_expires_before_it_is_due_does_not_count(
    store: Store, raw: Raw, clock: SettableClock, suspect: bool
) -> None:
    """Nor does a job that has already expired."""
    for job in (stored(store, ttl=10.0), stored(store, ttl=30.0, delay=30)):
        if suspect:
            lose(raw, job.id)
    clock.advance(10)
    assert due_in(store) is None


def test_jobs_of_a_paused_queue_do_not_count(store: Store) -> None:
    """Until the queue is resumed."""
    stored(store)
    pause(store, "queue", "default")
    assert due_in(store) is None
    resume(store, "queue", "default")
    assert due_in(store) == 0.0


def test_due_in_agrees_with_claim(store: Store, raw: Raw, clock: SettableClock) -> None:
    """If it returns zero, a claim returns a job; otherwise a claim returns one after that many seconds."""
    for delay in (0, 3, 3, 8):
        store.queue.enqueue(
            [*many(1, delay=delay), *many(1, "chore", delay=delay, ttl=9.0), *many(1, delay=delay, priority=4)]
        )
    seen = 0
    while (wait := due_in(store, "mail", "chore")) is not None:
        if wait:
            assert store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 1) == []
            clock.advance(wait)
        seen += len(store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 1))
    assert seen == 12


def test_due_in_takes_no_lock(place: Place, store: OpenStore, raw: Raw) -> None:
    """On SQLite it does not take the write lock, on PostgreSQL it locks no row: it does not wait for another writer's
    transaction.
    """
    stored(store)
    with raw.transaction() as rival:
        rival.execute(raw.words("UPDATE {jobs} SET held_at = updated_at, held_reason = 'x', updated_at = {later}"))
        assert due_in(store) == 0.0
    assert due_in(store) is None
