"""Decides the move that follows an outcome. No other module decides one."""

from dataclasses import replace
from typing import Literal

from ..errors import TransitionRefused
from .job import Job
from .lifecycle import Lifecycle
from .move_builder import MoveBuilder, OwnedExecution
from .outcome import (
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
from .projection import phase_of
from .suspects import runs_grouped, tries_after_crash, tries_after_loss, uncharged_losses
from .transition import Move, Policy, Take

LEASE_LOST_ERROR = "lease lost"


def decide(  # noqa: PLR0917 - in order: the job, what happened, the rules
    lifecycle: Lifecycle,
    job: Job,
    execution: OwnedExecution,
    outcome: Outcome,
    policy: Policy,
    random: float,
    *,
    actor: str,
) -> Move:
    """The move of an owned job after an outcome. `TransitionRefused`, with the reason, if the lifecycle allows none.

    `random` in [0, 1) jitters the backoff. The function reads no clock: a move has durations, and the store adds them
    to its own time.
    """
    builder = MoveBuilder(lifecycle, job, execution.holder, execution.status, policy, random, actor)
    builder.check(outcome)
    if isinstance(outcome, Handed | Looked | Unrecorded | GoneExternally):
        return _external(builder, outcome)
    match outcome:
        case Returned():
            move = _succeed(builder, outcome)
        case Started() | Advanced():
            move = _progress(builder, outcome)
        case Finished(error=error):
            move = builder.walk(
                "DONE", builder.require("succeed"), error=error, reason=None if error is None else "finish_failed"
            )
        case Errored():
            move = _error(builder, outcome)
        case FailedFinally() | Rejected():
            move = _end(builder, outcome)
        case Lost():
            move = _lose(builder)
        case Requeued() | Snoozed() | Held():
            move = _return_to_queue(builder, outcome)
        case CancelRequested(reason=reason, by=by):
            stopped = _cancel(replace(builder, actor=by), reason, "lose", "retry")
            move = stopped or builder.refuse(
                "`cancel` is not allowed from there, nor from the state to which the job would return"
            )
    return move


def decide_take(
    lifecycle: Lifecycle,
    job: Job,
    event: Literal["cancel", "expire", "reject"],
    policy: Policy,
    *,
    actor: str,
    reason: str | None,
) -> Take:
    """The transition of a waiting job.

    `TransitionRefused` if the job is not waiting, or if the lifecycle does not allow the event.
    """
    arrow = lifecycle.arrow(job.state, event)
    if job.phase != "pending" or job.state not in lifecycle.waiting:
        raise TransitionRefused(f"Job {job.id} is {job.phase} in {job.state}: `{event}` needs a job that waits.")
    if arrow is None:
        raise TransitionRefused(
            f"Job {job.id} waits in {job.state}: `{event}` is not allowed from {job.state} by the lifecycle "
            f"{lifecycle.name}."
        )
    phase = phase_of(lifecycle, arrow.target, live=False)
    return Take(
        job.id, job.version, job.attempt, job.kind, arrow, phase, actor, reason, arrow.target in policy.key_until
    )


def _progress(builder: MoveBuilder, outcome: Started | Advanced) -> Move:
    state = builder.job.state
    if isinstance(outcome, Started):
        start = builder.lifecycle.arrow(state, "start") if outcome.walks else None
        return builder.walk("IN_PROGRESS", *([start] if start else []))
    if outcome.stage == state:
        return builder.walk("IN_PROGRESS")
    stages = ", ".join(sorted(builder.lifecycle.advances(state))) or "no stage"
    arrow = builder.lifecycle.advance(state, outcome.stage) or builder.refuse(
        f"from there a job advances to {stages}, not to {outcome.stage}"
    )
    return builder.walk("IN_PROGRESS", arrow)


def _external(builder: MoveBuilder, outcome: Handed | Looked | Unrecorded | GoneExternally) -> Move:
    """The move for work in an external system: handed over, checked, done but not recorded, or cancelled there."""
    match outcome:
        case Handed(external_id=external_id, check_in=check_in, question=question):
            return replace(builder.walk("IN_PROGRESS", result=question), external_id=external_id, check_in=check_in)
        case Looked(check_in=check_in, seen=seen, begun=begun):
            start = builder.lifecycle.arrow(builder.job.state, "start") if begun else None
            return replace(
                builder.walk("IN_PROGRESS", *([start] if start else [])),
                check_in=check_in,
                missing=None if seen is None else not seen,
            )
        case Unrecorded(error=error, retryable=retryable):
            left = builder.tries_after
            if not retryable or not left:
                return builder.fail(error, tries_left=left, reason=_headline(error))
            return replace(
                builder.walk("IN_PROGRESS", tries_left=left, error=error),
                check_in=outcome.pause(builder.backoff(left)),
                missing=False,
            )
        case GoneExternally(reason=reason):
            cancel = builder.lifecycle.arrow(builder.job.state, "cancel")
            return builder.walk("ABORTED", cancel, reason=reason) if cancel else builder.fail(reason)


def _succeed(builder: MoveBuilder, outcome: Returned) -> Move:
    arrow = builder.lifecycle.arrow
    start = arrow(builder.job.state, "start") if outcome.begins else None
    succeed = arrow(builder.job.state, "succeed") or (arrow(start.target, "succeed") if start else None)
    if succeed is None:
        # Refuse before the commit: a committed value could never be finished.
        able = ", ".join(state for state in builder.lifecycle.states if builder.lifecycle.arrow(state, "succeed"))
        return builder.fail(
            f"The handler returned in {builder.job.state}, but the lifecycle {builder.lifecycle.name} allows "
            f"`succeed` only from {able}."
        )
    path = (start,) if start and succeed.source == start.target else ()
    move = (
        builder.walk("COMMITTED", *path, result=outcome.value, reason=outcome.reason)
        if outcome.boundary
        else builder.walk("DONE", *path, succeed, result=outcome.value, reason=outcome.reason)
    )
    return replace(move, missing=False) if outcome.begins else move


def _error(builder: MoveBuilder, outcome: Errored) -> Move:
    reason = _headline(outcome.error)
    events = ("retry", "lose") if outcome.crashed else ("retry",)
    if not outcome.retryable or not (outcome.crashed or builder.lifecycle.retryable(builder.job.state)):
        return builder.fail(outcome.error, reason=reason)
    if outcome.shared and runs_grouped(builder.job):
        return _lose(builder, outcome.error)
    left = tries_after_crash(builder.job) if outcome.crashed else builder.tries_after
    # Count the third loss, so that the second one is not charged twice.
    lost = outcome.crashed and uncharged_losses(builder.job) > 0
    if cancelled := _requested_cancel(builder, *events, tries_left=left, error=outcome.error):
        return replace(cancelled, lost=lost)
    path = builder.return_path(*events)
    if not left or path is None:
        return replace(builder.fail(outcome.error, tries_left=left, reason=reason), lost=lost)
    back = builder.walk(
        "ABORTED",
        *path,
        event="retry",
        tries_left=left,
        delay=outcome.pause(builder.backoff(left)),
        error=outcome.error,
        reason=reason,
    )
    return replace(back, lost=True) if lost else back


def _end(builder: MoveBuilder, outcome: FailedFinally | Rejected) -> Move:
    if isinstance(outcome, FailedFinally):
        return replace(builder.fail(outcome.reason), missing=False if outcome.seen else None)
    reject = builder.lifecycle.arrow(builder.job.state, "reject")
    return (
        builder.walk("ABORTED", reject, error=outcome.reason, reason=outcome.reason)
        if reject
        else builder.fail(outcome.reason)
    )


def _lose(builder: MoveBuilder, error: str = LEASE_LOST_ERROR) -> Move:
    left, answer, reason = tries_after_loss(builder.job), builder.policy.on_lost_lease, _headline(error)
    if cancelled := _requested_cancel(builder, "lose", "retry", tries_left=left, error=error):
        return replace(cancelled, lost=True)
    path = builder.return_path("lose", "retry")
    if answer == "fail" or path is None or (answer == "rerun" and not left):
        return replace(builder.fail(error, tries_left=left, reason=reason), lost=True)
    back = builder.walk("ABORTED", *path, event="lose", tries_left=left, delay=0.0, error=error, reason=reason)
    return replace(back, lost=True, held_reason=reason if answer == "hold" else None)


def _return_to_queue(builder: MoveBuilder, outcome: Requeued | Snoozed | Held) -> Move:
    if cancelled := _requested_cancel(builder, "lose", "retry"):
        return cancelled
    holds = isinstance(outcome, Held)
    path = builder.return_path("lose", "retry")
    if path is None and holds:
        return builder.fail(outcome.reason)
    if path is None:
        builder.refuse(
            "the lifecycle allows no `lose`, no `retry` and no `fail` to a resting state from there, so the job cannot "
            "return to its queue; it runs until it ends or its lease expires"
        )
    keeps_place = isinstance(outcome, Requeued) and not outcome.started
    back = builder.walk(
        "ABORTED",
        *path,
        event="lose",
        delay=None if keeps_place else outcome.after if isinstance(outcome, Snoozed) else 0.0,
        reason=outcome.reason,
    )
    return replace(back, held_reason=outcome.reason) if holds else back


def _requested_cancel(
    builder: MoveBuilder, *events: str, tries_left: int | None = None, error: str | None = None
) -> Move | None:
    """The cancellation of a job that has a cancel request and would return to a waiting state by one of these events.

    None if there is no request, or if the lifecycle allows no `cancel` on that path.
    """
    if builder.job.cancel_requested_at is None:
        return None
    requested = replace(builder, actor=builder.job.cancel_requested_by or builder.actor)
    return _cancel(requested, builder.job.cancel_reason, *events, tries_left=tries_left, error=error)


def _cancel(
    builder: MoveBuilder, reason: str | None, *events: str, tries_left: int | None = None, error: str | None = None
) -> Move | None:
    path = builder.return_path("cancel", *events)
    if path and path[0].event != "cancel":
        cancel = builder.lifecycle.arrow(path[0].target, "cancel")
        path = (*path, cancel) if cancel else None
    return builder.walk("ABORTED", *path, tries_left=tries_left, error=error, reason=reason) if path else None


def _headline(error: str) -> str:
    """The last line of an error: the exception of a traceback, or a plain sentence."""
    return error.strip().rpartition("\n")[2][:200]
