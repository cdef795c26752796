"""What becomes of a job after each outcome, rule by rule."""

from dataclasses import replace
from typing import Any

import pytest

from interlock.backoff import Backoff
from interlock.errors import TransitionRefused
from interlock.job import Job, Status
from interlock.lifecycle import Lifecycle
from interlock.move import Move, Policy, decide, decide_take
from interlock.outcome import (
    Advanced,
    Cancelled,
    Errored,
    Failed,
    Finished,
    Gone,
    Handed,
    Held,
    Looked,
    Lost,
    Outcome,
    Rejected,
    Released,
    Returned,
    Snoozed,
    Started,
    Unrecorded,
)

from .model import SIX, make_execution, make_job

standard, task, delivery, download, image = (SIX[name] for name in ("standard", "task", "delivery", "download", "image"))


def after(lifecycle: Lifecycle, state: str, outcome: Outcome, status: Status = "IN_PROGRESS", *, policy: Policy | None = None, **job: Any) -> Move:
    policy = policy or Policy(backoff=Backoff(jitter=False))
    return decide(lifecycle, make_job(lifecycle, state, **job), make_execution(state, status), outcome, policy, 0.5, actor="worker-1")


def walked(move: Move) -> tuple[list[str], str, str, str]:
    return [arrow.event for arrow in move.path], move.state, move.phase, move.to_status


# ---------------------------------------------------------------- going on
def test_a_start_walks_its_arrow_where_it_is_drawn_and_wanted() -> None:
    assert walked(after(delivery, "CLAIMED", Started(), "LEASED")) == (["start"], "DOWNLOADING", "running", "IN_PROGRESS")
    assert walked(after(standard, "RUNNING", Started(), "LEASED")) == ([], "RUNNING", "running", "IN_PROGRESS")
    assert walked(after(download, "queued", Started(walks=False), "LEASED")) == ([], "queued", "running", "IN_PROGRESS")
    assert walked(after(download, "queued", Started())) == (["start"], "downloading", "running", "IN_PROGRESS")


def test_a_job_advances_along_drawn_arrows_only() -> None:
    assert walked(after(delivery, "DOWNLOADING", Advanced("STREAMING"))) == (["advance"], "STREAMING", "running", "IN_PROGRESS")
    assert walked(after(delivery, "STREAMING", Advanced("STREAMING"))) == ([], "STREAMING", "running", "IN_PROGRESS")
    with pytest.raises(TransitionRefused, match="from there a job advances to no stage, not to DOWNLOADING"):
        after(delivery, "STREAMING", Advanced("DOWNLOADING"))


def test_work_that_goes_on_elsewhere_changes_no_state() -> None:
    move = after(download, "queued", Handed("torrent", 15.0))
    assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
    assert (move.external_id, move.check_in, move.ended_by) == ("torrent", 15.0, None)


def test_a_look_at_work_elsewhere_gives_it_back_and_says_whether_it_was_there() -> None:
    for seen, missing in ((True, False), (False, True), (None, None)):
        move = after(download, "queued", Looked(15.0, seen=seen))
        assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
        assert (move.check_in, move.missing, move.external_id, move.tries_left, move.ended_by) == (15.0, missing, None, 3, None)


def test_work_elsewhere_that_has_begun_walks_start_where_it_is_drawn() -> None:
    begun = Looked(15.0, seen=True, begun=True)
    move = after(download, "queued", begun)
    assert walked(move) == (["start"], "downloading", "running", "IN_PROGRESS")
    assert (move.check_in, move.missing) == (15.0, False)
    assert walked(after(download, "downloading", begun)) == ([], "downloading", "running", "IN_PROGRESS")
    assert walked(after(standard, "RUNNING", begun)) == ([], "RUNNING", "running", "IN_PROGRESS")


