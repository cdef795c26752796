"""take: an operator or maintenance moves a waiting job that it never ran."""

from dataclasses import replace
from typing import Any

import pytest

from interlock.core.machine import Arrow
from interlock.core.outcome import Errored, Held, Requeued
from interlock.errors import TransitionRefused
from interlock.store.contract import Store
from tests.contract.kit import LIFECYCLES, check, claim, claimed, finish, make, many, settle, stored, taken, walked
from tests.kit import EPOCH, Raw, SettableClock


@pytest.mark.parametrize(
    ("kind", "event", "state"),
    [
        ("mail", "cancel", "CANCELLED"),
        ("mail", "expire", "EXPIRED"),
        ("deliver", "cancel", "CANCELLED"),
        ("deliver", "expire", "EXPIRED"),
        ("fetch", "cancel", "canceled"),
        ("paint", "reject", "rejected"),
    ],
)
def test_taken_job_ends_at_once(store: Store, kind: str, event: Any, state: str) -> None:
    """One transition, one version and one aborted execution of the actor, so that the state still follows from the
    executions.
    """
    job = stored(store, kind)
    assert store.transitions.take([taken(job, event, actor="operator:olga", reason="enough")]) == []
    after = store.inspect.get(job.id)
    assert (after.state, after.phase, after.version, after.attempt, after.finished_at) == (state, "failed", 1, 1, EPOCH)
    (execution,) = store.inspect.executions(job.id)
    assert (execution.status, execution.ended_by, execution.lease_owner, execution.state) == (
        "ABORTED",
        event,
        "operator:olga",
        job.state,
    )
    assert (execution.holder, execution.started_at, execution.committed_at, execution.finished_at) == (
        1,
        None,
        None,
        EPOCH,
    )
    last = store.inspect.history(job.id)[-1]
    assert (last.event, last.actor, last.reason, last.attempt) == (event, "operator:olga", "enough", 1)
    check(store, job.id)


def test_taken_job_is_not_claimed(store: Store) -> None:
    """A job that was cancelled while it waited never runs."""
    store.transitions.take([taken(stored(store))])
    assert claim(store) == []


def test_take_adds_its_own_attempt(store: Store) -> None:
    """A job that ran before keeps its executions; the new one follows them."""
    lease = claimed(store)
    job = settle(store, lease, Requeued("stopping")).job
    assert store.transitions.take([taken(job)]) == []
    assert [(each.attempt, each.ended_by) for each in store.inspect.executions(job.id)] == [(1, "lose"), (2, "cancel")]
    check(store, job.id)


def test_held_job_can_be_taken(store: Store) -> None:
    """An operator may cancel a held job; the hold ends with it."""
    job = settle(store, claimed(store), Held("look")).job
    assert store.transitions.take([taken(job)]) == []
    after = store.inspect.get(job.id)
    assert (after.state, after.held_at, after.held_reason) == ("CANCELLED", None, None)


def test_take_is_fenced_by_the_version_of_the_job(store: Store, raw: Raw) -> None:
    """If the job was claimed meanwhile, even if it waits again, the take changes nothing, and the refusal describes the
    stored row.
    """
    job = stored(store)
    take = taken(job)
    (lease,) = claim(store)
    before = raw.dump()
    (refusal,) = store.transitions.take([take])
    assert (refusal.job_id, refusal.state, refusal.version, refusal.status) == (job.id, "RUNNING", 1, "IN_PROGRESS")
    assert raw.dump() == before
    settle(store, lease, Errored("busy", retryable=True))
    before = raw.dump()
    assert [(each.state, each.error) for each in store.transitions.take([take])] == [("PENDING", None)]
    assert raw.dump() == before


def test_running_job_in_a_waiting_state_is_not_taken(store: Store, raw: Raw) -> None:
    """If a claim changes neither state nor version, the phase shows that the job runs, and the take is refused."""
    job = stored(store, "fetch")
    take = taken(job)
    claim(store, "fetch")
    before = raw.dump()
    assert len(store.transitions.take([take])) == 1
    assert raw.dump() == before


def test_decision_to_take_a_job_that_does_not_wait_is_refused(store: Store) -> None:
    """A running job, an ended job, and a job whose state does not allow the transition."""
    lease = claimed(store)
    with pytest.raises(TransitionRefused):
        taken(lease.job)
    with pytest.raises(TransitionRefused):
        taken(finish(store, lease).job)
    with pytest.raises(TransitionRefused):
        taken(stored(store, "chore"))


