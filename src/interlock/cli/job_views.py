"""Prints jobs, executions and history: short in a terminal, complete in a pipe or with --full."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from ..core.job import AuditEntry, Execution, Job
from ..jobs.question import is_question
from . import output
from .arguments import format_age, last_line, progress
from .text_table import Column, cut


def print_jobs(jobs: Sequence[Job], ids: Mapping[str, str], now: datetime) -> None:
    """Print one line for each job."""
    if output.terminal_width() is None:
        output.print_table(
            ("id", "kind", "state", "attempt", "tries left", "queue", "due (UTC)", "progress"),
            [
                (
                    job.id,
                    job.kind,
                    _state(job),
                    job.attempt,
                    f"{job.tries_left}/{job.tries}",
                    job.queue,
                    None if job.ended else output.format_time(job.due_at),
                    progress(job.progress) if job.phase == "running" else None,
                )
                for job in jobs
            ],
        )
        return
    output.print_table(
        ("id", "kind", "state", "attempt", "left", Column("queue", spare=True), "detail"),
        [
            (
                ids[job.id],
                job.kind,
                _state(job),
                job.attempt,
                f"{job.tries_left}/{job.tries}",
                job.queue,
                _detail(job, now),
            )
            for job in jobs
        ],
    )


def print_full_jobs(jobs: Iterable[Job]) -> None:
    """Print every field of each job, with an empty line between jobs."""
    for number, job in enumerate(jobs):
        if number:
            output.print_line()
        print_job(job, full=True)


def _state(job: Job) -> str:
    if job.held_at is not None:
        return f"{job.state} (held)"
    return f"{job.state} (asked to stop)" if job.cancel_requested_at is not None and not job.ended else job.state


def _detail(job: Job, now: datetime) -> str | None:
    """The most useful detail for the job's state: when it is due, its progress, why it is held, or its error."""
    if job.held_at is not None:
        return job.held_reason
    if job.phase == "pending":
        left = (job.due_at - now).total_seconds()
        due = f"due in {format_age(left)}" if left > 0 else "due"
        return f"{due}: {last_line(job.last_error)}" if job.last_error else due
    if job.phase == "running":
        return progress(job.progress)
    return last_line(job.last_error) if job.phase == "failed" else None


# ---------------------------------------------------------------- one job
def print_job(job: Job, *, full: bool) -> None:
    """Print the fields of one job, one per line. Unless `full`, a terminal gets only the beginning of long values."""
    brief = output.terminal_width() is not None and not full
    payload, result = (
        None if value is None else _brief(_json(value), brief) for value in (dict(job.payload), job.result)
    )
    output.print_fields(
        (
            ("id", job.id),
            ("kind", job.kind),
            ("state", f"{_state(job)} ({job.phase})"),
            ("lifecycle", f"{job.lifecycle}, version {job.lifecycle_version}"),
            ("payload", payload),
            ("queue", f"{job.queue}, priority {job.priority}"),
            ("tries", f"{job.tries_left} of {job.tries} left, leases lost: {job.lease_losses}"),
            ("progress", progress(job.progress) if job.phase == "running" else None),
            (
                "idempotency key",
                job.idempotency_key and f"{job.idempotency_key}{' (freed)' if job.key_freed else ''}",
            ),
            ("unique key", job.unique_key),
            ("tags", ", ".join(f"{name}={value}" for name, value in sorted(job.tags.items())) or None),
            ("created", output.format_time(job.created_at)),
            ("due", None if job.ended else output.format_time(job.due_at)),
            ("expires", output.format_time(job.expires_at)),
            ("finished", output.format_time(job.finished_at)),
            ("held", job.held_at and f"{output.format_time(job.held_at)}: {job.held_reason}"),
            ("asked to stop", _asked_to_stop(job)),
            ("redrive of", job.redrive_of),
            ("result", result),
            ("last error", last_line(job.last_error) if brief else job.last_error),
        )
    )


def _asked_to_stop(job: Job) -> str | None:
    if job.cancel_requested_at is None:
        return None
    why = job.cancel_reason or "no reason given"
    return f"{output.format_time(job.cancel_requested_at)} by {job.cancel_requested_by}: {why}"


