"""decide: the move that each outcome leads to, rule by rule."""

from dataclasses import replace
from typing import Any

import pytest

from interlock.core.backoff import Backoff
from interlock.core.decide import decide
from interlock.core.job import Status
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import (
    Advanced,
    Errored,
    FailedFinally,
    Finished,
    GoneExternally,
    Handed,
    Looked,
    Outcome,
    Rejected,
    Returned,
    Started,
    Unrecorded,
)
from interlock.core.transition import Move, Policy
from interlock.errors import TransitionRefused

from .model import SIX, make_execution, make_job

standard, task, delivery, download, image = (
    SIX[name] for name in ("standard", "task", "delivery", "download", "image")
)


def after(
    lifecycle: Lifecycle,
    state: str,
    outcome: Outcome,
    status: Status = "IN_PROGRESS",
    *,
    policy: Policy | None = None,
    **job: Any,
) -> Move:
    policy = policy or Policy(backoff=Backoff(jitter=False))
    return decide(
        lifecycle,
        make_job(lifecycle, state, **job),
        make_execution(state, status),
        outcome,
        policy,
        0.5,
        actor="worker-1",
    )


def walked(move: Move) -> tuple[list[str], str, str, str]:
    return [arrow.event for arrow in move.path], move.state, move.phase, move.to_status


# ---------------------------------------------------------------- outcomes that continue the job
def test_start_takes_its_transition_if_the_lifecycle_has_one() -> None:
    assert walked(after(delivery, "CLAIMED", Started(), "LEASED")) == (
        ["start"],
        "DOWNLOADING",
        "running",
        "IN_PROGRESS",
    )
    assert walked(after(standard, "RUNNING", Started(), "LEASED")) == ([], "RUNNING", "running", "IN_PROGRESS")
    assert walked(after(download, "queued", Started(walks=False), "LEASED")) == ([], "queued", "running", "IN_PROGRESS")
    assert walked(after(download, "queued", Started())) == (["start"], "downloading", "running", "IN_PROGRESS")


def test_job_advances_only_as_the_lifecycle_allows() -> None:
    assert walked(after(delivery, "DOWNLOADING", Advanced("STREAMING"))) == (
        ["advance"],
        "STREAMING",
        "running",
        "IN_PROGRESS",
    )
    assert walked(after(delivery, "STREAMING", Advanced("STREAMING"))) == ([], "STREAMING", "running", "IN_PROGRESS")
    with pytest.raises(TransitionRefused, match="from there a job advances to no stage, not to DOWNLOADING"):
        after(delivery, "STREAMING", Advanced("DOWNLOADING"))


def test_handing_work_over_changes_no_state() -> None:
    move = after(download, "queued", Handed("torrent", 15.0))
    assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
    assert (move.external_id, move.check_in, move.ended_by) == ("torrent", 15.0, None)


def test_check_returns_the_work_and_records_whether_it_was_found() -> None:
    for seen, missing in ((True, False), (False, True), (None, None)):
        move = after(download, "queued", Looked(15.0, seen=seen))
        assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
        assert (move.check_in, move.missing, move.external_id, move.tries_left, move.ended_by) == (
            15.0,
            missing,
            None,
            3,
            None,
        )


def test_external_work_that_has_begun_takes_start_if_allowed() -> None:
    begun = Looked(15.0, seen=True, begun=True)
    move = after(download, "queued", begun)
    assert walked(move) == (["start"], "downloading", "running", "IN_PROGRESS")
    assert (move.check_in, move.missing) == (15.0, False)
    assert walked(after(download, "downloading", begun)) == ([], "downloading", "running", "IN_PROGRESS")
    assert walked(after(standard, "RUNNING", begun)) == ([], "RUNNING", "running", "IN_PROGRESS")


# ---------------------------------------------------------------- success
def test_result_without_a_boundary_ends_the_job_at_once() -> None:
    move = after(standard, "RUNNING", Returned('"v"', boundary=False))
    assert walked(move) == (["succeed"], "SUCCEEDED", "succeeded", "DONE")
    assert (move.result, move.ended_by, move.tries_left) == ('"v"', "succeed", 3)


def test_result_with_a_boundary_is_committed_first_and_finished_later() -> None:
    committed = after(standard, "RUNNING", Returned('"v"', boundary=True))
    assert walked(committed) == ([], "RUNNING", "running", "COMMITTED")
    assert (committed.result, committed.ended_by) == ('"v"', None)
    assert walked(after(standard, "RUNNING", Finished(), "COMMITTED")) == (
        ["succeed"],
        "SUCCEEDED",
        "succeeded",
        "DONE",
    )