# ---------------------------------------------------------------- success
def test_a_value_without_a_boundary_ends_the_job_at_once() -> None:
    move = after(standard, "RUNNING", Returned('"v"', boundary=False))
    assert walked(move) == (["succeed"], "SUCCEEDED", "succeeded", "DONE")
    assert (move.result, move.ended_by, move.tries_left) == ('"v"', "succeed", 3)


def test_a_value_with_a_boundary_is_committed_first_and_finished_later() -> None:
    committed = after(standard, "RUNNING", Returned('"v"', boundary=True))
    assert walked(committed) == ([], "RUNNING", "running", "COMMITTED")
    assert (committed.result, committed.ended_by) == ('"v"', None)
    assert walked(after(standard, "RUNNING", Finished(), "COMMITTED")) == (["succeed"], "SUCCEEDED", "succeeded", "DONE")


def test_a_finish_that_is_given_up_still_succeeds_and_says_so() -> None:
    move = after(standard, "RUNNING", Finished("no mail server"), "COMMITTED")
    assert (move.phase, move.error, move.reason, move.ended_by) == ("succeeded", "no mail server", "finish_failed", "succeed")


@pytest.mark.parametrize("boundary", [True, False])
def test_a_value_returned_where_success_is_not_drawn_fails_before_the_commit(boundary: bool) -> None:
    move = after(delivery, "DOWNLOADING", Returned("1", boundary=boundary))
    assert walked(move) == (["fail"], "FAILED", "failed", "ABORTED")
    assert move.error == "A value was returned in DOWNLOADING, which draws no `succeed`: a job of delivery succeeds from STREAMING."
    assert (move.result, move.tries_left) == (None, 3)


def test_work_elsewhere_that_ends_before_anyone_saw_it_begin_walks_both_arrows() -> None:
    done = after(download, "queued", Returned('"v"', boundary=False, begins=True))
    assert walked(done) == (["start", "succeed"], "completed", "succeeded", "DONE")
    assert (done.result, done.ended_by, done.missing) == ('"v"', "succeed", False)
    committed = after(download, "queued", Returned('"v"', boundary=True, begins=True))
    assert walked(committed) == (["start"], "downloading", "running", "COMMITTED")
    assert (committed.result, committed.ended_by, committed.missing) == ('"v"', None, False)
    assert walked(after(download, "downloading", Returned("1", boundary=False, begins=True))) == (["succeed"], "completed", "succeeded", "DONE")
    assert walked(after(standard, "RUNNING", Returned("1", boundary=False, begins=True))) == (["succeed"], "SUCCEEDED", "succeeded", "DONE")


def test_only_work_elsewhere_begins_by_ending() -> None:
    assert walked(after(download, "queued", Returned("1", boundary=False))) == (["fail"], "failed", "failed", "ABORTED")
    assert walked(after(delivery, "CLAIMED", Returned("1", boundary=False, begins=True))) == (["fail"], "FAILED", "failed", "ABORTED")
    assert after(standard, "RUNNING", Returned("1", boundary=False)).missing is None


# ---------------------------------------------------------------- errors
def test_a_retryable_error_spends_a_try_and_waits_out_its_backoff() -> None:
    move = after(delivery, "STREAMING", Errored("Traceback\n  ...\nTimeout: slow", retryable=True), tries_left=2)
    assert walked(move) == (["retry"], "QUEUED", "pending", "ABORTED")
    assert (move.tries_left, move.delay, move.ended_by, move.reason) == (1, 2.0, "retry", "Timeout: slow")
    assert move.error == "Traceback\n  ...\nTimeout: slow"


def test_a_process_that_died_is_no_word_of_the_handler_and_goes_back_as_a_lost_lease_does() -> None:
    """Where an exception is final, a crash is not: it costs a try, until there is none."""
    crash = Errored("its process was killed", retryable=True, crashed=True)
    move = after(task, "running", crash, tries_left=2)
    assert (walked(move), move.tries_left, move.ended_by) == ((["lose"], "pending", "pending", "ABORTED"), 1, "lose")
    assert walked(after(task, "running", crash, tries_left=1)) == (["fail"], "error", "failed", "ABORTED")
    assert walked(after(task, "running", replace(crash, crashed=False), tries_left=2)) == (["fail"], "error", "failed", "ABORTED")
    assert walked(after(standard, "RUNNING", crash, tries_left=2)) == (["retry"], "PENDING", "pending", "ABORTED")


