"""The commands about jobs: enqueue, jobs, show, cancel."""

import json as json_module
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, cast

import typer

from ..app import App
from ..errors import NotFound
from ..job import Job
from . import screen
from .job_ids import page_id, shown_ids, whole_id
from .job_views import each_whole, executions_shown, history_shown, job_pairs, jobs_table
from .target import AppOption, ByOption, DatabaseOption, JsonOption, Miscalled, lifecycles, me, needed, opened
from .words import UNITS, duration, tags, written

LIMIT = 20
PAGE = 10
"""How many full jobs are in memory at once."""
PREFIX = "The job's id, or any unique prefix of it."
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=PREFIX)]
FullOption = Annotated[bool, typer.Option("--full", help="Show full ids, payloads and tracebacks.")]
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
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    A terminal shows the shortest unique prefix of each id, and every command accepts it. A pipe gets full ids.

    Example: interlock jobs --kind greet --phase failed --limit 50
    """
    if phase not in (None, "pending", "running", "succeeded", "failed"):
        raise Miscalled(f"--phase {phase!r} is none: give pending, running, succeeded or failed.")
    with opened(app, database) as chosen:
        after = page_id(chosen, after, "--after")
        store = chosen.database.store()
        ask = partial(store.jobs, kind=kind, state=state, phase=phase, queue=queue, tags=tags(tag))
        found = ask(limit=1 if json else limit, after=after, payloads=False)
        if app and not found:
            _known(chosen, kind, state)
        if json:
            screen.each_as_json(_each(ask, limit, after))
            return
        if full:
            each_whole(_each(ask, limit, after))
        else:
            jobs_table(found, shown_ids(chosen, [job.id for job in found]), store.now())
    if len(found) == limit:
        filters = (("--kind", kind), ("--state", state), ("--phase", phase), ("--queue", queue), *(("--tag", each) for each in tag or ()))
        same = (("--database", database), *filters, ("--limit", None if limit == LIMIT else limit), ("--after", found[-1].id))
        screen.remark(f"There may be more: {written('jobs', app, same)}")


def _each(ask: Callable[..., list[Job]], limit: int, after: str | None) -> Iterator[Job]:
    """Up to `limit` full jobs, read a few at a time, since a payload may take a megabyte."""
    while limit > 0:
        page = ask(limit=min(limit, PAGE), after=after)
        yield from page
        if len(page) < PAGE:
            return
        limit, after = limit - len(page), page[-1].id


def _known(app: App[Any], kind: str | None, state: str | None) -> None:
    """Nothing was found: was it asked for by a name that nobody knows?"""
    if kind and kind not in app.kinds and app.database.store().kind(kind) is None:
        raise Miscalled(f"--kind {kind!r} is none: this app has {', '.join(sorted(app.kinds)) or 'none'}.")
    states = [each for lifecycle in lifecycles(app) for each in lifecycle.states]
    if state and state not in states:
        raise Miscalled(f"--state {state!r} is none: the lifecycles of this app have {', '.join(dict.fromkeys(states))}.")


def show(
    id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None,
    full: FullOption = False, json: JsonOption = False,
) -> None:
    """Show one job: its state, its executions, and its history.

    A terminal shows one line for each attempt, with the last line of its error; --full shows tracebacks.

    Example: interlock show ID
    """
    with opened(app, database) as chosen:
        id = whole_id(chosen, id)
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
        job_pairs(job, full=full)
    if executions:
        screen.say("\nexecutions", style="bold")
        executions_shown(executions, full=full)
    screen.say("\nhistory", style="bold")
    history_shown(history, full=full)


def _missing(id: str) -> NotFound:
    return NotFound(f"There is no job {id!r}, nor a history of one outside of archives: interlock jobs lists what there is.")


def _found(app: App[Any], id: str) -> Job | None:
    try:
        return app.get(id)
    except NotFound:
        return None


def sought(app: App[Any], id: str) -> Job:
    """The job with this id or unique prefix. `NotFound`, with the reason, if there is none."""
    id = whole_id(app, id)
    job = _found(app, id)
    if job is None:
        raise _missing(id) if not app.history(id) else NotFound(f"Job {id} is gone: retention deleted it, since it had ended.")
    return job


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
        job = chosen.cancel(before.id, by=by or me(), reason=reason)
    if json:
        screen.as_json(job)
    elif before.ended:
        screen.say(f"{job.id} had already ended as {job.state}")
    elif job.ended:
        screen.say(f"{job.id} ended as {job.state}")
    else:
        screen.say(f"{job.id} runs in {job.state} and was asked to stop")
