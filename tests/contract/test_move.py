"""move: a fenced write of an outcome."""

from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    Handed,
    Held,
    Lost,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
)
from interlock.core.transition import Policy
from interlock.store.contract import Store
from tests.contract.kit import (
    again,
    check,
    claim,
    claimed,
    commit,
    decided,
    finish,
    many,
    settle,
    started,
    walked,
)
from tests.kit import EPOCH, SettableClock


# ---------------------------------------------------------------- what each outcome writes
def test_started_job_is_in_progress(store: Store, clock: SettableClock) -> None:
    """LEASED becomes IN_PROGRESS, and the `start` transition is recorded."""
    lease = claimed(store, "deliver")
    clock.advance(2)
    assert settle(store, lease, Started()).job.state == "DOWNLOADING"
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.status, execution.state, execution.started_at) == (
        "IN_PROGRESS",
        "DOWNLOADING",
        EPOCH + timedelta(seconds=2),
    )
    check(store, lease.job.id)


def test_job_advances_to_a_stage(store: Store) -> None:
    """A stage is reached by a transition; the execution continues."""
    lease = settle(store, started(store, "deliver"), Advanced("STREAMING"))
    assert (lease.job.state, lease.job.phase, lease.status, lease.job.version) == (
        "STREAMING",
        "running",
        "IN_PROGRESS",
        3,
    )
    check(store, lease.job.id)


def test_immediate_success_has_all_timestamps(store: Store, clock: SettableClock) -> None:
    """The fast path writes DONE with all timestamps in one move, and the job has its result."""
    lease = claimed(store)
    clock.advance(3)
    job = finish(store, lease, '{"size":7}').job
    now = EPOCH + timedelta(seconds=3)
    assert (job.state, job.phase, job.result, job.finished_at, job.updated_at) == (
        "SUCCEEDED",
        "succeeded",
        {"size": 7},
        now,
        now,
    )
    (execution,) = store.inspect.executions(job.id)
    assert (execution.status, execution.ended_by, execution.state, execution.result) == (
        "DONE",
        "succeed",
        "RUNNING",
        {"size": 7},
    )
    assert (execution.leased_at, execution.started_at, execution.committed_at, execution.finished_at) == (
        EPOCH,
        EPOCH,
        now,
        now,
    )
    check(store, job.id)


def test_commit_boundary_keeps_the_value_and_the_lease(store: Store, clock: SettableClock) -> None:
    """COMMITTED stores the value with the execution, renews the lease and changes no state; DONE stores it with the
    job.
    """
    lease = claimed(store, lease=30.0)
    clock.advance(20)
    half = commit(store, lease, '"value"')
    assert (half.job.state, half.job.phase, half.job.result, half.status) == ("RUNNING", "running", None, "COMMITTED")
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.result, execution.committed_at, execution.ended_by) == (
        "value",
        EPOCH + timedelta(seconds=20),
        None,
    )
    assert execution.lease_expires_at == EPOCH + timedelta(seconds=50)
    clock.advance(5)
    done = settle(store, half, Finished())
    assert (done.job.state, done.job.result, done.job.phase) == ("SUCCEEDED", "value", "succeeded")
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.status, execution.committed_at, execution.finished_at) == (
        "DONE",
        EPOCH + timedelta(seconds=20),
        EPOCH + timedelta(seconds=25),
    )
    check(store, lease.job.id)


def test_handler_may_return_none(store: Store) -> None:
    """The job has succeeded with the result null."""
    assert finish(store, claimed(store), "null").job.result is None


def test_retryable_error_spends_a_try(store: Store) -> None:
    """The job waits for its backoff and shows the error."""
    job = settle(store, claimed(store), Errored("Traceback\nTimeoutError: slow", retryable=True)).job
    assert (job.state, job.phase, job.tries_left, job.last_error) == (
        "PENDING",
        "pending",
        2,
        "Traceback\nTimeoutError: slow",
    )
    assert (job.due_at, job.finished_at, job.lease_losses) == (EPOCH + timedelta(seconds=10), None, 0)
    assert store.inspect.history(job.id)[-1].reason == "TimeoutError: slow"
    check(store, job.id)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (FailedFinally("no"), "FAILED"),
        (Rejected("no"), "REJECTED"),
        (CancelRequested("no", "olga"), "CANCELLED"),
        (Errored("no", retryable=False), "FAILED"),
    ],
)
def test_failed_job_has_ended(store: Store, outcome: Outcome, state: str) -> None:
    """The job has failed with a reason, and has no live execution."""
    job = settle(store, claimed(store), outcome).job
    assert (job.state, job.phase, job.finished_at, job.result) == (state, "failed", EPOCH, None)
    assert store.inspect.executions(job.id)[0].status == "ABORTED"
    assert store.inspect.history(job.id)[-1].reason == "no"
    check(store, job.id)


def test_last_retryable_error_fails_the_job(store: Store) -> None:
    """The job cannot be claimed again."""
    job = settle(store, claimed(store, tries=1), Errored("busy", retryable=True)).job
    assert (job.state, job.tries_left) == ("FAILED", 0)
    assert claim(store) == []


def test_failure_that_cannot_be_retried_is_buried_at_once(store: Store) -> None:
    """running --> failed --> dead_letter: two transitions in one transaction; the last one ends the execution."""
    lease = claimed(store, "paint")
    job = settle(store, lease, FailedFinally("broken")).job
    assert (job.state, job.phase, job.version) == ("dead_letter", "failed", 3)
    assert walked(store, job.id)[1:] == [("running", "fail", "failed"), ("failed", "bury", "dead_letter")]
    (execution,) = store.inspect.executions(job.id)
    assert (execution.status, execution.state, execution.ended_by) == ("ABORTED", "failed", "bury")
    check(store, job.id)