def test_job_whose_finish_failed_succeeds_with_the_error_recorded() -> None:
    move = after(standard, "RUNNING", Finished("no mail server"), "COMMITTED")
    assert (move.phase, move.error, move.reason, move.ended_by) == (
        "succeeded",
        "no mail server",
        "finish_failed",
        "succeed",
    )


@pytest.mark.parametrize("boundary", [True, False])
def test_return_from_a_state_without_succeed_fails_before_the_commit(boundary: bool) -> None:
    move = after(delivery, "DOWNLOADING", Returned("1", boundary=boundary))
    assert walked(move) == (["fail"], "FAILED", "failed", "ABORTED")
    assert (
        move.error
        == "The handler returned in DOWNLOADING, but the lifecycle delivery allows `succeed` only from STREAMING."
    )
    assert (move.result, move.tries_left) == (None, 3)


def test_external_work_that_ended_before_it_was_seen_takes_both_transitions() -> None:
    done = after(download, "queued", Returned('"v"', boundary=False, begins=True))
    assert walked(done) == (["start", "succeed"], "completed", "succeeded", "DONE")
    assert (done.result, done.ended_by, done.missing) == ('"v"', "succeed", False)
    committed = after(download, "queued", Returned('"v"', boundary=True, begins=True))
    assert walked(committed) == (["start"], "downloading", "running", "COMMITTED")
    assert (committed.result, committed.ended_by, committed.missing) == ('"v"', None, False)
    assert walked(after(download, "downloading", Returned("1", boundary=False, begins=True))) == (
        ["succeed"],
        "completed",
        "succeeded",
        "DONE",
    )
    assert walked(after(standard, "RUNNING", Returned("1", boundary=False, begins=True))) == (
        ["succeed"],
        "SUCCEEDED",
        "succeeded",
        "DONE",
    )


def test_only_external_work_takes_start_and_succeed_together() -> None:
    assert walked(after(download, "queued", Returned("1", boundary=False))) == (["fail"], "failed", "failed", "ABORTED")
    assert walked(after(delivery, "CLAIMED", Returned("1", boundary=False, begins=True))) == (
        ["fail"],
        "FAILED",
        "failed",
        "ABORTED",
    )
    assert after(standard, "RUNNING", Returned("1", boundary=False)).missing is None


# ---------------------------------------------------------------- errors
def test_retryable_error_spends_a_try_and_waits_for_its_backoff() -> None:
    move = after(delivery, "STREAMING", Errored("Traceback\n  ...\nTimeout: slow", retryable=True), tries_left=2)
    assert walked(move) == (["retry"], "QUEUED", "pending", "ABORTED")
    assert (move.tries_left, move.delay, move.ended_by, move.reason) == (1, 2.0, "retry", "Timeout: slow")
    assert move.error == "Traceback\n  ...\nTimeout: slow"


def test_crashed_process_is_retried_like_a_lost_lease() -> None:
    """If an exception is final, a crash is not: it spends a try until none is left."""
    crash = Errored("its process was killed", retryable=True, crashed=True)
    move = after(task, "running", crash, tries_left=2)
    assert (walked(move), move.tries_left, move.ended_by) == ((["lose"], "pending", "pending", "ABORTED"), 1, "lose")
    assert walked(after(task, "running", crash, tries_left=1)) == (["fail"], "error", "failed", "ABORTED")
    assert walked(after(task, "running", replace(crash, crashed=False), tries_left=2)) == (
        ["fail"],
        "error",
        "failed",
        "ABORTED",
    )
    assert walked(after(standard, "RUNNING", crash, tries_left=2)) == (["retry"], "PENDING", "pending", "ABORTED")


def test_delay_of_an_error_replaces_the_backoff() -> None:
    assert after(standard, "RUNNING", Errored("429", retryable=True, after=60.0)).delay == 60.0
    assert after(standard, "RUNNING", Errored("429", retryable=True, after=0.0)).delay == 0.0


