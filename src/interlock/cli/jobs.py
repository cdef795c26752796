"""The commands about jobs: enqueue, jobs, show, cancel."""

import json as json_module
import sys
from typing import Annotated, Any, cast

import typer

from ..app import App
from ..errors import NotFound
from ..job import AuditEntry, Execution, Job
from . import screen
from .target import AppOption, ByOption, DatabaseOption, JsonOption, Miscalled, lifecycles, me, needed, opened
from .words import UNITS, duration, job_id, tags, written

LIMIT = 20
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
ReasonOption = Annotated[str, typer.Option(help="Why; it stands in the job's history.")]


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job: by default the name of its function.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments by name, as a JSON object; - reads it from standard input.")] = "{}",
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    idempotency_key: Annotated[str | None, typer.Option(metavar="KEY", help="The same key and payload is the same job, also after it has ended.")] = None,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="At most one active job has this key.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The queue; by default the kind's own.")] = None,
    priority: Annotated[int | None, typer.Option(help="The higher one goes first.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="AGE", help=f"Not due before so long: a number and {UNITS}.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="AGE", help=f"Expires if it still waits after so long: a number and {UNITS}.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A tag; may be given again.")] = None,
    json: JsonOption = False,
) -> None:
    """Store a job, and print its id. A key that is taken already answers with the job that holds it.

    Example: interlock enqueue -A shop:app greet '{"name": "ann"}' --delay 15m
    """
    arguments = _payload(sys.stdin.read() if payload == "-" else payload)
    declared = needed(app)
    if kind not in declared.kinds:
        raise NotFound(f"This app has no kind {kind!r}: it has {', '.join(sorted(declared.kinds)) or 'none'}.")
    late, mortal = duration(delay, "--delay"), duration(ttl, "--ttl")
    if late is not None and mortal is not None and mortal <= late:
        raise Miscalled(f"--ttl {ttl} is not longer than --delay {delay}: the job would expire before it is due.")
    chosen = declared.kinds[kind].using(
        idempotency_key=idempotency_key, unique_key=unique_key, queue=queue, priority=priority, delay=late, ttl=mortal, tags=tags(tag))
    with opened(app, database, app=declared):
        enqueued = declared.enqueue_many([chosen.named(arguments)])[0]
    if json:
        screen.as_json(enqueued)
    else:
        screen.say(enqueued.id)
        if not enqueued.created:
            screen.remark("It was there already, under this key.")


def _payload(text: str) -> dict[str, Any]:
    try:
        value: object = json_module.loads(text)
    except ValueError as error:
        raise Miscalled(f"The payload is not JSON ({error}): write it as an object, such as '{{\"order\": 7}}'.") from None
    if not isinstance(value, dict):
        raise Miscalled("The payload is no JSON object: write the arguments by name, such as '{\"order\": 7}'.")
    return cast("dict[str, Any]", value)