def test_a_kind_may_ask_for_its_own_delay() -> None:
    assert after(standard, "RUNNING", Errored("429", retryable=True, after=60.0)).delay == 60.0
    assert after(standard, "RUNNING", Errored("429", retryable=True, after=0.0)).delay == 0.0


def test_an_error_may_lengthen_the_backoff_and_never_shorten_it() -> None:
    for asked, waits in ((60.0, 60.0), (1.0, 2.0), (0.0, 2.0)):
        assert after(standard, "RUNNING", Errored("429", retryable=True, at_least=asked), tries_left=2).delay == waits
        assert after(download, "queued", Unrecorded("429", retryable=True, at_least=asked), tries_left=2).check_in == waits


def test_an_error_waits_where_it_runs_if_it_can() -> None:
    move = after(download, "queued", Errored("refused", retryable=True))
    assert walked(move) == ([], "queued", "pending", "ABORTED")
    assert (move.ended_by, move.delay) == ("retry", 1.0)


def test_an_error_rests_where_a_failure_can() -> None:
    move = after(image, "running", Errored("500", retryable=True))
    assert walked(move) == (["fail"], "failed", "pending", "ABORTED")
    assert (move.tries_left, move.delay, move.ended_by) == (2, 1.0, "fail")


def test_an_error_of_the_last_try_ends_the_job() -> None:
    spent = after(image, "running", Errored("500", retryable=True), tries_left=1)
    assert walked(spent) == (["fail", "bury"], "dead_letter", "failed", "ABORTED")
    assert (spent.tries_left, spent.ended_by, spent.delay) == (0, "bury", None)
    assert walked(after(standard, "RUNNING", Errored("500", retryable=True), tries_left=1)) == (["fail"], "FAILED", "failed", "ABORTED")


def test_an_error_is_final_where_no_retry_is_drawn_at_all() -> None:
    assert walked(after(task, "running", Errored("500", retryable=True))) == (["fail"], "error", "failed", "ABORTED")
    assert walked(after(download, "downloading", Errored("500", retryable=True))) == (["fail"], "failed", "failed", "ABORTED")


def test_a_failure_that_is_no_errors_fault_spends_no_try() -> None:
    assert after(standard, "RUNNING", Failed("no such file")).tries_left == 3
    assert after(standard, "RUNNING", Errored("404", retryable=False)).tries_left == 3


def test_a_rejection_walks_its_arrow_or_else_fails() -> None:
    assert walked(after(image, "running", Rejected("unsafe"))) == (["reject"], "rejected", "failed", "ABORTED")
    assert walked(after(delivery, "CLAIMED", Rejected("blocked"), "LEASED")) == (["fail"], "FAILED", "failed", "ABORTED")


def test_what_was_done_elsewhere_and_cannot_be_written_down_is_looked_at_again_at_the_price_of_a_try() -> None:
    move = after(download, "queued", Unrecorded("Traceback\n  ...\nOSError: no disk", retryable=True), tries_left=2)
    assert walked(move) == ([], "queued", "running", "IN_PROGRESS")
    assert (move.tries_left, move.check_in, move.delay, move.missing, move.ended_by) == (1, 2.0, None, False, None)
    assert move.error == "Traceback\n  ...\nOSError: no disk"
    assert after(download, "queued", Unrecorded("429", retryable=True, after=60.0)).check_in == 60.0


