"""Explains why a job is in its state and what happens next, from the records in the database."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ..core.job import AuditEntry, Execution, Job
from ..core.suspects import runs_grouped
from ..errors import NotFound
from ..jobs.question import is_question
from ..store.contract import Store
from ..store.redrive_plan import redrive_in
from .explain_waiting import dependencies_reason, limit_reasons, pause_reason, schedule_reasons


@dataclass(slots=True)
class Explanation:
    """Why a job is in its state and what happens next, in a sentence, with reasons."""

    sentence: str
    reasons: list[str]


def explain(store: Store, id: str) -> Explanation:
    """Explain one job from its executions, its history and the workers that could run it."""
    job, executions, history, now = (
        store.inspect.get(id),
        store.inspect.executions(id),
        store.inspect.history(id),
        store.inspect.now(),
    )
    sentences: dict[str, Callable[[], str]] = {
        "pending": lambda: _waiting(store, job, now),
        "running": lambda: _running(store, job, executions[-1], now) if executions else "It is running.",
        "succeeded": lambda: f"It succeeded at attempt {job.attempt}{_unfinished(executions)}.",
        "failed": lambda: f"It ended at attempt {job.attempt}{_redriven(store, job, history)}",
    }
    reasons = (
        schedule_reasons(store, job)
        + _reasons(job, history)
        + (_calls(store, job, executions, now) if not job.ended else [])
    )
    return Explanation(f"Job {job.id} ({job.kind}) is in {job.state}. {sentences[job.phase]()}", reasons)


def _waiting(store: Store, job: Job, now: datetime) -> str:
    if job.held_at is not None:
        return f"It is held until someone releases it: {job.held_reason}."
    if job.cancel_requested_at is not None:
        return "It has a cancel request, and ends when its lifecycle allows it."
    if job.expires_at is not None and job.expires_at <= now:
        return "Its time to live is over: a worker expires it within about a second."
    paused = pause_reason(store, job)
    if job.blocked_at is None and job.due_at <= now:
        return _due(store, job, now) if paused is None else f"It is due. {paused}"
    if job.blocked_at is not None:
        reason = dependencies_reason(store, job)
    else:
        left = (job.due_at - now).total_seconds()
        reason = f"It waits until {job.due_at:%Y-%m-%d %H:%M:%S} UTC, {left:.0f} s from now."
    return reason if paused is None else f"{reason} {paused}"


def _due(store: Store, job: Job, now: datetime) -> str:
    if not _served(store, job):
        return f"It is due, and no live worker serves the kind {job.kind} in the queue {job.queue}: start one."
    if limits := limit_reasons(store, job, now):
        return f"It is due, and waits for its limits: {'; '.join(limits)}."
    return "It is due, and waits for a free slot."


def _running(store: Store, job: Job, execution: Execution, now: datetime) -> str:
    left = (execution.lease_expires_at - now).total_seconds()
    who = f"{execution.lease_owner} owns attempt {execution.attempt} ({execution.status})"
    if execution.external_id is not None and execution.status != "COMMITTED":
        return _external(store, job, execution, now)
    if left > 0 and job.cancel_requested_at is not None:
        return (
            f"{who}. It has a cancel request; its worker stops it when it next renews the lease.{_progress(execution)}"
        )
    if left > 0:
        return f"{who}; its lease expires in {left:.0f} s unless the worker renews it.{_progress(execution)}"
    return f"{who}, but its lease expired {-left:.0f} s ago: a worker that serves {execution.kind} takes it over."


def _unfinished(executions: list[Execution]) -> str:
    """The error of the finish function of a succeeded job, if it failed."""
    error = executions[-1].error if executions else None
    if not error or not error.strip():
        return ""
    return f", but its finish function failed: {error.strip().splitlines()[-1].strip().rstrip('.')}"


def _redriven(store: Store, job: Job, history: list[AuditEntry]) -> str:
    """Name the job that redrives a failed one, or say how to redrive it."""
    notes = [entry.reason or "" for entry in history if entry.event == "redrive" and entry.version == job.version]
    if not notes:
        return " and will not run again. To run it again, redrive it."
    new = redrive_in(notes[-1])
    try:
        return f". It was redriven as {new}, which is in {store.inspect.get(new).state}."
    except NotFound:
        return f". It was redriven as {new}, which was deleted."


def _progress(execution: Execution) -> str:
    """The progress that the handler reported."""
    if execution.progress is None:
        return ""
    done, total, note = execution.progress
    far = f"{done:,.12g}" if total is None else f"{done:,.12g} of {total:,.12g}"
    return f" It has reported {far} {note}".rstrip() + "."


def _external(store: Store, job: Job, execution: Execution, now: datetime) -> str:
    if is_question(execution):
        return _question(store, job, execution, now)
    sentence = f"The work runs in an external system as {execution.external_id}"
    if job.cancel_requested_at is not None:
        return f"{sentence}. It has a cancel request; a worker that serves {job.kind} stops it within about a second."
    if execution.missing_since is not None:
        missing = (now - execution.missing_since).total_seconds()
        sentence += f", but that system has not known it for {missing:.0f} s"
    down = next((one for one in store.external.work() if one.kind == job.kind and one.error is not None), None)
    if down is not None:
        error = down.error.rstrip(".") if down.error else ""
        sentence += f". The external system failed to answer {down.failures} time(s) in a row: {error}"
    left = (execution.lease_expires_at - now).total_seconds()
    return f"{sentence}. A worker checks it in {max(left, 0):.0f} s."


def _question(store: Store, job: Job, execution: Execution, now: datetime) -> str:
    if job.cancel_requested_at is not None:
        return f"It waited for an answer and has a cancel request; a worker that serves {job.kind} ends it."
    deadline = execution.next_check_at or execution.lease_expires_at
    until = f"{deadline:%Y-%m-%d %H:%M:%S} UTC"
    if execution.error is not None:
        error = execution.error.strip().rpartition("\n")[2].rstrip(".")
        return f"Nobody answered in time, and its default was not committed: {error}. A worker retries it at {until}."
    if deadline > now:
        then = "succeeds with its default" if "default" in execution.result else "fails"
        return f"It waits for an answer until {until}; nobody has answered yet. Without an answer it then {then}."
    served = "" if _served(store, job) else f", but no live worker serves the kind {job.kind}: start one"
    return f"It waited for an answer until {until}, and nobody answered. A worker ends it{served}."


def _served(store: Store, job: Job) -> bool:
    return any(
        worker.alive and job.kind in worker.facts.kinds and job.queue in worker.facts.queues
        for worker in store.workers.all()
    )


def _reasons(job: Job, history: list[AuditEntry]) -> list[str]:
    reasons = [f"{entry.at:%H:%M:%S} {entry.event}: {entry.reason}" for entry in history if entry.reason][-5:]
    if job.lease_losses and job.phase == "pending":
        where = "in a separate process with other such jobs" if runs_grouped(job) else "alone"
        reasons.append(
            f"It lost {job.lease_losses} lease(s) and may have killed its worker: its next attempt runs {where}."
        )
    if job.phase == "pending" and job.tries_left < job.tries:
        reasons.append(f"It has spent {job.tries - job.tries_left} of {job.tries} tries.")
    return reasons


def _calls(store: Store, job: Job, executions: list[Execution], now: datetime) -> list[str]:
    """The external calls without a receipt. One is in doubt once the worker that made it no longer owns the job."""
    last = executions[-1] if executions and job.phase == "running" and executions[-1].lease_expires_at > now else None
    holder = None if last is None else (last.attempt, last.holder)
    asked = [receipt for receipt in store.receipts.for_job(job.id) if receipt.kind == "effect" and not receipt.applied]
    calling = [receipt.name for receipt in asked if (receipt.attempt, receipt.holder) == holder]
    doubtful = [receipt.name for receipt in asked if (receipt.attempt, receipt.holder) != holder]
    return ([f"The worker is calling {', '.join(calling)} now."] if calling else []) + (
        [f"In doubt: no receipt shows whether {', '.join(doubtful)} happened."] if doubtful else []
    )
