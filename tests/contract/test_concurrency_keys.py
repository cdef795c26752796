"""Concurrency keys: each key of a kind has its own limit of running jobs, and its own rate."""

import pytest

from interlock.core.outcome import Errored, Held, Lost
from interlock.store.contract import Store
from interlock.store.types import Lease
from tests.contract.kit import (
    LIFECYCLES,
    claim,
    claim_rules,
    decided,
    finish,
    limit,
    make,
    many,
    pause,
    resume,
    settle,
    stored,
    taken,
)
from tests.kit import Raw, SettableClock


@pytest.fixture(autouse=True)
def two_of_each_key(store: Store) -> None:
    limit(store, "key", "mail", max_running=2)


def keyed(key: str, count: int = 1, **fields: object) -> list[object]:
    return [make(concurrency_key=key, **fields) for _ in range(count)]


def keys(leases: list[Lease]) -> list[str | None]:
    return sorted(str(lease.job.concurrency_key) for lease in leases)


def due_in(store: Store) -> float | None:
    return store.queue.due_in(claim_rules("mail"), ["default"])


# ---------------------------------------------------------------- how many run
def test_each_key_has_its_own_limit(store: Store) -> None:
    """Jobs without a key are not limited."""
    store.queue.enqueue([*keyed("a", 4), *keyed("b", 1), *many(3)])  # type: ignore[list-item]
    leases = claim(store)
    assert keys(leases) == ["None", "None", "None", "a", "a", "b"]
    assert (claim(store), due_in(store)) == ([], None)
    finish(store, next(lease for lease in leases if lease.job.concurrency_key == "a"))
    assert due_in(store) == 0.0
    assert keys(claim(store)) == ["a"]


def test_jobs_of_a_key_start_in_the_order_of_any_claim(store: Store, clock: SettableClock) -> None:
    """Higher priority first, then the longest due; keys with a full limit do not stop others."""
    store.queue.enqueue(keyed("a", 2))  # type: ignore[arg-type]
    held = claim(store)
    clock.advance(1)
    late, urgent = make(concurrency_key="a"), make(concurrency_key="a", priority=5)
    other = make(concurrency_key="b")
    store.queue.enqueue([late, urgent, other])
    assert [lease.job.id for lease in claim(store)] == [other.id]
    finish(store, held[0])
    assert [lease.job.id for lease in claim(store)] == [urgent.id]
    finish(store, held[1])
    assert [lease.job.id for lease in claim(store)] == [late.id]


def test_small_claims_take_the_most_urgent_jobs_of_all_keys(store: Store) -> None:
    store.queue.enqueue([make(concurrency_key=key, priority=n) for n, key in enumerate("abcdefgh")])
    assert keys(claim(store, limit=3)) == ["f", "g", "h"]
    assert keys(claim(store, limit=9)) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("end", ["retry", "lose", "hold", "finish"])
def test_job_that_stops_running_frees_its_place(store: Store, clock: SettableClock, end: str) -> None:
    """However it stops. A job that waits for its retry is claimed again when it is due."""
    limit(store, "key", "mail", max_running=1)
    store.queue.enqueue(keyed("a", 2))  # type: ignore[arg-type]
    (lease,) = claim(store)
    if end == "retry":
        settle(store, lease, Errored("busy", retryable=True))
    elif end == "lose":
        clock.advance(31)
        (adopted,) = store.leases.adopt("bob", ["mail"], 30.0, 1)
        assert store.transitions.move([decided(adopted, Lost())]) == []
    elif end == "hold":
        settle(store, lease, Held("look"))
    else:
        finish(store, lease)
    (second,) = claim(store)
    assert second.job.id != lease.job.id
    finish(store, second)
    clock.advance(60)
    assert len(claim(store)) == (1 if end in ("retry", "lose") else 0)
    if end == "hold":
        assert store.control.release(lease.job.id, by="olga", reason="seen")
        assert len(claim(store)) == 1


def test_delayed_job_of_a_key_starts_when_it_is_due(store: Store, clock: SettableClock) -> None:
    stored(store, concurrency_key="a", delay=60)
    assert claim(store) == []
    assert due_in(store) == 60.0
    clock.advance(60)
    assert keys(claim(store)) == ["a"]