BRIEF = 200
"""Characters of a payload or a result that a terminal gets."""


def _brief(text: str, brief: bool) -> str:
    return cut(text, BRIEF) if brief else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def print_executions(executions: Sequence[Execution], *, full: bool) -> None:
    """Print one line for each attempt, or with `full` every field."""
    if full:
        for number, one in enumerate(executions):
            if number:
                output.print_line()
            _execution_pairs(one)
    elif output.terminal_width() is None:
        output.print_table(
            ("attempt", "holder", "status", "state", "ended by", "owner", "lease until (UTC)", "error"),
            [
                (
                    one.attempt,
                    one.holder,
                    one.status,
                    one.state,
                    one.ended_by,
                    one.lease_owner,
                    output.format_time(one.lease_expires_at) if one.live else None,
                    one.error,
                )
                for one in executions
            ],
        )
    else:
        output.print_table(
            ("attempt", "status", Column("state", spare=True), "ended by", "owner", "detail"),
            [
                (one.attempt, one.status, one.state, one.ended_by, one.lease_owner, _of_attempt(one))
                for one in executions
            ],
        )


def _of_attempt(one: Execution) -> str | None:
    """The last line of the attempt's error; while it runs, its progress and the end of its lease."""
    if not one.live:
        return last_line(one.error)
    if is_question(one):
        return f"waits for an answer until {output.format_time(one.lease_expires_at)}"
    leased = f"leased until {_clock(one.lease_expires_at)}"
    return f"{done}, {leased}" if (done := progress(one.progress)) else leased


def _execution_pairs(one: Execution) -> None:
    output.print_fields(
        (
            ("attempt", one.attempt),
            ("holder", one.holder),
            ("status", one.status),
            ("state", one.state),
            ("ended by", one.ended_by),
            ("owner", one.lease_owner),
            ("leased", output.format_time(one.leased_at)),
            ("started", output.format_time(one.started_at)),
            ("committed", output.format_time(one.committed_at)),
            ("finished", output.format_time(one.finished_at)),
            ("lease until", output.format_time(one.lease_expires_at) if one.live else None),
            ("external id", one.external_id),
            ("progress", progress(one.progress)),
            ("usage", _json(dict(one.usage)) if one.usage else None),
            (_result_name(one), None if one.result is None else _json(one.result)),
            ("error", one.error),
        ),
        indent=2,
    )


def _result_name(one: Execution) -> str:
    return "question" if one.committed_at is None and is_question(one) else "result"


def print_history(history: Sequence[AuditEntry], *, full: bool) -> None:
    """Print one line for each entry; a terminal omits values that repeat the line above."""
    if output.terminal_width() is None:
        output.print_table(
            ("at", "version", "attempt", "event", "from", "to", "actor", "reason"),
            [
                (
                    output.format_time(one.at),
                    _place(one),
                    one.attempt,
                    one.event,
                    one.from_state,
                    one.to_state,
                    one.actor,
                    one.reason,
                )
                for one in history
            ],
        )
    elif full:
        output.print_fields((str(output.format_time(one.at)), _entry(one)) for one in history)
    else:
        output.print_table(
            ("at", "attempt", "event", "to", "actor", Column("reason", "wrap")),
            [
                (
                    f"{one.at.astimezone(UTC):%m-%d %H:%M:%S}",
                    one.attempt,
                    one.event,
                    one.to_state,
                    one.actor,
                    _brief_reason(one),
                )
                for one in history
            ],
        )


def _place(one: AuditEntry) -> str:
    """Return the version after the transition; for a note, followed by its number."""
    return f"{one.version}.{one.n}" if one.n else str(one.version)


def _entry(one: AuditEntry) -> str:
    moved = f" from {one.from_state}" if one.from_state else ""
    moved += f" to {one.to_state}" if one.to_state else ""
    attempt = "" if one.attempt is None else f", attempt {one.attempt}"
    return f"{one.event}{moved} (version {_place(one)}{attempt}) by {one.actor}" + (
        f": {one.reason}" if one.reason else ""
    )


def _brief_reason(one: AuditEntry) -> str | None:
    return last_line(one.reason) if one.reason and one.reason.startswith("Traceback (") else one.reason


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"