def test_what_can_never_be_written_down_fails_the_job() -> None:
    spent = after(download, "downloading", Unrecorded("a\nOSError: no disk", retryable=True), tries_left=1)
    assert walked(spent) == (["fail"], "failed", "failed", "ABORTED")
    assert (spent.tries_left, spent.reason, spent.error, spent.check_in) == (0, "OSError: no disk", "a\nOSError: no disk", None)
    assert walked(after(image, "running", Unrecorded("no", retryable=False))) == (["fail", "bury"], "dead_letter", "failed", "ABORTED")


def test_what_is_gone_elsewhere_is_cancelled_where_that_is_drawn_and_fails_elsewhere() -> None:
    gone = after(download, "downloading", Gone("by hand"))
    assert walked(gone) == (["cancel"], "canceled", "failed", "ABORTED")
    assert (gone.reason, gone.actor, gone.tries_left) == ("by hand", "worker-1", 3)
    failed = after(image, "running", Gone("by hand"))
    assert (walked(failed), failed.error) == ((["fail", "bury"], "dead_letter", "failed", "ABORTED"), "by hand")
    assert walked(after(delivery, "STREAMING", Gone("by hand"))) == (["fail"], "FAILED", "failed", "ABORTED")


def test_a_failure_says_whether_the_work_was_seen() -> None:
    assert after(download, "queued", Failed("tracker", seen=True)).missing is False
    assert after(download, "queued", Failed("missing_external_job")).missing is None


# ---------------------------------------------------------------- lost leases
def test_a_lost_lease_spends_a_try_and_is_due_at_once() -> None:
    for lifecycle, state, event in ((task, "running", "lose"), (delivery, "DOWNLOADING", "retry"), (image, "running", "fail")):
        move = after(lifecycle, state, Lost())
        assert ([arrow.event for arrow in move.path], move.phase, move.ended_by) == ([event], "pending", event)
        assert (move.lost, move.tries_left, move.delay, move.error) == (True, 2, 0.0, "lease lost")


@pytest.mark.parametrize("tries", range(1, 8))
@pytest.mark.parametrize("died", ["the worker", "a group, then alone"])
def test_rule_31_a_job_that_ends_every_process_runs_as_often_as_it_has_tries(tries: int, died: str) -> None:
    """Whoever counts the deaths: the keeper that finds a lease lost, or the worker whose child has died."""
    left, losses, runs = tries, 0, 0
    while True:
        runs += 1
        grouped = losses == 1 and left > 1
        crash = Errored("its process died", retryable=True, crashed=True, shared=grouped)
        move = after(standard, "RUNNING", crash if losses and died != "the worker" else Lost(), tries=tries, tries_left=left, lease_losses=losses)
        left, losses = move.tries_left, losses + move.lost
        if move.phase == "failed":
            break
    assert (runs, left) == (tries, 0)


def test_rule_31_a_job_that_dies_beside_others_pays_only_if_it_dies_alone_too() -> None:
    beside = Errored("its process died", retryable=True, crashed=True, shared=True)
    alone = replace(beside, shared=False)
    second = after(standard, "RUNNING", beside, tries_left=2, lease_losses=1)
    assert (second.tries_left, second.lost, second.delay, second.phase, second.error) == (2, True, 0.0, "pending", "its process died")
    third = after(standard, "RUNNING", alone, tries=5, tries_left=4, lease_losses=2)
    assert (third.tries_left, third.lost) == (2, True)
    fourth = after(standard, "RUNNING", alone, tries=5, tries_left=2, lease_losses=3)
    assert (fourth.tries_left, fourth.lost) == (1, False)
    raised = after(standard, "RUNNING", Errored("500", retryable=True), tries=5, tries_left=4, lease_losses=2)
    assert (raised.tries_left, raised.lost) == (3, False)


def test_a_lease_lost_in_a_waiting_state_leaves_the_job_there() -> None:
    move = after(download, "queued", Lost(), "LEASED")
    assert (move.path, move.state, move.phase, move.ended_by) == ((), "queued", "pending", "lose")