def test_expired_and_cancelled_jobs_do_not_stop_their_key(store: Store, clock: SettableClock) -> None:
    limit(store, "key", "mail", max_running=1)
    dead, gone, alive = (
        stored(store, concurrency_key="a", ttl=5),
        stored(store, concurrency_key="a"),
        stored(store, concurrency_key="a"),
    )
    assert store.transitions.take([taken(gone)]) == []
    clock.advance(10)
    assert [lease.job.id for lease in claim(store)] == [alive.id]
    assert store.inspect.get(dead.id).phase == "pending"


def test_higher_limit_starts_waiting_jobs_at_once(store: Store) -> None:
    store.queue.enqueue([*keyed("a", 5), *keyed("b", 5)])  # type: ignore[list-item]
    assert len(claim(store)) == 4
    limit(store, "key", "mail", max_running=3)
    assert keys(claim(store)) == ["a", "b"]
    limit(store, "key", "mail", max_running=None)
    assert len(claim(store)) == 4


def test_limits_of_keys_kinds_and_queues_apply_together(store: Store) -> None:
    """What a kind's limit cuts off is claimed later."""
    limit(store, "kind", "mail", max_running=3)
    store.queue.enqueue([*keyed("a", 3), *keyed("b", 3)])  # type: ignore[list-item]
    first = claim(store)
    assert len(first) == 3
    assert claim(store) == []
    for lease in first:
        finish(store, lease)
    assert len(claim(store)) == 3


def test_paused_queue_keeps_its_keys_for_later(store: Store) -> None:
    store.queue.enqueue(keyed("a", 1))  # type: ignore[arg-type]
    pause(store, "queue", "default")
    assert (claim(store), due_in(store)) == ([], None)
    resume(store, "queue", "default")
    assert keys(claim(store)) == ["a"]


def test_key_counts_the_jobs_of_all_queues(store: Store) -> None:
    """A worker that serves one of the queues leaves the others' jobs to their workers."""
    limit(store, "key", "mail", max_running=1)
    store.queue.enqueue([make(concurrency_key="a", queue=queue) for queue in ("one", "two", "three")])
    (first,) = claim(store, queues=("two",))
    assert claim(store, queues=("one", "two", "three"), by="bob") == []
    finish(store, first)
    assert claim(store, queues=("two",)) == []
    (second,) = claim(store, queues=("one",), by="bob")
    finish(store, second)
    assert claim(store, queues=("one", "two")) == []
    assert [lease.job.queue for lease in claim(store, queues=("three",), by="carl")] == ["three"]