def test_lost_lease_is_counted(store: Store) -> None:
    """It spends a try and is due again at once."""
    job = settle(store, claimed(store), Lost()).job
    assert (job.state, job.tries_left, job.lease_losses, job.due_at) == ("PENDING", 2, 1, EPOCH)
    check(store, job.id)


@pytest.mark.parametrize("outcome", [Requeued("stopping"), Snoozed(45.0, "later")])
def test_returned_job_keeps_its_tries_and_waits(store: Store, outcome: Requeued | Snoozed) -> None:
    """It waits for the requested time, and no lost lease is counted."""
    job = settle(store, claimed(store), outcome).job
    wait = outcome.after if isinstance(outcome, Snoozed) else 0.0
    assert (job.phase, job.tries_left, job.lease_losses, job.due_at) == (
        "pending",
        3,
        0,
        EPOCH + timedelta(seconds=wait),
    )
    check(store, job.id)


def test_end_of_an_attempt_without_a_transition_is_a_remark(store: Store) -> None:
    """If a job waits again in the state in which it ran, the history says so without a transition."""
    lease = claimed(store, "fetch")
    job = settle(store, settle(store, lease, Started(walks=False)), Errored("busy", retryable=True)).job
    assert (job.state, job.phase, job.version, job.attempt, job.tries_left) == ("queued", "pending", 0, 1, 2)
    last = store.inspect.history(job.id)[-1]
    assert (last.event, last.to_state, last.reason) == ("retry", None, "busy")
    assert last.n > 0
    check(store, job.id)


def test_held_job_waits_for_an_operator(store: Store) -> None:
    """It is pending with a reason, is not claimed, and its history shows the hold."""
    job = settle(store, claimed(store), Held("did it happen?")).job
    assert (job.phase, job.held_reason, job.held_at) == ("pending", "did it happen?", EPOCH)
    assert claim(store) == []
    assert ("hold", "did it happen?") in [(entry.event, entry.reason) for entry in store.inspect.history(job.id)]
    check(store, job.id)


def test_kind_can_hold_jobs_that_lost_a_lease(store: Store) -> None:
    """With `on_lost_lease="hold"`, a lost lease holds the job for an operator."""
    job = settle(store, claimed(store), Lost(), policy=Policy(on_lost_lease="hold")).job
    assert (job.held_at, job.lease_losses) == (EPOCH, 1)
    check(store, job.id)


def test_handed_over_execution_waits_for_its_check(store: Store) -> None:
    """The execution stays live under its external id without a worker, until its check is due."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    (execution,) = store.inspect.executions(lease.job.id)
    due = EPOCH + timedelta(seconds=15)
    assert (execution.external_id, execution.lease_owner, execution.next_check_at, execution.lease_expires_at) == (
        "hash-1",
        "external:fetch",
        due,
        due,
    )
    assert (execution.status, lease.job.phase) == ("IN_PROGRESS", "running")


def test_ended_execution_keeps_its_error(store: Store, clock: SettableClock) -> None:
    """Each attempt keeps its own error; the job shows the last one."""
    settle(store, claimed(store), Errored("first", retryable=True, after=0))
    (lease,) = claim(store)
    job = finish(store, lease).job
    assert [each.error for each in store.inspect.executions(job.id)] == ["first", None]
    assert job.last_error == "first"


def test_progress_and_usage_are_stored_with_the_move(store: Store) -> None:
    """A move without progress or usage keeps the stored values."""
    lease = claimed(store, "deliver")
    for outcome, shown, kept in (
        (Started(), {"progress": '[1.0, 4.0, "warm"]', "usage": '{"n": 7}'}, ((1.0, 4.0, "warm"), {"n": 7})),
        (Advanced("STREAMING"), {}, ((1.0, 4.0, "warm"), {"n": 7})),
        (Returned("1", boundary=True), {"progress": '[4.0, 4.0, "done"]'}, ((4.0, 4.0, "done"), {"n": 7})),
        (Finished(), {"usage": '{"n": 9}'}, ((4.0, 4.0, "done"), {"n": 9})),
    ):
        assert store.transitions.move([replace(decided(again(store, lease), outcome), **shown)]) == []
        (execution,) = store.inspect.executions(lease.job.id)
        assert (execution.progress, execution.usage) == kept
        assert store.inspect.get(lease.job.id).progress == kept[0]


def test_each_job_of_a_batch_keeps_its_own_usage(store: Store) -> None:
    """Some moves have progress or usage, some have none, and one has two transitions."""
    store.queue.enqueue([*many(4), *many(1, "paint")])
    moves = [decided(lease, Returned(str(n), boundary=False)) for n, lease in enumerate(claim(store))]
    (buried,) = claim(store, "paint")
    moves = [
        replace(moves[0], usage='{"n": 0}'),
        moves[1],
        replace(moves[2], progress='[2, null, "it\'s \\"ü\\""]'),
        replace(moves[3], usage='{"n": 3}'),
    ]
    assert store.transitions.move([*moves, replace(decided(buried, FailedFinally("broken")), usage='{"n": 4}')]) == []
    kept = [store.inspect.executions(move.job_id)[0] for move in [*moves, decided(buried, FailedFinally("broken"))]]
    assert [execution.usage for execution in kept] == [{"n": 0}, None, None, {"n": 3}, {"n": 4}]
    assert [execution.progress for execution in kept] == [None, None, (2, None, 'it\'s "ü"'), None, None]
    assert [execution.result for execution in kept] == [0, 1, 2, 3, None]