def test_a_lease_lost_for_the_last_time_fails_the_job() -> None:
    move = after(image, "running", Lost(), tries_left=1)
    assert walked(move) == (["fail", "bury"], "dead_letter", "failed", "ABORTED")
    assert (move.lost, move.tries_left, move.error) == (True, 0, "lease lost")


def test_a_kind_may_fail_or_hold_what_lost_its_lease() -> None:
    failed = after(standard, "RUNNING", Lost(), policy=Policy(on_lost_lease="fail"))
    assert (failed.state, failed.lost, failed.held_reason) == ("FAILED", True, None)
    held = after(standard, "RUNNING", Lost(), policy=Policy(on_lost_lease="hold"), tries_left=1)
    assert (held.state, held.phase, held.lost, held.held_reason) == ("PENDING", "pending", True, "lease lost")


# ---------------------------------------------------------------- given back
@pytest.mark.parametrize(("outcome", "delay"), [(Released("stopping"), 0.0), (Snoozed(90.0, "stopping"), 90.0)])
def test_what_is_given_back_spends_no_try(outcome: Outcome, delay: float) -> None:
    for lifecycle, state, events, ended_by in (
            (standard, "RUNNING", ["lose"], "lose"), (delivery, "STREAMING", ["retry"], "retry"),
            (download, "queued", [], "lose"), (image, "running", ["fail"], "fail")):
        move = after(lifecycle, state, outcome, tries_left=1)
        assert ([arrow.event for arrow in move.path], move.ended_by, move.phase) == (events, ended_by, "pending")
        assert (move.tries_left, move.delay, move.error, move.lost, move.reason) == (1, delay, None, False, "stopping")
    with pytest.raises(TransitionRefused, match="it cannot be given back"):
        after(download, "downloading", outcome)


def test_a_held_job_waits_for_an_operator_or_fails_where_it_cannot_wait() -> None:
    move = after(standard, "RUNNING", Held("was it sent?"), tries_left=1)
    assert (move.state, move.phase, move.held_reason, move.tries_left) == ("PENDING", "pending", "was it sent?", 1)
    assert walked(after(download, "downloading", Held("was it sent?"))) == (["fail"], "failed", "failed", "ABORTED")


# ---------------------------------------------------------------- asked to stop
@pytest.mark.parametrize("outcome", [Lost(), Errored("e", retryable=True), Released("r"), Snoozed(1.0, "r"), Held("h")])
def test_a_job_that_was_asked_to_stop_does_not_wait_again(outcome: Outcome) -> None:
    direct = after(standard, "RUNNING", outcome, asked=True)
    assert walked(direct) == (["cancel"], "CANCELLED", "failed", "ABORTED")
    assert (direct.actor, direct.reason, direct.ended_by, direct.held_reason, direct.delay) == ("operator:ann", "not needed", "cancel", None, None)
    assert direct.lost == isinstance(outcome, Lost)
    behind = after(delivery, "STREAMING", outcome, asked=True)
    assert walked(behind) == (["retry", "cancel"], "CANCELLED", "failed", "ABORTED")
    in_place = after(download, "queued", outcome, asked=True)
    assert walked(in_place) == (["cancel"], "canceled", "failed", "ABORTED")
    undrawn = after(image, "running", outcome, asked=True)
    assert undrawn.heard
    assert replace(undrawn, heard=False) == after(image, "running", outcome)


def test_a_job_that_was_asked_to_stop_may_still_succeed_or_fail() -> None:
    assert after(standard, "RUNNING", Returned("1", boundary=False), asked=True).state == "SUCCEEDED"
    assert after(standard, "RUNNING", Failed("f"), asked=True).state == "FAILED"
    assert after(standard, "RUNNING", Errored("e", retryable=False), asked=True).state == "FAILED"


