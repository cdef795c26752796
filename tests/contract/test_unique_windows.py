"""Unique keys with `unique_for`: the key stays taken after its job has ended, until a time."""

from typing import Any

import pytest

from interlock.core.outcome import FailedFinally, Rejected
from interlock.store.contract import Store
from interlock.store.types import Enqueued, Lease, NewJob
from tests.contract.kit import check, claim, claimed, fail, finish, make, settle, stored, taken
from tests.kit import EPOCH, Raw, SettableClock

HOUR = 3600.0


def unique(kind: str = "mail", *, key: str = "u", seconds: float | None = HOUR, **fields: Any) -> NewJob:
    return make(kind, unique_key=key, unique_for=seconds, **fields)


def enqueue(store: Store, **fields: Any) -> Enqueued:
    return store.queue.enqueue([unique(**fields)])[0]


def finished(store: Store, **fields: Any) -> Lease:
    """Store a job with a window, and finish it."""
    return finish(store, claimed(store, unique_key="u", unique_for=HOUR, **fields))


def windows(raw: Raw) -> list[tuple[Any, ...]]:
    return raw("SELECT unique_key, job_id FROM {unique_windows} ORDER BY unique_key")


# ---------------------------------------------------------------- how long a key is taken
def test_key_stays_taken_until_its_time_after_the_job_has_ended(
    store: Store, other: Store, clock: SettableClock
) -> None:
    """The time counts from the creation of the job, by the clock of the database."""
    old = finished(store).job
    clock.advance(HOUR - 1)
    for each in (store, other):
        assert enqueue(each) == Enqueued(old.id, False)
    clock.advance(1)
    new = enqueue(store)
    assert new.created
    assert new.id != old.id
    finish(store, *claim(store))
    clock.advance(HOUR - 1)
    assert enqueue(store) == Enqueued(new.id, False)


def test_active_job_keeps_its_key_after_its_time(store: Store, clock: SettableClock) -> None:
    """While it waits and while it runs, as without a time."""
    waiting = enqueue(store)
    clock.advance(2 * HOUR)
    assert enqueue(store) == Enqueued(waiting.id, False)
    (lease,) = claim(store)
    assert enqueue(store) == Enqueued(waiting.id, False)
    finish(store, lease)
    assert enqueue(store).created


@pytest.mark.parametrize("end", ["fail", "bury", "reject", "cancel", "expire"])
def test_job_that_ends_without_success_frees_its_key_at_once(store: Store, end: Any) -> None:
    kind = "paint" if end == "bury" else "mail"
    if end in ("cancel", "expire"):
        assert store.transitions.take([taken(stored(store, kind, unique_key="u", unique_for=HOUR), end)]) == []
    else:
        outcome = Rejected("no") if end == "reject" else FailedFinally("broken")
        assert settle(store, claimed(store, kind, unique_key="u", unique_for=HOUR), outcome).job.phase == "failed"
    again = enqueue(store, kind=kind)
    assert again.created
    assert enqueue(store, kind=kind) == Enqueued(again.id, False)


def test_key_is_taken_for_callers_without_a_time(store: Store, clock: SettableClock) -> None:
    """A key has one rule: an enqueue with the key alone finds the job, too."""
    old = finished(store).job
    assert enqueue(store, seconds=None) == Enqueued(old.id, False)
    assert store.queue.enqueue([make(), make(unique_key="u")])[1] == Enqueued(old.id, False)
    clock.advance(HOUR)
    assert enqueue(store, seconds=None).created


def test_job_without_a_time_frees_its_key_for_one_with_a_time(store: Store) -> None:
    """A caller with a time that finds an active job without one gives it no time."""
    lease = claimed(store, unique_key="u")
    assert enqueue(store) == Enqueued(lease.job.id, False)
    finish(store, lease)
    assert enqueue(store).created


def test_windows_are_separate_for_each_kind_and_key(store: Store) -> None:
    finished(store)
    assert enqueue(store, key="v").created
    assert enqueue(store, kind="chore").created


def test_idempotency_key_of_another_job_takes_no_window(store: Store) -> None:
    """A job that is not stored leaves the key free."""
    first = store.queue.enqueue([make(idempotency_key="k")])[0]
    assert enqueue(store, idempotency_key="k") == Enqueued(first.id, False)
    assert enqueue(store).created


# ---------------------------------------------------------------- transactions and lists
def test_rollback_frees_a_key_with_a_time(store: Store, raw: Raw) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        assert store.queue.enqueue([unique()], conn=tx)[0].created
        raise ZeroDivisionError
    assert windows(raw) == []
    assert enqueue(store).created


def test_rollback_keeps_the_window_that_had_ended(store: Store, clock: SettableClock) -> None:
    """A transaction that is rolled back takes over nothing."""
    finished(store)
    clock.advance(HOUR)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.queue.enqueue([unique()], conn=tx)
        raise ZeroDivisionError
    assert enqueue(store).created


def test_key_with_a_time_used_twice_in_one_call_makes_one_job(store: Store) -> None:
    first, second, third = store.queue.enqueue([unique(), unique(), unique(key="v")])
    assert (first.created, second, third.created) == (True, Enqueued(first.id, False), True)