def listing(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: Annotated[str | None, typer.Option(help="Only of this kind.")] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only in this phase: pending, running, succeeded or failed.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only in this queue.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only with this tag; may be given again.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = LIMIT,
    after: Annotated[str | None, typer.Option(metavar="ID", help="The page after this job: the last one of the page before.")] = None,
    json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: interlock jobs --kind greet --phase failed --limit 50
    """
    if phase not in (None, "pending", "running", "succeeded", "failed"):
        raise Miscalled(f"--phase {phase!r} is none: give pending, running, succeeded or failed.")
    after = job_id(after, "--after")
    with opened(app, database) as chosen:
        found = chosen.jobs(kind=kind, state=state, phase=phase, queue=queue, tags=tags(tag), limit=limit, after=after)
        if app and not found:
            _known(chosen, kind, state)
    if json:
        screen.as_json(found)
        return
    screen.table(("id", "kind", "state", "attempt", "tries left", "queue", "due (UTC)"), [
        (job.id, job.kind, _state(job), job.attempt, f"{job.tries_left}/{job.tries}", job.queue, None if job.ended else screen.moment(job.due_at))
        for job in found])
    if len(found) == limit:
        filters = (("--kind", kind), ("--state", state), ("--phase", phase), ("--queue", queue), *(("--tag", each) for each in tag or ()))
        same = (("--database", database), *filters, ("--limit", None if limit == LIMIT else limit), ("--after", found[-1].id))
        screen.remark(f"There may be more: {written('jobs', app, same)}")


def _known(app: App[Any], kind: str | None, state: str | None) -> None:
    """Nothing was found: was it asked for by a name that nobody knows?"""
    if kind and kind not in app.kinds and app.database.store().kind(kind) is None:
        raise Miscalled(f"--kind {kind!r} is none: this app has {', '.join(sorted(app.kinds)) or 'none'}.")
    states = [each for lifecycle in lifecycles(app) for each in lifecycle.states]
    if state and state not in states:
        raise Miscalled(f"--state {state!r} is none: the lifecycles of this app have {', '.join(dict.fromkeys(states))}.")


def _state(job: Job) -> str:
    if job.held_at is not None:
        return f"{job.state} (held)"
    return f"{job.state} (asked to stop)" if job.cancel_requested_at is not None and not job.ended else job.state


def show(id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Show one job: its state, its executions, and its history.

    Example: interlock show ID
    """
    with opened(app, database) as chosen:
        job, history = _found(chosen, id), chosen.history(id)
        executions = chosen.executions(id)
    if job is None and not history:
        raise _missing(id)
    if json:
        screen.as_json({"job": job, "executions": executions, "history": history})
        return
    if job is None:
        screen.say(f"Job {id} is gone: retention deleted it. Its history stays.")
    else:
        _job(job)
    if executions:
        screen.say("\nexecutions", style="bold")
        _executions(executions)
    screen.say("\nhistory", style="bold")
    _history(history)


def _missing(id: str) -> NotFound:
    return NotFound(f"There is no job {id!r}, nor a history of one outside of archives: interlock jobs lists what there is.")


def _found(app: App[Any], id: str) -> Job | None:
    try:
        return app.get(id)
    except NotFound:
        return None


def sought(app: App[Any], id: str) -> Job:
    """The job that is asked for by its id; `NotFound`, and why, if it is not there."""
    job = _found(app, id)
    if job is None:
        raise _missing(id) if not app.history(id) else NotFound(f"Job {id} is gone: retention deleted it, since it had ended.")
    return job


def _job(job: Job) -> None:
    asked = job.cancel_requested_at and f"{screen.moment(job.cancel_requested_at)} by {job.cancel_requested_by}: {job.cancel_reason or 'no reason given'}"
    screen.pairs((
        ("id", job.id), ("kind", job.kind), ("state", f"{_state(job)} ({job.phase})"), ("lifecycle", f"{job.lifecycle}, version {job.lifecycle_version}"),
        ("payload", json_module.dumps(dict(job.payload), ensure_ascii=False)), ("queue", f"{job.queue}, priority {job.priority}"),
        ("tries", f"{job.tries_left} of {job.tries} left, {job.lease_losses} leases lost"),
        ("idempotency key", job.idempotency_key and f"{job.idempotency_key}{' (released)' if job.key_released else ''}"), ("unique key", job.unique_key),
        ("tags", ", ".join(f"{name}={value}" for name, value in sorted(job.tags.items())) or None),
        ("created", screen.moment(job.created_at)), ("due", None if job.ended else screen.moment(job.due_at)), ("expires", screen.moment(job.expires_at)),
        ("finished", screen.moment(job.finished_at)), ("held", job.held_at and f"{screen.moment(job.held_at)}: {job.held_reason}"),
        ("asked to stop", asked), ("redrive of", job.redrive_of),
        ("result", None if job.result is None else json_module.dumps(job.result, ensure_ascii=False)), ("last error", job.last_error)))


def _executions(executions: list[Execution]) -> None:
    screen.table(("attempt", "holder", "status", "state", "ended by", "owner", "lease until (UTC)", "error"), [
        (one.attempt, one.holder, one.status, one.state, one.ended_by, one.lease_owner, screen.moment(one.lease_expires_at) if one.live else None, one.error)
        for one in executions])


def _history(history: list[AuditEntry]) -> None:
    screen.table(("at", "version", "attempt", "event", "from", "to", "actor", "reason"), [
        (screen.moment(one.at), f"{one.version}.{one.n}" if one.n else one.version, one.attempt, one.event, one.from_state, one.to_state, one.actor, one.reason)
        for one in history])


def cancel(
    id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None,
    by: ByOption = None, reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """End a job that waits, or ask one that runs to stop; one that was asked may still succeed.

    A kind that runs a function of its own on the way out can only be cancelled where that function is: with -A.

    Example: interlock cancel ID --reason "ordered twice"
    """
    with opened(app, database) as chosen:
        before = sought(chosen, id)
        job = chosen.cancel(id, by=by or me(), reason=reason)
    if json:
        screen.as_json(job)
    elif before.ended:
        screen.say(f"{job.id} had already ended as {job.state}")
    elif job.ended:
        screen.say(f"{job.id} ended as {job.state}")
    else:
        screen.say(f"{job.id} runs in {job.state} and was asked to stop")
