"""decide: lost leases, returned jobs, cancel requests, and refused outcomes."""

from dataclasses import replace
from typing import Any

import pytest

from interlock.core.decide import decide_take
from interlock.core.job import Job, Status
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    GoneExternally,
    Handed,
    Held,
    Looked,
    Lost,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
    Unrecorded,
)
from interlock.core.transition import Policy
from interlock.errors import TransitionRefused
from tests.pure.test_decide import after, delivery, download, image, standard, task, walked

from .model import make_job


# ---------------------------------------------------------------- lost leases
def test_lost_lease_spends_a_try_and_is_due_at_once() -> None:
    for lifecycle, state, event in (
        (task, "running", "lose"),
        (delivery, "DOWNLOADING", "retry"),
        (image, "running", "fail"),
    ):
        move = after(lifecycle, state, Lost())
        assert ([arrow.event for arrow in move.path], move.phase, move.ended_by) == ([event], "pending", event)
        assert (move.lost, move.tries_left, move.delay, move.error) == (True, 2, 0.0, "lease lost")


@pytest.mark.parametrize("tries", range(1, 8))
@pytest.mark.parametrize("died", ["the worker", "a group, then alone"])
def test_rule_31_job_that_kills_its_process_runs_as_often_as_it_has_tries(tries: int, died: str) -> None:
    """Counted by maintenance, which finds a lost lease, or by the worker, whose child has died."""
    left, losses, runs = tries, 0, 0
    while True:
        runs += 1
        grouped = losses == 1 and left > 1
        crash = Errored("its process died", retryable=True, crashed=True, shared=grouped)
        move = after(
            standard,
            "RUNNING",
            crash if losses and died != "the worker" else Lost(),
            tries=tries,
            tries_left=left,
            lease_losses=losses,
        )
        left, losses = move.tries_left, losses + move.lost
        if move.phase == "failed":
            break
    assert (runs, left) == (tries, 0)


def test_rule_31_shared_crash_spends_a_try_only_if_the_job_crashes_alone() -> None:
    beside = Errored("its process died", retryable=True, crashed=True, shared=True)
    alone = replace(beside, shared=False)
    second = after(standard, "RUNNING", beside, tries_left=2, lease_losses=1)
    assert (second.tries_left, second.lost, second.delay, second.phase, second.error) == (
        2,
        True,
        0.0,
        "pending",
        "its process died",
    )
    third = after(standard, "RUNNING", alone, tries=5, tries_left=4, lease_losses=2)
    assert (third.tries_left, third.lost) == (2, True)
    fourth = after(standard, "RUNNING", alone, tries=5, tries_left=2, lease_losses=3)
    assert (fourth.tries_left, fourth.lost) == (1, False)
    raised = after(standard, "RUNNING", Errored("500", retryable=True), tries=5, tries_left=4, lease_losses=2)
    assert (raised.tries_left, raised.lost) == (3, False)


def test_lease_lost_in_a_waiting_state_leaves_the_job_there() -> None:
    move = after(download, "queued", Lost(), "LEASED")
    assert (move.path, move.state, move.phase, move.ended_by) == ((), "queued", "pending", "lose")


def test_lost_lease_on_the_last_try_fails_the_job() -> None:
    move = after(image, "running", Lost(), tries_left=1)
    assert walked(move) == (["fail", "bury"], "dead_letter", "failed", "ABORTED")
    assert (move.lost, move.tries_left, move.error) == (True, 0, "lease lost")


def test_kind_can_fail_or_hold_jobs_that_lost_a_lease() -> None:
    failed = after(standard, "RUNNING", Lost(), policy=Policy(on_lost_lease="fail"))
    assert (failed.state, failed.lost, failed.held_reason) == ("FAILED", True, None)
    held = after(standard, "RUNNING", Lost(), policy=Policy(on_lost_lease="hold"), tries_left=1)
    assert (held.state, held.phase, held.lost, held.held_reason) == ("PENDING", "pending", True, "lease lost")


# ---------------------------------------------------------------- returned jobs
@pytest.mark.parametrize(("outcome", "delay"), [(Requeued("stopping"), 0.0), (Snoozed(90.0, "stopping"), 90.0)])
def test_returned_job_keeps_its_tries(outcome: Outcome, delay: float) -> None:
    for lifecycle, state, events, ended_by in (
        (standard, "RUNNING", ["lose"], "lose"),
        (delivery, "STREAMING", ["retry"], "retry"),
        (download, "queued", [], "lose"),
        (image, "running", ["fail"], "fail"),
    ):
        move = after(lifecycle, state, outcome, tries_left=1)
        assert ([arrow.event for arrow in move.path], move.ended_by, move.phase) == (events, ended_by, "pending")
        assert (move.tries_left, move.delay, move.error, move.lost, move.reason) == (1, delay, None, False, "stopping")
    with pytest.raises(
        TransitionRefused, match="the lifecycle allows no `lose`, no `retry` and no `fail` to a resting state"
    ):
        after(download, "downloading", outcome)


def test_held_job_waits_for_an_operator_or_fails_if_it_cannot_wait() -> None:
    move = after(standard, "RUNNING", Held("was it sent?"), tries_left=1)
    assert (move.state, move.phase, move.held_reason, move.tries_left) == ("PENDING", "pending", "was it sent?", 1)
    assert walked(after(download, "downloading", Held("was it sent?"))) == (["fail"], "failed", "failed", "ABORTED")