def test_list_finds_taken_keys_and_takes_free_ones(store: Store) -> None:
    """Also more jobs than one statement takes."""
    old = finished(store).job
    jobs = [unique(key=f"k{n}") for n in range(1200)]
    answers = store.queue.enqueue([*jobs, unique(), make()])
    assert [each.created for each in answers] == [True] * 1200 + [False, True]
    assert answers[1200].id == old.id
    assert not any(each.created for each in store.queue.enqueue([unique(key=f"k{n}") for n in range(1200)]))


def test_admit_runs_only_for_the_created_job(store: Store) -> None:
    admitted: list[str] = []
    old = finished(store).job
    answers = store.queue.enqueue([unique(), unique(key="v")], admit=lambda tx, job: admitted.append(job.id))
    assert answers[0].id == old.id
    assert admitted == [answers[1].id]


# ---------------------------------------------------------------- redrive
def redriven(store: Store, job_id: str) -> Any:
    new = make(unique_key="u", redrive_of=job_id, root=job_id, inherits=True)
    return store.bulk.redrive([new], again=True, reason=None)[0]


def test_redrive_takes_over_the_window_of_the_job_that_it_repeats(store: Store, clock: SettableClock) -> None:
    """The key stays taken after the success of the new job, as if the first one had succeeded."""
    old = fail(store, claimed(store, unique_key="u", unique_for=HOUR)).job
    clock.advance(60)
    assert redriven(store, old.id).result == "stored"
    (lease,) = claim(store)
    finish(store, lease)
    assert enqueue(store) == Enqueued(lease.job.id, False)
    clock.advance(HOUR - 60)
    assert enqueue(store).created


def test_no_window_stops_a_redrive(store: Store) -> None:
    """An operator wants the job to run, also after a later job with the key has succeeded."""
    old = fail(store, claimed(store, unique_key="u", unique_for=HOUR)).job
    later = finished(store).job
    assert redriven(store, old.id).result == "stored"
    finish(store, *claim(store))
    assert enqueue(store) == Enqueued(later.id, False)


def test_active_job_still_stops_a_redrive(store: Store) -> None:
    old = fail(store, claimed(store, unique_key="u", unique_for=HOUR)).job
    active = enqueue(store)
    assert (redriven(store, old.id).result, redriven(store, old.id).id) == ("key_taken", active.id)


# ---------------------------------------------------------------- retention
def test_retention_keeps_a_job_as_long_as_it_has_its_key(store: Store, clock: SettableClock) -> None:
    """So the key holds, and a caller that finds the job can read it."""
    old = finished(store).job
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 0
    assert store.inspect.get(enqueue(store).id).id == old.id
    clock.advance(HOUR - 100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 1
    assert enqueue(store).created


def test_retention_deletes_failed_jobs_with_a_window(store: Store, clock: SettableClock) -> None:
    fail(store, claimed(store, unique_key="u", unique_for=HOUR))
    clock.advance(100)
    assert store.retention.prune(phase="failed", age=50, limit=10) == 1
    assert enqueue(store).created


def test_deleted_job_frees_its_key(store: Store) -> None:
    """An operator who deletes the job also ends its window."""
    old = finished(store).job
    assert store.bulk.delete([old.id], by="operator:olga", reason=None) == [old.id]
    new = enqueue(store)
    assert new.created
    assert enqueue(store) == Enqueued(new.id, False)


def test_ended_windows_are_forgotten(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A minute later. Not those of active jobs: they limit how far the due time moves."""
    finished(store)
    enqueue(store, key="v")
    enqueue(store, key="w", seconds=2 * HOUR)
    clock.advance(HOUR + 59)
    assert store.retention.forget_windows(10) == 0
    clock.advance(1)
    assert store.retention.forget_windows(10) == 1
    assert [key for key, _ in windows(raw)] == ["v", "w"]
    store.transitions.take([taken(job) for job in store.inspect.jobs() if job.phase == "pending"])
    clock.advance(HOUR)
    assert store.retention.forget_windows(1) == 1
    assert store.retention.forget_windows(10) == 1
    assert windows(raw) == []


# ---------------------------------------------------------------- the database itself
def test_database_refuses_a_job_whose_key_is_taken(store: Store, raw: Raw) -> None:
    """From any client: no other statement can store a second job."""
    old = finished(store).job
    new = stored(store)
    with pytest.raises(Exception, match="the unique key is taken until a later time"):
        raw.copy("jobs", "id = :id", {"id": f"'{old.id[:-4]}ffff'", "unique_key": "'u'"}, id=new.id)
    assert [job.id for job in store.inspect.jobs()] == [new.id, old.id]


def test_jobs_without_a_time_write_no_window(store: Store, raw: Raw) -> None:
    store.queue.enqueue([make(), make(unique_key="u"), make(idempotency_key="k", unique_for=HOUR)])
    assert windows(raw) == []


def test_job_with_a_window_is_stored_like_any_other(store: Store) -> None:
    lease = finished(store, delay=0.0, tags='{"a":"b"}')
    check(store, lease.job.id)
    assert (lease.job.created_at, lease.job.tags) == (EPOCH, {"a": "b"})
