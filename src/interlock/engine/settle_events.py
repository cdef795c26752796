"""Reports the results of settling, as events for metrics and logs and as notes in the job's audit."""

import logging

from ..core.error_policy import headline
from ..core.job import Job
from ..core.payload import clean
from ..core.transition import Move, Take
from ..store.types import Refusal
from ..telemetry import events
from .context import SettleContext
from .held_execution import HeldExecution

_log = logging.getLogger("interlock")


def report_move(context: SettleContext, execution: HeldExecution, move: Move) -> None:
    """Emit a `Transition` for every transition that was stored, and `AttemptEnded` if the attempt ended."""
    job, wants = execution.job, context.events.wants
    if wants(events.Transition):
        for arrow in move.path:
            context.events.emit(
                events.Transition(
                    job.id, job.kind, job.lifecycle, arrow.event, arrow.source, arrow.target, job.attempt, move.actor
                )
            )
    if move.ended_by == "succeed" and not context.events.wants_success:
        return
    handed = move.external_id is not None
    if (handed or move.ended_by is not None) and wants(events.AttemptEnded):
        _report_attempt(context, execution, move, "handed" if handed else move.ended_by or "")


def _report_attempt(context: SettleContext, execution: HeldExecution, move: Move, outcome: str) -> None:
    job, here = execution.job, not execution.ran_elsewhere
    context.events.emit(
        events.AttemptEnded(
            job.id,
            job.kind,
            job.queue,
            job.attempt,
            outcome,
            max((job.updated_at - job.due_at).total_seconds(), 0.0) if here else None,
            context.sleeper.monotonic() - execution.began if here else None,
            move.error.strip().rpartition("\n")[2][:200] if move.error else None,
            execution.last_exception if move.error else None,
            final=move.phase == "failed",
        )
    )


def report_take(context: SettleContext, job: Job, take: Take) -> None:
    """Emit the `Transition` of a waiting job that an operator or the maintenance loop ended."""
    arrow = take.arrow
    context.events.emit(
        events.Transition(
            job.id, job.kind, job.lifecycle, arrow.event, arrow.source, arrow.target, take.attempt + 1, take.actor
        )
    )


def report_refusal(context: SettleContext, execution: HeldExecution, move: Move, refusal: Refusal) -> str:
    """Emit `MoveRefused` and add a note to the audit. Returns a description of the stored row."""
    job, wanted = execution.job, f"{move.to_status} in {move.state}"
    row = refusal.error or (
        f"attempt {refusal.attempt}, holder {refusal.holder}, {refusal.status}, in {refusal.state}"
        if refusal.attempt
        else "deleted"
    )
    context.events.emit(events.MoveRefused(job.id, job.kind, move.attempt, wanted, row))
    add_note(context, job, "refused", _refusal_reason(move, refusal), attempt=job.attempt, actor=execution.owner)
    return row


def _refusal_reason(move: Move, refusal: Refusal) -> str:
    tried = f"tried to mark attempt {move.attempt} {move.to_status} (holder {move.holder})"
    if refusal.error is not None:
        return f"The worker {tried}, but the database cannot store it: {refusal.error}"
    if not refusal.attempt:
        return f"Stale worker: {tried}, but the row was deleted."
    other = "" if refusal.attempt == move.attempt else f"attempt {refusal.attempt}, "
    return f"Stale worker: {tried}, but the row is {refusal.status} ({other}holder {refusal.holder})."


def report_hook_failure(context: SettleContext, job: Job, state: str, error: Exception) -> None:
    """Emit `HookFailed`: the hook of a state raised, and the job was not moved."""
    context.events.emit(events.HookFailed(job.id, job.kind, state, error))


def note_hook_failure(
    context: SettleContext, job: Job, state: str, error: Exception, *, actor: str, retried_by: str, attempt: int | None
) -> None:
    """Record the first failure of a hook in the job's audit."""
    reason = f"the hook for {state} raised {headline(error)}; the {retried_by} retries it"
    add_note(context, job, "hook_failed", reason, actor=actor, attempt=attempt)


def add_note(
    context: SettleContext, job: Job, event: str, reason: str, *, actor: str, attempt: int | None = None
) -> None:
    """Add a note to a job's audit. An error is only logged, because the job is already settled."""
    try:
        context.store.control.add_note(job.id, attempt=attempt, event=event, actor=actor, reason=clean(reason))
    except Exception as error:  # noqa: BLE001 - the job itself is settled
        _log.warning("Job %s: the audit note %r could not be stored: %s", job.id, event, error)