# ---------------------------------------------------------------- cancel requests
@pytest.mark.parametrize("outcome", [Lost(), Errored("e", retryable=True), Requeued("r"), Snoozed(1.0, "r"), Held("h")])
def test_job_with_a_cancel_request_does_not_wait_again(outcome: Outcome) -> None:
    direct = after(standard, "RUNNING", outcome, asked=True)
    assert walked(direct) == (["cancel"], "CANCELLED", "failed", "ABORTED")
    assert (direct.actor, direct.reason, direct.ended_by, direct.held_reason, direct.delay) == (
        "operator:ann",
        "not needed",
        "cancel",
        None,
        None,
    )
    assert direct.lost == isinstance(outcome, Lost)
    behind = after(delivery, "STREAMING", outcome, asked=True)
    assert walked(behind) == (["retry", "cancel"], "CANCELLED", "failed", "ABORTED")
    in_place = after(download, "queued", outcome, asked=True)
    assert walked(in_place) == (["cancel"], "canceled", "failed", "ABORTED")
    not_allowed = after(image, "running", outcome, asked=True)
    assert not_allowed.saw_cancel_request
    assert replace(not_allowed, saw_cancel_request=False) == after(image, "running", outcome)


def test_job_with_a_cancel_request_may_still_succeed_or_fail() -> None:
    assert after(standard, "RUNNING", Returned("1", boundary=False), asked=True).state == "SUCCEEDED"
    assert after(standard, "RUNNING", FailedFinally("f"), asked=True).state == "FAILED"
    assert after(standard, "RUNNING", Errored("e", retryable=False), asked=True).state == "FAILED"


def test_cancel_by_the_holder_names_the_requester() -> None:
    move = after(delivery, "CLAIMED", CancelRequested("changed my mind", "user:7"), "LEASED")
    assert walked(move) == (["lose", "cancel"], "CANCELLED", "failed", "ABORTED")
    assert (move.actor, move.reason, move.ended_by, move.tries_left) == ("user:7", "changed my mind", "cancel", 3)
    with pytest.raises(
        TransitionRefused, match="`cancel` is not allowed from there, nor from the state to which the job would return"
    ):
        after(image, "running", CancelRequested(None, "user:7"))


# ---------------------------------------------------------------- refused outcomes
@pytest.mark.parametrize(
    "outcome",
    [
        Lost(),
        FailedFinally("f"),
        Errored("e", retryable=True),
        Rejected("r"),
        Requeued("r"),
        Snoozed(1.0, "r"),
        CancelRequested(None, "x"),
        Held("h"),
        Returned("1", boundary=True),
        Handed("x", 1.0),
        Started(),
        Looked(1.0, seen=True),
        Unrecorded("e", retryable=True),
        GoneExternally("g"),
        Returned("1", boundary=True, begins=True),
    ],
)
def test_committed_execution_can_only_be_finished(outcome: Outcome) -> None:
    with pytest.raises(TransitionRefused, match="it is committed and can only be finished"):
        after(standard, "RUNNING", outcome, "COMMITTED")


@pytest.mark.parametrize(
    "outcome",
    [
        Returned("1", boundary=False),
        Advanced("RUNNING"),
        Handed("x", 1.0),
        Finished(),
        Looked(1.0, seen=True),
        Unrecorded("e", retryable=True),
    ],
)
def test_outcome_that_does_not_fit_the_status_is_refused(outcome: Outcome) -> None:
    with pytest.raises(TransitionRefused, match=f"{type(outcome).__name__} needs an execution that is"):
        after(standard, "RUNNING", outcome, "LEASED")


@pytest.mark.parametrize("status", ["DONE", "ABORTED"])
def test_ended_execution_never_moves_again(status: Status) -> None:
    with pytest.raises(TransitionRefused, match="it has ended"):
        after(standard, "RUNNING", FailedFinally("f"), status)


def test_job_in_a_state_without_work_is_not_moved() -> None:
    with pytest.raises(TransitionRefused, match="no job runs in that state"):
        after(standard, "PENDING", FailedFinally("f"))


# ---------------------------------------------------------------- keys and takes
def test_entering_a_listed_state_frees_the_key() -> None:
    policy = Policy(key_until=("dead_letter",))
    assert after(image, "running", FailedFinally("f"), policy=policy).frees_key
    assert not after(image, "running", Errored("e", retryable=True), policy=policy).frees_key
    assert after(image, "running", FailedFinally("f"), policy=Policy(key_until=("failed",))).frees_key


def take(lifecycle: Lifecycle, job: Job, event: Any, policy: Policy | None = None) -> Any:
    return decide_take(lifecycle, job, event, policy or Policy(), actor="operator:ann", reason="why")


def test_waiting_job_is_taken_along_an_allowed_transition() -> None:
    taken = take(delivery, make_job(delivery), "cancel", Policy(key_until=("CANCELLED",)))
    assert (taken.arrow.target, taken.phase, taken.attempt, taken.version, taken.kind) == (
        "CANCELLED",
        "failed",
        1,
        0,
        "kind",
    )
    assert (taken.actor, taken.reason, taken.frees_key) == ("operator:ann", "why", True)
    assert take(delivery, make_job(delivery), "expire").arrow.event == "expire"
    assert take(image, make_job(image), "reject").arrow.target == "rejected"


def test_take_is_refused_unless_the_job_waits_and_the_lifecycle_allows_it() -> None:
    with pytest.raises(TransitionRefused, match="Job job is running in queued: `cancel` needs a job that waits"):
        take(download, make_job(download, "queued", phase="running"), "cancel")
    with pytest.raises(TransitionRefused, match="Job job is failed in CANCELLED"):
        take(delivery, make_job(delivery, "CANCELLED"), "cancel")
    with pytest.raises(TransitionRefused, match="`reject` is not allowed from failed by the lifecycle image"):
        take(image, make_job(image, "failed"), "reject")
