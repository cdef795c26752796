"""The commands `enqueue`, `jobs` and `show`."""

import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, cast

import typer

from ..app import App
from ..core.job import AuditEntry, Job
from ..errors import NotFound
from ..store.types import OnConflict
from . import output
from .arguments import UNITS, command_line, duration, tags
from .common_options import (
    AppOption,
    CommandError,
    DatabaseOption,
    JsonOption,
    open_app,
    require_app,
)
from .filter_options import (
    ErrorLikeOption,
    FilterOptions,
    KindOption,
    PhaseOption,
    QueueOption,
    SinceOption,
    StateOption,
    TagOption,
    UntilOption,
)
from .job_ids import display_ids, resolve_id, resolve_page_id
from .job_views import print_executions, print_full_jobs, print_history, print_job, print_jobs

LIMIT = 20
PAGE = 10
"""How many full jobs are in memory at once."""
PREFIX = "The job's id, or any unique prefix of it."
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=PREFIX)]
FullOption = Annotated[bool, typer.Option("--full", help="Show full ids, payloads and tracebacks.")]
ReasonOption = Annotated[str, typer.Option(help="The reason, stored in the job's history.")]


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job; by default the name of its function.")],
    payload: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The arguments by name, as a JSON object; - reads standard input."),
    ] = "{}",
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A second enqueue with this key and payload returns the same job."),
    ] = None,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="At most one active job has this key.")] = None,
    unique_for: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help=f"Keep the unique key until this long after the creation, also after a success: a number and {UNITS}.",
        ),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option(
            metavar="CHOICE",
            help="What happens to a waiting job with the unique key: keep it, replace its payload, or debounce it "
            "(replace its payload and its due time).",
        ),
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The concurrency key, for kinds with a limit per key.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The queue; by default the queue of the kind.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Jobs with a higher priority run first.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="AGE", help=f"Wait this long before the job is due: a number and {UNITS}.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="AGE", help=f"Expire the job if it still waits after this time: a number and {UNITS}."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A tag; repeatable.")] = None,
    json: JsonOption = False,
) -> None:
    """Store a job and print its id. If a job with the same key exists, print the id of that job.

    Example: interlock enqueue -A shop:app greet '{"name": "ann"}' --delay 15m
    """
    arguments = parse_payload(sys.stdin.read() if payload == "-" else payload)
    declared = require_app(app)
    if kind not in declared.kinds:
        raise NotFound(f"This app has no kind {kind!r}: it has {', '.join(sorted(declared.kinds)) or 'none'}.")
    late, expiring = duration(delay, "--delay"), duration(ttl, "--ttl")
    if late is not None and expiring is not None and expiring <= late:
        raise CommandError(f"--ttl {ttl} is not longer than --delay {delay}: the job would expire before it is due.")
    chosen = declared.kinds[kind].using(
        idempotency_key=idempotency_key,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        queue=queue,
        priority=priority,
        delay=late,
        ttl=expiring,
        tags=tags(tag),
        unique_for=duration(unique_for, "--unique-for"),
        on_conflict=cast("OnConflict | None", on_conflict),
    )
    with open_app(app, database, app=declared):
        enqueued = declared.enqueue_many([chosen.request_from_payload(arguments)])[0]
    if json:
        output.print_json({"id": enqueued.id, "created": enqueued.created, "replaced": enqueued.replaced})
    else:
        output.print_line(enqueued.id)
        if enqueued.replaced:
            output.print_note("A waiting job with this key exists; its payload was replaced.")
        elif not enqueued.created:
            output.print_note("A job with this key already exists.")


def parse_payload(text: str) -> dict[str, Any]:
    """Parse the arguments of a job. `CommandError` if they are not a JSON object."""
    try:
        value: object = json_module.loads(text)
    except ValueError as error:
        raise CommandError(
            f"The payload is not JSON ({error}): write it as an object, such as '{{\"order\": 7}}'."
        ) from None
    if not isinstance(value, dict):
        raise CommandError("The payload is not a JSON object: write the arguments by name, such as '{\"order\": 7}'.")
    return cast("dict[str, Any]", value)


def list_jobs(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    phase: PhaseOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_like: ErrorLikeOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number of jobs.")] = LIMIT,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue after this id, the last one of the previous page.")
    ] = None,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    A terminal shows the shortest unique prefix of each id, and every command accepts it. A pipe gets full ids.

    Example: interlock jobs --kind greet --phase failed --limit 50
    """
    filters = FilterOptions(kind, state, phase, queue, tag, since, until, error_like)
    with open_app(app, database) as chosen:
        after = resolve_page_id(chosen, after, "--after")
        store = chosen.database.store()
        ask = partial(store.inspect.jobs, matching=filters.read(store.inspect.now))
        found = ask(limit=1 if json else limit, after=after, payloads=False)
        if app and not found:
            filters.check_known(chosen)
        if json:
            output.print_json_list(_each(ask, limit, after))
            return
        if full:
            print_full_jobs(_each(ask, limit, after))
        else:
            print_jobs(found, display_ids(chosen, [job.id for job in found]), store.inspect.now())
    if len(found) == limit:
        same = (
            ("--database", database),
            *filters.named(),
            ("--limit", None if limit == LIMIT else limit),
            ("--after", found[-1].id),
        )
        output.print_note(f"There may be more: {command_line('jobs', app, same)}")


def _each(ask: Callable[..., list[Job]], limit: int, after: str | None) -> Iterator[Job]:
    """Yield up to `limit` full jobs. They are read a few at a time, since a payload may take a megabyte."""
    while limit > 0:
        page = ask(limit=min(limit, PAGE), after=after)
        yield from page
        if len(page) < PAGE:
            return
        limit, after = limit - len(page), page[-1].id


def show(
    id: IdArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Show one job: its state, its executions, and its history.

    A terminal shows one line for each attempt, with the last line of its error; --full shows tracebacks.

    Example: interlock show ID
    """
    with open_app(app, database) as chosen:
        id = resolve_id(chosen, id)
        job, history = _found(chosen, id), chosen.history(id)
        executions = chosen.executions(id)
    if job is None and not history:
        raise _missing(id)
    if json:
        output.print_json({"job": job, "executions": executions, "history": history})
        return
    if job is None:
        output.print_line(f"Job {id} was deleted by {_deleter(history)}. Its history is kept.")
    else:
        print_job(job, full=full)
    if executions:
        output.print_line("\nexecutions", style="bold")
        print_executions(executions, full=full)
    output.print_line("\nhistory", style="bold")
    print_history(history, full=full)


def _missing(id: str) -> NotFound:
    return NotFound(f"There is no job {id!r}. List jobs with interlock jobs.")


def _found(app: App[Any], id: str) -> Job | None:
    try:
        return app.get(id)
    except NotFound:
        return None


def find_job(app: App[Any], id: str) -> Job:
    """The job with this id or unique prefix. `NotFound`, with the reason, if there is none."""
    id = resolve_id(app, id)
    job = _found(app, id)
    if job is None:
        history = app.history(id)
        raise (NotFound(f"Job {id} was deleted by {_deleter(history)} after it ended.") if history else _missing(id))
    return job


def _deleter(history: Sequence[AuditEntry]) -> str:
    """Return who deleted the job: the operator of the last entry, or retention, which adds no entry."""
    return history[-1].actor if history[-1].event == "delete" else "retention"
