"""Why a job is where it is, in a sentence, with the reasons that a look at the database gives."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from .job import AuditEntry, Execution, Job
from .store import Store
from .suspects import runs_grouped


@dataclass(slots=True)
class Explanation:
    """What is the matter with a job, and what will happen next."""

    sentence: str
    reasons: list[str]


def explain(store: Store, id: str) -> Explanation:
    """Look at one job, its executions, its history and the workers that could carry it."""
    job, executions, history, now = store.get(id), store.executions(id), store.history(id), store.now()
    tell: dict[str, Callable[[], str]] = {
        "pending": lambda: _waiting(store, job, now),
        "running": lambda: _running(store, job, executions[-1], now) if executions else "It runs.",
        "succeeded": lambda: f"It succeeded in {job.state} at attempt {job.attempt}{_unfinished(executions)}.",
        "failed": lambda: f"It ended in {job.state} at attempt {job.attempt} and will not run again; redrive makes a new job of it.",
    }
    reasons = _reasons(job, history) + (_calls(store, job, executions, now) if not job.ended else [])
    return Explanation(f"Job {job.id} ({job.kind}) is in {job.state}. {tell[job.phase]()}", reasons)


def _waiting(store: Store, job: Job, now: datetime) -> str:
    if job.held_at is not None:
        return f"It is held until someone releases it: {job.held_reason}."
    if job.cancel_requested_at is not None:
        return "It was asked to stop, and ends when its lifecycle lets it."
    if job.expires_at is not None and job.expires_at <= now:
        return "Its time to live is over: the keeper will expire it."
    if job.due_at > now:
        return f"It waits until {job.due_at:%Y-%m-%d %H:%M:%S} UTC, {(job.due_at - now).total_seconds():.0f} s from now."
    if not _served(store, job):
        return f"It is due, and no live worker serves the kind {job.kind} in the queue {job.queue}: start one."
    return "It is due, and waits for a free slot."


def _running(store: Store, job: Job, execution: Execution, now: datetime) -> str:
    left = (execution.lease_expires_at - now).total_seconds()
    who = f"{execution.lease_owner} holds attempt {execution.attempt} ({execution.status})"
    if execution.external_id is not None and execution.status != "COMMITTED":
        return _elsewhere(store, job, execution, now)
    if left > 0 and job.cancel_requested_at is not None:
        return f"{who}. It was asked to stop; its worker stops it at the next renewal of the lease.{_progress(execution)}"
    if left > 0:
        return f"{who}; its lease lasts {left:.0f} s more unless it is renewed.{_progress(execution)}"
    return f"{who}, whose lease ended {-left:.0f} s ago: the next keeper that knows {execution.kind} takes it over."


def _unfinished(executions: list[Execution]) -> str:
    """The error of the finish function of a succeeded job, if it failed."""
    error = executions[-1].error if executions else None
    if not error or not error.strip():
        return ""
    return f", but its finish function failed: {error.strip().splitlines()[-1].strip().rstrip('.')}"


def _progress(execution: Execution) -> str:
    """The progress that the handler reported."""
    if execution.progress is None:
        return ""
    done, total, note = execution.progress
    far = f"{done:,.12g}" if total is None else f"{done:,.12g} of {total:,.12g}"
    return f" It has reported {far} {note}".rstrip() + "."


def _elsewhere(store: Store, job: Job, execution: Execution, now: datetime) -> str:
    if job.cancel_requested_at is not None:
        return f"The work goes on outside as {execution.external_id}; it was asked to stop, which a worker that knows {job.kind} does within a second or so."
    told = f"The work goes on outside as {execution.external_id}"
    if execution.missing_since is not None:
        told += f", but for {(now - execution.missing_since).total_seconds():.0f} s it has not been known there"
    down = next((one for one in store.outside() if one.kind == job.kind and one.error is not None), None)
    if down is not None:
        told += f". The outside could not be asked {down.failures} time(s) in a row: {down.error.rstrip('.') if down.error else ''}"
    left = (execution.lease_expires_at - now).total_seconds()
    return f"{told}; it is looked at in {max(left, 0):.0f} s." if down is None else f"{told}. It is asked again in {max(left, 0):.0f} s."


def _served(store: Store, job: Job) -> bool:
    return any(worker.alive and job.kind in worker.facts.kinds and job.queue in worker.facts.queues for worker in store.workers())


def _reasons(job: Job, history: list[AuditEntry]) -> list[str]:
    reasons = [f"{entry.at:%H:%M:%S} {entry.event}: {entry.reason}" for entry in history if entry.reason][-5:]
    if job.lease_losses and job.phase == "pending":
        where = "in a separate process with other such jobs" if runs_grouped(job) else "alone"
        reasons.append(
            f"It has lost {job.lease_losses} lease(s), and may have killed its worker: its next attempt runs {where}.")
    if job.phase == "pending" and job.tries_left < job.tries:
        reasons.append(f"{job.tries - job.tries_left} of {job.tries} tries are spent.")
    return reasons


def _calls(store: Store, job: Job, executions: list[Execution], now: datetime) -> list[str]:
    """The external calls without a receipt. One is in doubt once the worker that made it no longer holds the job."""
    last = executions[-1] if executions and job.phase == "running" and executions[-1].lease_expires_at > now else None
    holder = None if last is None else (last.attempt, last.holder)
    asked = [receipt for receipt in store.receipts(job.id) if receipt.kind == "effect" and not receipt.applied]
    calling = [receipt.name for receipt in asked if (receipt.attempt, receipt.holder) == holder]
    doubtful = [receipt.name for receipt in asked if (receipt.attempt, receipt.holder) != holder]
    return ([f"The worker is calling {', '.join(calling)} now."] if calling else []) + (
        [f"No receipt says whether {', '.join(doubtful)} happened."] if doubtful else [])
