"""held and failures: the jobs that need an operator."""

import pytest

from interlock.core.outcome import Errored, Held, Rejected
from interlock.store.contract import Store
from interlock.store.report_types import FailedJob, Failures
from tests.contract.kit import claim_rules, claimed, fail, finish, make, settle, started, stored, taken
from tests.kit import EPOCH, SettableClock


# ---------------------------------------------------------------- held
def hold(store: Store, kind: str = "mail", queue: str = "default") -> str:
    store.queue.enqueue([make(kind, queue=queue, priority=9)])
    (lease,) = store.queue.claim("ann", claim_rules(kind), (queue,), 1)
    return settle(store, lease, Held(f"look at {kind}")).job.id


def test_held_jobs_are_found_by_kind_and_queue(store: Store, clock: SettableClock) -> None:
    """Complete jobs, the longest held first; waiting jobs are left out."""
    first = hold(store)
    clock.advance(1)
    second = hold(store, queue="slow")
    stored(store)
    assert [job.id for job in store.inspect.held_jobs([("mail", "slow"), ("mail", "default")], 9)] == [first, second]
    assert store.inspect.held_jobs([("mail", "default")], 9) == [store.inspect.get(first)]
    assert store.inspect.held_jobs([("chore", "default")], 9) == store.inspect.held_jobs([], 9) == []


def test_limit_applies_to_each_kind_and_queue(store: Store) -> None:
    """Many held jobs of one queue do not hide those of another."""
    for _ in range(3):
        hold(store)
    other = hold(store, queue='a "b" \\ {c}')
    found = store.inspect.held_jobs([("mail", "default"), ("mail", 'a "b" \\ {c}')], 2)
    assert len(found) == 3
    assert other in [job.id for job in found]
    assert store.inspect.held_jobs([("mail", "default")], 0) == []


def test_released_job_is_not_listed_as_held(store: Store) -> None:
    """Nor is a cancelled one."""
    released, cancelled = hold(store), hold(store)
    store.control.release(released, by="olga", reason="seen")
    assert store.transitions.take([taken(store.inspect.get(cancelled))]) == []
    assert store.inspect.held_jobs([("mail", "default")], 9) == []


# ---------------------------------------------------------------- failures
def test_failed_jobs_are_counted_by_kind(store: Store, clock: SettableClock) -> None:
    """The count of all, and the newest of each kind with their errors."""
    old = fail(store, claimed(store), "first").job.id
    clock.advance(10)
    new = [fail(store, claimed(store), f"paper {n}").job.id for n in range(2)]
    buried = fail(store, started(store, "chore"), "Traceback\nValueError: x").job
    chores, mails = store.inspect.recent_failures(60, 2)
    told = FailedJob(buried.id, buried.state, 1, clock.now(), "Traceback\nValueError: x")
    assert chores == Failures("chore", 1, (told,))
    assert (mails.kind, mails.count, [job.id for job in mails.newest]) == ("mail", 3, new[::-1])
    assert store.inspect.recent_failures(60, 9)[1].newest[-1] == FailedJob(old, "FAILED", 1, EPOCH, "first")


def test_only_recent_failures_are_counted(store: Store, clock: SettableClock) -> None:
    """A failure exactly as old as the limit is too old."""
    fail(store, claimed(store))
    clock.advance(59.9)
    assert [each.count for each in store.inspect.recent_failures(60, 1)] == [1]
    clock.advance(0.1)
    assert store.inspect.recent_failures(60, 1) == []


def test_cancelled_rejected_expired_and_waiting_jobs_have_not_failed(store: Store, clock: SettableClock) -> None:
    """An operator decided so, or the job still has tries, or it succeeded."""
    finish(store, claimed(store))
    settle(store, claimed(store), Rejected("not today"))
    settle(store, claimed(store), Errored("busy", retryable=True, after=999.0))
    assert store.transitions.take([taken(stored(store))]) == []
    late = stored(store, ttl=5.0)
    clock.advance(6)
    assert store.transitions.take([taken(late, "expire")]) == []
    assert store.inspect.recent_failures(60, 9) == []


def test_redriven_job_no_longer_counts_as_failed(store: Store) -> None:
    """The `redrive` remark in its history says so; other remarks do not."""
    again, kept = fail(store, claimed(store)).job.id, fail(store, claimed(store)).job.id
    store.control.add_note(again, attempt=None, event="redrive", actor="olga", reason=None)
    store.control.add_note(kept, attempt=None, event="note", actor="olga", reason=None)
    (told,) = store.inspect.recent_failures(60, 9)
    assert [job.id for job in told.newest] == [kept]


@pytest.mark.parametrize("tries", [1, 2])
def test_job_without_tries_left_counts_as_failed(store: Store, tries: int) -> None:
    """The report has the last error of the last attempt."""
    job = stored(store, tries=tries)
    for n in range(tries):
        (lease,) = store.queue.claim("ann", claim_rules("mail"), ("default",), 1)
        settle(store, lease, Errored(f"busy {n}", retryable=True, after=0.0))
    ((told,),) = [each.newest for each in store.inspect.recent_failures(60, 9)]
    assert (told.id, told.error, told.attempt) == (job.id, f"busy {tries - 1}", tries)