def test_take_of_an_unknown_job_is_refused(store: Store) -> None:
    """The refusal has attempt 0 and no state."""
    take = replace(taken(stored(store)), job_id=make().id)
    (refusal,) = store.transitions.take([take])
    assert (refusal.job_id, refusal.attempt, refusal.state) == (take.job_id, 0, None)


def test_refused_take_does_not_affect_the_rest_of_the_batch(store: Store) -> None:
    """The other takes of the batch are stored."""
    jobs = [store.inspect.get(each.id) for each in store.queue.enqueue(many(50))]
    takes = [taken(job) for job in jobs]
    claimed_ids = {lease.job.id for lease in claim(store, limit=10)}
    assert {refusal.job_id for refusal in store.transitions.take(takes)} == claimed_ids
    assert store.inspect.counts() == {"standard": {"CANCELLED": 40, "RUNNING": 10}}


def test_take_that_the_database_refuses_does_not_affect_the_rest_of_the_batch(store: Store) -> None:
    """Protocol 9: only the transition that is not allowed is refused, with its error."""
    jobs = [store.inspect.get(each.id) for each in store.queue.enqueue(many(10))]
    takes = [taken(job) for job in jobs]
    takes[4] = replace(takes[4], arrow=Arrow("PENDING", "reject", "REJECTED"))
    (refusal,) = store.transitions.take(takes)
    assert refusal.job_id == jobs[4].id
    assert refusal.error
    assert store.inspect.counts() == {"standard": {"CANCELLED": 9, "PENDING": 1}}


def test_take_frees_the_key_if_its_kind_says_so(store: Store) -> None:
    """The key of a job that was taken into a state that frees it makes a new job."""
    job = stored(store, "paint", idempotency_key="k")
    store.transitions.take([replace(taken(job, "reject"), frees_key=True)])
    assert store.inspect.get(job.id).key_freed
    assert store.queue.enqueue([make("paint", idempotency_key="k", payload='{"n":2}')])[0].created


def test_second_take_of_a_job_is_refused(store: Store, other: Store) -> None:
    """Cancel and expire at the same time: the first one is stored."""
    job = stored(store, ttl=1.0)
    assert store.transitions.take([taken(job, "expire", actor="maintenance")]) == []
    (refusal,) = other.transitions.take([taken(job, "cancel")])
    assert refusal.state == "EXPIRED"
    assert walked(store, job.id) == [("PENDING", "expire", "EXPIRED")]


def test_empty_take_returns_an_empty_list(store: Store) -> None:
    """An empty list returns an empty list."""
    assert store.transitions.take([]) == []


# ---------------------------------------------------------------- jobs that maintenance expires
def test_expired_lists_waiting_jobs_past_their_ttl(store: Store, clock: SettableClock) -> None:
    """The longest expired first, of the known kinds, up to the limit; no running and no ended jobs."""
    late, later, young = (
        stored(store, kind, ttl=ttl).id for kind, ttl in (("deliver", 20.0), ("mail", 10.0), ("mail", 99.0))
    )
    running = claimed(store, "paint", ttl=1.0)
    stored(store, "model", ttl=5.0)
    clock.advance(30)
    kinds = ["deliver", "mail", "paint"]
    assert [job.id for job in store.inspect.expired(kinds, 9)] == [later, late]
    assert [job.id for job in store.inspect.expired(kinds, 1)] == [later]
    assert store.inspect.expired([], 9) == []
    assert young not in [job.id for job in store.inspect.expired(kinds, 9)]
    assert running.job.id not in [job.id for job in store.inspect.expired(kinds, 9)]


def test_every_job_listed_as_expired_can_be_expired(store: Store, clock: SettableClock) -> None:
    """Maintenance reads, decides and takes; the second pass finds nothing."""
    store.queue.enqueue(many(5, ttl=10.0))
    clock.advance(11)
    jobs = store.inspect.expired(["mail"], 100)
    assert store.transitions.take([taken(job, "expire", actor="maintenance") for job in jobs]) == []
    assert store.inspect.expired(["mail"], 100) == []
    assert store.inspect.counts() == {"standard": {"EXPIRED": 5}}
    assert LIFECYCLES["standard"].phases("EXPIRED") == ("failed",)