def test_a_holder_that_stops_on_request_says_who_asked() -> None:
    move = after(delivery, "CLAIMED", Cancelled("changed my mind", "user:7"), "LEASED")
    assert walked(move) == (["lose", "cancel"], "CANCELLED", "failed", "ABORTED")
    assert (move.actor, move.reason, move.ended_by, move.tries_left) == ("user:7", "changed my mind", "cancel", 3)
    with pytest.raises(TransitionRefused, match="no `cancel` is drawn from there, nor from where it would wait again"):
        after(image, "running", Cancelled(None, "user:7"))


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize("outcome", [
    Lost(), Failed("f"), Errored("e", retryable=True), Rejected("r"), Released("r"), Snoozed(1.0, "r"), Cancelled(None, "x"), Held("h"),
    Returned("1", boundary=True), Handed("x", 1.0), Started(), Looked(1.0, seen=True), Unrecorded("e", retryable=True), Gone("g"),
    Returned("1", boundary=True, begins=True)])
def test_what_is_committed_is_never_aborted_or_committed_again(outcome: Outcome) -> None:
    with pytest.raises(TransitionRefused, match="past its commit it is finished, never aborted or repeated"):
        after(standard, "RUNNING", outcome, "COMMITTED")


@pytest.mark.parametrize("outcome", [
    Returned("1", boundary=False), Advanced("RUNNING"), Handed("x", 1.0), Finished(), Looked(1.0, seen=True), Unrecorded("e", retryable=True)])
def test_an_outcome_needs_its_status(outcome: Outcome) -> None:
    with pytest.raises(TransitionRefused, match=f"{type(outcome).__name__} needs one that is"):
        after(standard, "RUNNING", outcome, "LEASED")


@pytest.mark.parametrize("status", ["DONE", "ABORTED"])
def test_what_has_ended_never_moves_again(status: Status) -> None:
    with pytest.raises(TransitionRefused, match="it has ended"):
        after(standard, "RUNNING", Failed("f"), status)


def test_a_job_in_a_state_where_nobody_works_is_not_moved() -> None:
    with pytest.raises(TransitionRefused, match="no job is held in that state"):
        after(standard, "PENDING", Failed("f"))


# ---------------------------------------------------------------- keys and takes
def test_the_key_is_released_on_the_way_into_a_listed_state() -> None:
    policy = Policy(key_until=("dead_letter",))
    assert after(image, "running", Failed("f"), policy=policy).releases_key
    assert not after(image, "running", Errored("e", retryable=True), policy=policy).releases_key
    assert after(image, "running", Failed("f"), policy=Policy(key_until=("failed",))).releases_key


def take(lifecycle: Lifecycle, job: Job, event: Any, policy: Policy | None = None) -> Any:
    return decide_take(lifecycle, job, event, policy or Policy(), actor="operator:ann", reason="why")


def test_a_waiting_job_is_taken_along_a_drawn_arrow() -> None:
    taken = take(delivery, make_job(delivery), "cancel", Policy(key_until=("CANCELLED",)))
    assert (taken.arrow.target, taken.phase, taken.attempt, taken.version, taken.kind) == ("CANCELLED", "failed", 1, 0, "kind")
    assert (taken.actor, taken.reason, taken.releases_key) == ("operator:ann", "why", True)
    assert take(delivery, make_job(delivery), "expire").arrow.event == "expire"
    assert take(image, make_job(image), "reject").arrow.target == "rejected"


def test_only_a_waiting_job_is_taken_and_only_where_it_is_drawn() -> None:
    with pytest.raises(TransitionRefused, match="Job job is running in queued: `cancel` takes only a job that waits"):
        take(download, make_job(download, "queued", phase="running"), "cancel")
    with pytest.raises(TransitionRefused, match="Job job is failed in CANCELLED"):
        take(delivery, make_job(delivery, "CANCELLED"), "cancel")
    with pytest.raises(TransitionRefused, match="waits in failed, where the lifecycle image draws no `reject`"):
        take(image, make_job(image, "failed"), "reject")