def test_suspects_of_a_key_need_room_for_suspects(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A worker without that room looks again later, and takes other jobs meanwhile."""
    suspect = stored(store, concurrency_key="a", tries=3)
    raw("UPDATE {jobs} SET lease_losses = 2, updated_at = {later} WHERE id = :id", id=suspect.id)
    other = stored(store, concurrency_key="b")
    rules = claim_rules("mail")
    leases = store.queue.claim("ann", rules, ["default"], 5, suspects=5, alone=False)
    assert [lease.job.id for lease in leases] == [other.id]
    assert store.queue.claim("ann", rules, ["default"], 5, suspects=0) == []
    clock.advance(1)
    assert len(store.queue.claim("ann", rules, ["default"], 5, suspects=1)) == 1


@pytest.mark.parametrize("why", ["suspect", "unknown"])
def test_jobs_that_cannot_be_leased_do_not_hide_those_behind_them(
    store: Store, raw: Raw, clock: SettableClock, why: str
) -> None:
    """Jobs of another lifecycle, or suspects for which the worker has no room, wait for another worker."""
    limit(store, "key", "mail", max_running=1)
    odd = many(3, lifecycle=LIFECYCLES["task"] if why == "unknown" else None, concurrency_key="a")
    store.queue.enqueue(odd)
    if why == "suspect":
        raw("UPDATE {jobs} SET lease_losses = 1, updated_at = {later}")
    clock.advance(1)
    ready = stored(store, concurrency_key="a")
    (lease,) = store.queue.claim("ann", claim_rules("mail"), ["default"], 5, suspects=0)
    assert lease.job.id == ready.id
    finish(store, lease)
    assert store.queue.claim("ann", claim_rules("mail"), ["default"], 5, suspects=0) == []
    rules = claim_rules("mail", lifecycle=LIFECYCLES["task"] if why == "unknown" else None)
    clock.advance(1)
    assert len(store.queue.claim("bob", rules, ["default"], 5, suspects=1)) == 1


# ---------------------------------------------------------------- rates
def test_each_key_has_its_own_rate(store: Store, clock: SettableClock) -> None:
    limit(store, "key", "mail", max_running=None, rate="1/10s")
    store.queue.enqueue([*keyed("a", 3), *keyed("b", 2)])  # type: ignore[list-item]
    assert keys(claim(store)) == ["a", "b"]
    assert (claim(store), due_in(store)) == ([], pytest.approx(10.0))
    clock.advance(10)
    assert keys(claim(store)) == ["a", "b"]
    assert store.limits.of_key("mail", "a") == (2, pytest.approx(10.0))
    clock.advance(10)
    assert keys(claim(store)) == ["a"]


def test_rate_of_a_key_is_forgotten_when_it_is_full_again(store: Store, clock: SettableClock, raw: Raw) -> None:
    limit(store, "key", "mail", rate="1/10s", burst=2)
    store.queue.enqueue([*keyed("a", 2), *keyed("b", 1)])  # type: ignore[list-item]
    assert len(claim(store)) == 3
    clock.advance(19)
    assert store.limits.forget_keys() == 0
    clock.advance(2)
    assert store.limits.forget_keys() == 2
    assert raw("SELECT count(*) FROM {key_rates}") == [(0,)]


# ---------------------------------------------------------------- what the database demands
def test_job_with_a_key_needs_a_limit_of_its_kind(store: Store) -> None:
    """Otherwise no claim would look for it."""
    with pytest.raises(Exception, match="no limit per concurrency key"):
        store.queue.enqueue([make("chore", concurrency_key="a")])
    assert store.inspect.jobs() == []


@pytest.mark.parametrize("column", ["concurrency_key", "batch"])
def test_key_and_batch_of_a_job_never_change(store: Store, raw: Raw, column: str) -> None:
    job = stored(store, concurrency_key="a")
    with pytest.raises(Exception, match="never change"):
        raw(f"UPDATE {{jobs}} SET {column} = id, updated_at = {{later}} WHERE id = :id", id=job.id)


def test_burst_of_jobs_for_one_full_key_does_not_hide_another_key(store: Store) -> None:
    """One claim looks past any number of jobs that cannot start."""
    limit(store, "key", "mail", max_running=1)
    store.queue.enqueue(keyed("a", 900))  # type: ignore[arg-type]
    store.queue.enqueue(keyed("b", 1))  # type: ignore[arg-type]
    assert keys(claim(store, limit=5)) == ["a", "b"]


def test_error_in_a_later_round_loses_no_lease(store: Store, clock: SettableClock, raw: Raw) -> None:
    """The checks of the first key fill the first round; the second round meets a row that cannot be written."""
    limit(store, "key", "mail", max_running=1)
    store.queue.enqueue(keyed("a", 20))  # type: ignore[arg-type]
    clock.advance(1)
    broken = stored(store, concurrency_key="b")
    refusing = "BEFORE UPDATE ON {jobs}"
    if hasattr(store, "file"):
        raise_it = "BEGIN SELECT RAISE(ABORT, 'broken row'); END"
        raw.script(raw.words(f"CREATE TRIGGER broken {refusing} WHEN NEW.id = '{broken.id}' {raise_it}"))
    else:
        refuse = raw.table("refuse")
        when = f"FOR EACH ROW WHEN (NEW.id = '{broken.id}') EXECUTE FUNCTION {refuse}('broken row')"
        raw.script(raw.words(f"CREATE TRIGGER broken {refusing} {when}"))
    leases = claim(store, limit=5)
    assert keys(leases) == ["a"]
    assert raw("SELECT count(*) FROM {executions}") == [(1,)]
    assert claim(store, limit=5) == []
