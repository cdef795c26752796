"""`on_conflict`: what an enqueue does with the waiting job that has its unique key."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.core.outcome import Errored
from interlock.store.contract import Store
from interlock.store.flow_types import Dependency
from interlock.store.types import Enqueued
from tests.contract.kit import check, claim, claim_rules, claimed, fail, finish, limit, lose, make, settle, stored
from tests.contract.stacks import Stack
from tests.contract.test_caller_connections import STACKS, in_a_transaction, place_of
from tests.kit import EPOCH, Place, Raw, SettableClock

__all__ = ["place_of"]

HOUR = 3600.0


def enqueue(store: Store, how: str, payload: str = '{"new":1}', **fields: Any) -> Enqueued:
    return store.queue.enqueue([make(unique_key="u", on_conflict=how, payload=payload, **fields)])[0]


def notes(store: Store, id: str) -> list[tuple[str, str, Any]]:
    return [(entry.event, entry.actor, entry.detail) for entry in store.inspect.history(id) if entry.n > 0]


def after(seconds: float) -> Any:
    return EPOCH + timedelta(seconds=seconds)


# ---------------------------------------------------------------- keep
def test_on_conflict_keep_changes_nothing(store: Store, raw: Raw) -> None:
    job = stored(store, unique_key="u", payload='{"old":1}')
    before = raw.dump()
    assert enqueue(store, "keep", delay=60) == Enqueued(job.id, False)
    assert raw.dump() == before


# ---------------------------------------------------------------- replace
def test_replace_changes_the_payload_of_a_waiting_job(store: Store, clock: SettableClock) -> None:
    """The payload and nothing else, with a note in the job's history."""
    job = stored(store, unique_key="u", payload='{"old":1}', delay=60, priority=3, tags='{"a":"b"}')
    clock.advance(10)
    assert enqueue(store, "replace", actor="shop", delay=5, tags='{"c":"d"}') == Enqueued(job.id, False, True)
    now = store.inspect.get(job.id)
    assert (now.payload, now.due_at, now.priority, now.tags) == ({"new": 1}, job.due_at, 3, {"a": "b"})
    assert now.updated_at > job.updated_at
    assert notes(store, job.id) == [("replaced", "shop", None)]
    enqueue(store, "replace", '{"newer":1}')
    assert store.inspect.get(job.id).payload == {"newer": 1}
    assert [entry.n for entry in store.inspect.history(job.id)] == [0, 1, 2]
    check(store, job.id)


def test_replace_without_a_waiting_job_stores_one(store: Store) -> None:
    answer = enqueue(store, "replace")
    assert (answer.created, answer.replaced, notes(store, answer.id)) == (True, False, [])


@pytest.mark.parametrize("how", ["replace", "debounce"])
@pytest.mark.parametrize("state", ["running", "retrying", "suspect", "ended", "redriven", "idempotent"])
def test_job_that_may_not_take_another_payload_is_kept(store: Store, raw: Raw, how: str, state: str) -> None:
    """A job that was started, a redriven job, which repeats one that was started, and one with an idempotency key."""
    fields: dict[str, Any] = {"unique_key": "u", "payload": '{"old":1}', "unique_for": HOUR}
    if state == "idempotent":
        job = stored(store, idempotency_key="k", **fields)
    else:
        lease = claimed(store, lease=0.0 if state == "suspect" else 30.0, **fields)
        job = lease.job
        match state:
            case "retrying":
                assert settle(store, lease, Errored("busy", retryable=True)).job.phase == "pending"
            case "suspect":
                assert lose(store)[0].job.phase == "pending"
            case "ended":
                finish(store, lease)
            case "redriven":
                fail(store, lease)
                new = make(**fields, redrive_of=job.id, root=job.id)
                assert store.bulk.redrive([new], again=True, reason=None)[0].result == "stored"
                job = store.inspect.get(new.id)
            case _:
                pass
    before = raw.dump()
    assert enqueue(store, how, delay=60) == Enqueued(job.id, False)
    assert raw.dump() == before


