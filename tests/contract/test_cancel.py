"""request_cancel and remark: a cancel request and a note in the job's history."""

import pytest

from interlock.core.outcome import Errored, Lost, Outcome, Requeued, Returned, Snoozed
from interlock.store.contract import Store
from tests.contract.kit import (
    again,
    check,
    claim,
    claimed,
    commit,
    decided,
    finish,
    lose,
    make,
    settle,
    started,
    stored,
)
from tests.kit import EPOCH, Raw, SettableClock


def test_cancel_request_is_stored_on_a_running_job(store: Store, other: Store) -> None:
    """The request is stored on the job, and in its history as a remark; the state stays."""
    lease = claimed(store)
    assert other.control.request_cancel(lease.job.id, by="olga", reason="too late")
    job = store.inspect.get(lease.job.id)
    assert (job.state, job.version, job.cancel_requested_at, job.cancel_requested_by, job.cancel_reason) == (
        "RUNNING",
        1,
        EPOCH,
        "olga",
        "too late",
    )
    last = store.inspect.history(job.id)[-1]
    assert (last.event, last.actor, last.reason, last.to_state, last.version) == (
        "cancel_requested",
        "olga",
        "too late",
        None,
        1,
    )
    assert last.n > 0
    check(store, job.id)


def test_second_cancel_request_changes_nothing(store: Store, raw: Raw, clock: SettableClock) -> None:
    """The first request stays, and the second adds nothing."""
    lease = claimed(store)
    store.control.request_cancel(lease.job.id, by="olga", reason=None)
    before = raw.dump()
    clock.advance(5)
    assert store.control.request_cancel(lease.job.id, by="otto", reason="again")
    assert raw.dump() == before


def test_cancel_request_needs_a_running_job(store: Store, raw: Raw) -> None:
    """For a waiting, ended, committed or unknown job the call returns False and changes nothing."""
    committed = commit(store, claimed(store)).job
    ended = finish(store, claimed(store)).job
    waiting = stored(store)
    before = raw.dump()
    for id in (waiting.id, ended.id, committed.id, make().id):
        assert store.control.request_cancel(id, by="olga", reason=None) is False
    assert raw.dump() == before


def test_job_with_a_cancel_request_may_still_succeed(store: Store) -> None:
    """A job that finishes before its handler sees the request has succeeded."""
    lease = claimed(store)
    store.control.request_cancel(lease.job.id, by="olga", reason=None)
    assert finish(store, lease).job.state == "SUCCEEDED"
    check(store, lease.job.id)


@pytest.mark.parametrize(
    "outcome", [Lost(), Requeued("stopping"), Snoozed(60.0, "later"), Errored("busy", retryable=True)]
)
def test_job_with_a_cancel_request_is_cancelled_instead_of_waiting_again(store: Store, outcome: Outcome) -> None:
    """Protocol 28: if an attempt of a job with a cancel request is lost, returned, snoozed or failed, the job is
    cancelled in the name of the person who requested it.
    """
    lease = claimed(store)
    store.control.request_cancel(lease.job.id, by="olga", reason="enough")
    job = settle(store, again(store, lease), outcome).job
    assert (job.state, job.phase) == ("CANCELLED", "failed")
    last = store.inspect.history(job.id)[-1]
    assert (last.event, last.actor, last.reason) == ("cancel", "olga", "enough")
    check(store, job.id)


def test_maintenance_cancels_a_dead_workers_job_with_a_cancel_request(store: Store, clock: SettableClock) -> None:
    """The request outlives the worker; if the cancel is allowed from the waiting state, both transitions are recorded."""
    lease = claimed(store, "deliver")
    store.control.request_cancel(lease.job.id, by="olga", reason=None)
    clock.advance(31)
    (lost,) = lose(store, "deliver")
    assert (lost.job.state, lost.job.lease_losses) == ("CANCELLED", 1)
    check(store, lease.job.id)


def test_cancel_request_is_cleared_if_the_lifecycle_has_no_cancel(store: Store, clock: SettableClock) -> None:
    """The job returns to waiting and can be claimed again; its history keeps the request."""
    lease = claimed(store, "chore")
    assert store.control.request_cancel(lease.job.id, by="olga", reason=None)
    clock.advance(31)
    (lost,) = lose(store, "chore")
    assert (lost.job.state, lost.job.phase, lost.job.cancel_requested_at) == ("pending", "pending", None)
    assert [each.job.id for each in claim(store, "chore")] == [lease.job.id]
    assert "cancel_requested" in [entry.event for entry in store.inspect.history(lease.job.id)]
    check(store, lease.job.id)


def test_committed_job_refuses_a_cancel_request(store: Store) -> None:
    """The request is refused, and the committed value stays."""
    lease = started(store)
    move = decided(lease, Returned("1", boundary=True))
    assert store.transitions.move([move]) == []
    assert not store.control.request_cancel(lease.job.id, by="olga", reason=None)


# ---------------------------------------------------------------- remarks
def test_remark_is_an_audit_entry_without_a_transition(store: Store) -> None:
    """It follows the entry of the job's current version and changes nothing else."""
    lease = claimed(store)
    for word in ("first", "second"):
        store.control.add_note(lease.job.id, attempt=1, event="refused", actor="ann", reason=word)
    history = store.inspect.history(lease.job.id)
    assert [(entry.version, entry.n, entry.event, entry.reason) for entry in history[2:]] == [
        (1, 1, "refused", "first"),
        (1, 2, "refused", "second"),
    ]
    assert again(store, lease).job == lease.job
    assert finish(store, lease).job.state == "SUCCEEDED"
    check(store, lease.job.id)


def test_ended_job_accepts_a_remark(store: Store) -> None:
    """Protocol 35: a refused process can add its remark after the job's end."""
    job = finish(store, claimed(store)).job
    store.control.add_note(job.id, attempt=None, event="refused", actor="bob", reason="came late")
    assert store.inspect.history(job.id)[-1].reason == "came late"
    assert store.inspect.get(job.id) == job
    check(store, job.id)


def test_remark_on_an_unknown_job_is_ignored(store: Store, raw: Raw) -> None:
    """Nothing is written, and nothing is raised."""
    before = raw.dump()
    store.control.add_note(make().id, attempt=1, event="refused", actor="ann", reason=None)
    assert raw.dump() == before


@pytest.mark.parametrize("kind", ["mail", "deliver", "chore"])
def test_move_back_to_waiting_is_refused_if_a_cancel_request_came_in(store: Store, kind: str) -> None:
    """The move changes nothing and is decided again, now with the request."""
    lease = claimed(store, kind)
    blind = decided(lease, Lost())
    assert store.control.request_cancel(lease.job.id, by="olga", reason=None)
    (refusal,) = store.transitions.move([blind])
    assert (refusal.attempt, refusal.holder, refusal.status, refusal.state) == (
        blind.attempt,
        blind.holder,
        blind.from_status,
        blind.source,
    )
    assert store.inspect.get(lease.job.id).cancel_requested_by == "olga"
    assert store.transitions.move([decided(again(store, lease), Lost())]) == []
    check(store, lease.job.id)


def test_cancel_request_does_not_block_success_or_failure(store: Store) -> None:
    """A job with a cancel request may still succeed or fail."""
    for outcome in (Returned("1", boundary=False), Errored("broken", retryable=False)):
        lease = claimed(store)
        move = decided(lease, outcome)
        store.control.request_cancel(lease.job.id, by="olga", reason=None)
        assert store.transitions.move([move]) == []