def test_minimum_delay_of_an_error_never_shortens_the_backoff() -> None:
    for asked, sleeper in ((60.0, 60.0), (1.0, 2.0), (0.0, 2.0)):
        assert after(standard, "RUNNING", Errored("429", retryable=True, at_least=asked), tries_left=2).delay == sleeper
        assert (
            after(download, "queued", Unrecorded("429", retryable=True, at_least=asked), tries_left=2).check_in
            == sleeper
        )


def test_job_is_retried_in_its_own_state_if_it_can_wait_there() -> None:
    move = after(download, "queued", Errored("refused", retryable=True))
    assert walked(move) == ([], "queued", "pending", "ABORTED")
    assert (move.ended_by, move.delay) == ("retry", 1.0)


def test_retryable_error_rests_if_the_lifecycle_has_a_resting_state() -> None:
    move = after(image, "running", Errored("500", retryable=True))
    assert walked(move) == (["fail"], "failed", "pending", "ABORTED")
    assert (move.tries_left, move.delay, move.ended_by) == (2, 1.0, "fail")


def test_error_on_the_last_try_ends_the_job() -> None:
    spent = after(image, "running", Errored("500", retryable=True), tries_left=1)
    assert walked(spent) == (["fail", "bury"], "dead_letter", "failed", "ABORTED")
    assert (spent.tries_left, spent.ended_by, spent.delay) == (0, "bury", None)
    assert walked(after(standard, "RUNNING", Errored("500", retryable=True), tries_left=1)) == (
        ["fail"],
        "FAILED",
        "failed",
        "ABORTED",
    )


def test_error_is_final_if_the_lifecycle_has_no_retry() -> None:
    assert walked(after(task, "running", Errored("500", retryable=True))) == (["fail"], "error", "failed", "ABORTED")
    assert walked(after(download, "downloading", Errored("500", retryable=True))) == (
        ["fail"],
        "failed",
        "failed",
        "ABORTED",
    )


def test_final_failure_spends_no_try() -> None:
    assert after(standard, "RUNNING", FailedFinally("no such file")).tries_left == 3
    assert after(standard, "RUNNING", Errored("404", retryable=False)).tries_left == 3


def test_rejection_without_a_reject_transition_fails_the_job() -> None:
    assert walked(after(image, "running", Rejected("unsafe"))) == (["reject"], "rejected", "failed", "ABORTED")
    assert walked(after(delivery, "CLAIMED", Rejected("blocked"), "LEASED")) == (
        ["fail"],
        "FAILED",
        "failed",
        "ABORTED",
    )


def test_external_result_that_cannot_be_recorded_spends_a_try_and_is_checked_again() -> None:
    move = after(download, "queued", Unrecorded("Traceback\n  ...\nOSError: no disk", retryable=True), tries_left=2)
    assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
    assert (move.tries_left, move.check_in, move.delay, move.missing, move.ended_by) == (1, 2.0, None, False, None)
    assert move.error == "Traceback\n  ...\nOSError: no disk"
    assert after(download, "queued", Unrecorded("429", retryable=True, after=60.0)).check_in == 60.0


def test_external_result_that_can_never_be_recorded_fails_the_job() -> None:
    spent = after(download, "downloading", Unrecorded("a\nOSError: no disk", retryable=True), tries_left=1)
    assert walked(spent) == (["fail"], "failed", "failed", "ABORTED")
    assert (spent.tries_left, spent.reason, spent.error, spent.check_in) == (
        0,
        "OSError: no disk",
        "a\nOSError: no disk",
        None,
    )
    assert walked(after(image, "running", Unrecorded("no", retryable=False))) == (
        ["fail", "bury"],
        "dead_letter",
        "failed",
        "ABORTED",
    )


def test_work_gone_from_the_external_system_is_cancelled_or_failed() -> None:
    gone = after(download, "downloading", GoneExternally("by hand"))
    assert walked(gone) == (["cancel"], "canceled", "failed", "ABORTED")
    assert (gone.reason, gone.actor, gone.tries_left) == ("by hand", "worker-1", 3)
    failed = after(image, "running", GoneExternally("by hand"))
    assert (walked(failed), failed.error) == ((["fail", "bury"], "dead_letter", "failed", "ABORTED"), "by hand")
    assert walked(after(delivery, "STREAMING", GoneExternally("by hand"))) == (["fail"], "FAILED", "failed", "ABORTED")


def test_failure_records_whether_the_work_was_seen() -> None:
    assert after(download, "queued", FailedFinally("tracker", seen=True)).missing is False
    assert after(download, "queued", FailedFinally("missing_external_job")).missing is None