def test_held_job_is_replaced_and_stays_held(store: Store, raw: Raw) -> None:
    job = stored(store, unique_key="u", payload='{"old":1}')
    raw("UPDATE {jobs} SET held_at = created_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=job.id)
    assert enqueue(store, "debounce", delay=60).replaced
    now = store.inspect.get(job.id)
    assert (now.payload, now.held_reason, now.due_at) == ({"new": 1}, "look", after(60))
    assert claim(store) == []


def test_blocked_job_is_replaced_and_stays_blocked(store: Store) -> None:
    needed = stored(store, "chore")
    job = stored(store, unique_key="u", payload='{"old":1}', after=(Dependency(needed.id),))
    assert enqueue(store, "replace") == Enqueued(job.id, False, True)
    now = store.inspect.get(job.id)
    assert (now.payload, now.blocked_at is not None) == ({"new": 1}, True)
    finish(store, *claim(store, "chore"))
    assert [lease.job.payload for lease in claim(store)] == [{"new": 1}]


def test_replacement_that_is_rolled_back_changes_nothing(store: Store, raw: Raw) -> None:
    stored(store, unique_key="u")
    before = raw.dump()
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        assert store.queue.enqueue([make(unique_key="u", on_conflict="replace", payload="1")], conn=tx)[0].replaced
        raise ZeroDivisionError
    assert raw.dump() == before


# ---------------------------------------------------------------- debounce
def test_debounce_moves_the_due_time(store: Store, clock: SettableClock) -> None:
    """To the delay of the new request after now, or to its `run_at`."""
    id = enqueue(store, "debounce", '{"old":1}', delay=10).id
    clock.advance(8)
    assert enqueue(store, "debounce", delay=10) == Enqueued(id, False, True)
    job = store.inspect.get(id)
    assert (job.due_at, job.payload) == (after(18), {"new": 1})
    assert notes(store, id) == [("debounced", "app", {"due_at": f"{after(18):%Y-%m-%dT%H:%M:%S.%f}Z"})]
    clock.advance(8)
    assert claim(store) == []
    enqueue(store, "debounce", run_at=after(100))
    assert store.inspect.get(id).due_at == after(100)
    clock.advance(90)
    assert [lease.job.id for lease in claim(store)] == [id]


def test_debounced_job_does_not_starve(store: Store, clock: SettableClock) -> None:
    """Its due time is never after the end of its window, also after maintenance and later than that."""
    id = enqueue(store, "debounce", delay=10, unique_for=60).id
    for _ in range(12):
        clock.advance(8)
        assert enqueue(store, "debounce", delay=10, unique_for=60).id == id
        store.retention.forget_windows(10)
        assert store.inspect.get(id).due_at <= after(60)
    assert store.inspect.get(id).due_at == after(60)


def test_debounce_may_make_a_job_due_earlier(store: Store, clock: SettableClock) -> None:
    """`due_in` knows it, and the job runs then."""
    id = enqueue(store, "debounce", delay=600).id
    clock.advance(1)
    enqueue(store, "debounce", delay=2)
    assert store.queue.due_in(claim_rules("mail"), ["default"]) == pytest.approx(2.0)
    clock.advance(2)
    assert [lease.job.id for lease in claim(store)] == [id]


@pytest.mark.parametrize("delay", [5.0, 600.0])
def test_debounced_job_with_a_concurrency_key_runs_when_it_is_due(
    store: Store, clock: SettableClock, delay: float
) -> None:
    """Earlier or later than before."""
    limit(store, "key", "mail", max_running=1)
    id = enqueue(store, "debounce", delay=60, concurrency_key="c").id
    enqueue(store, "debounce", delay=delay, concurrency_key="c")
    clock.advance(delay - 1)
    assert claim(store) == []
    clock.advance(1)
    assert [lease.job.id for lease in claim(store)] == [id]


# ---------------------------------------------------------------- lists
@pytest.mark.parametrize("how", ["replace", "debounce"])
@pytest.mark.parametrize("waiting", [False, True])
def test_last_job_of_a_list_with_the_same_key_wins(store: Store, how: str, waiting: bool) -> None:
    """One of the jobs is created or replaces the payload; the others find the same job."""
    old = stored(store, unique_key="u", payload="0") if waiting else None
    jobs = [make(unique_key="u", on_conflict=how, payload=f"{n}", delay=float(n)) for n in range(1, 4)]
    answers = store.queue.enqueue([*jobs, make()])
    assert len({each.id for each in answers[:3]}) == 1
    assert [each.created for each in answers] == [False, False, not waiting, True]
    assert [each.replaced for each in answers] == [False, False, waiting, False]
    job: Job = store.inspect.get(answers[0].id)
    assert job.payload == 3
    assert job.due_at == after(0.0 if old and how == "replace" else 3.0)


def test_first_job_of_a_list_wins_if_the_jobs_are_kept(store: Store) -> None:
    answers = store.queue.enqueue([make(unique_key="u", payload=f"{n}") for n in range(3)])
    assert [each.created for each in answers] == [True, False, False]
    assert store.inspect.get(answers[0].id).payload == 0


def test_one_call_replaces_some_jobs_and_creates_others(store: Store) -> None:
    """More jobs than one statement takes, some of them running."""
    keys = [f"k{n}" for n in range(1100)]
    old = store.queue.enqueue([make(unique_key=key, payload="0") for key in keys[:60]])
    running = {lease.job.id for lease in claim(store, limit=10)}
    answers = store.queue.enqueue([make(unique_key=key, on_conflict="replace", payload="1") for key in keys])
    assert [each.id for each in answers[:60]] == [each.id for each in old]
    assert [each.replaced for each in answers] == [each.id not in running for each in old] + [False] * 1040
    assert [each.created for each in answers] == [False] * 60 + [True] * 1040
    assert {store.inspect.get(id).payload for id in running} == {0}


# ---------------------------------------------------------------- the database itself
def test_database_refuses_another_payload_of_a_job_that_was_started(store: Store, raw: Raw) -> None:
    change = "UPDATE {jobs} SET payload = '1', updated_at = {later} WHERE id = :id"
    waiting = stored(store)
    raw(change, id=waiting.id)
    assert store.inspect.get(waiting.id).payload == 1
    (lease,) = claim(store)
    with pytest.raises(raw.refusal, match="payload"):
        raw(change, id=lease.job.id)
    settle(store, lease, Errored("busy", retryable=True))
    with pytest.raises(raw.refusal, match="payload"):
        raw(change, id=lease.job.id)
    keyed = stored(store, idempotency_key="k")
    with pytest.raises(raw.refusal, match="payload"):
        raw(change, id=keyed.id)


# ---------------------------------------------------------------- the caller's own connection
@pytest.mark.parametrize("stack", STACKS)
def test_every_library_can_replace_debounce_and_keep_a_key(stack: Stack, place_of: Callable[[str], Place]) -> None:
    """After a commit the job has the last payload and due time; after a rollback it is unchanged."""
    place = place_of(stack.database)
    store = place.open()
    job = stored(store, unique_key="u", unique_for=HOUR, payload="0")
    in_a_transaction(stack, place, store, commit=True, unique_key="u", on_conflict="replace", payload="1")
    fields: dict[str, Any] = {"unique_key": "u", "on_conflict": "debounce", "unique_for": HOUR, "delay": 60.0}
    in_a_transaction(stack, place, store, commit=True, payload="2", **fields)
    in_a_transaction(stack, place, store, commit=False, payload="3", **fields)
    (now,) = store.inspect.jobs()
    assert now.id == job.id
    assert store.inspect.get(job.id).payload == 2
    assert now.due_at > job.due_at + timedelta(seconds=59)
    assert [event for event, _, _ in notes(store, job.id)] == ["replaced", "debounced"]
    kept = in_a_transaction(stack, place, store, commit=True, unique_key="v", unique_for=HOUR)
    assert place.raw("SELECT unique_key FROM {unique_windows} WHERE job_id = :id", id=kept) == [("v",)]
