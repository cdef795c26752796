"""The commands `schedules` and `schedule`: list the schedules, and change them at run time."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from ..app import App
from ..errors import NotFound
from ..jobs.request import JobRequest
from ..operate.schedule_info import ScheduleInfo
from . import output
from .arguments import UNITS, duration, tags
from .common_options import (
    AppOption,
    ByOption,
    CommandError,
    DatabaseOption,
    JsonOption,
    OperationReasonOption,
    login_name,
    open_app,
    require_app,
)
from .job_commands import parse_payload
from .text_table import Column

CatchUp = Literal["last", "none", "all"]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
CronArgument = Annotated[str, typer.Argument(metavar="CRON", help="Five fields, as in '0 3 * * *'.")]
KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="The kind of its jobs.")]
PayloadArgument = Annotated[
    str, typer.Argument(metavar="JSON", help="The arguments by name, as a JSON object; - reads standard input.")
]
TzOption = Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone; by default UTC.")]
CatchUpOption = Annotated[CatchUp | None, typer.Option(help="Which missed ticks still get a job; by default last.")]
QueueOption = Annotated[str | None, typer.Option(metavar="NAME", help="The queue of its jobs.")]
PriorityOption = Annotated[int | None, typer.Option(help="Jobs with a higher priority run first.")]
DelayOption = Annotated[
    str | None, typer.Option(metavar="AGE", help=f"How long a job waits after its tick: a number and {UNITS}.")
]
TtlOption = Annotated[
    str | None,
    typer.Option(metavar="AGE", help=f"Expire a job that still waits after this time: a number and {UNITS}."),
]
TagOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A tag; repeatable.")]
UniqueOption = Annotated[str | None, typer.Option(metavar="KEY", help="At most one active job has this key.")]
UniqueForOption = Annotated[
    str | None,
    typer.Option(metavar="AGE", help=f"Keep the unique key this long, also after a success: a number and {UNITS}."),
]
KeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="The concurrency key, for kinds with a limit per key.")
]

commands = typer.Typer(no_args_is_help=True, help="Create, change, pause, run or delete a schedule at run time.")


@commands.callback()
def schedule() -> None:
    """Create, change, pause, run or delete a schedule at run time."""


# ---------------------------------------------------------------- list
def schedules(*, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List the schedules: where each comes from, its last and next tick, and who paused it.

    Example: interlock schedules -A shop:app
    """
    with open_app(app, database) as chosen:
        found = chosen.schedules.all()
    if json:
        output.print_json(found)
        return
    if not found:
        output.print_note("There are no schedules: declare one with app.schedule, or use interlock schedule create.")
        return
    name, cron, note = Column("name", spare=True), Column("cron", "whole", spare=True), Column("note", "wrap")
    output.print_table((name, "kind", cron, "catch up", "last tick", "next tick", note), [_row(one) for one in found])


def _row(one: ScheduleInfo) -> tuple[object, ...]:
    cron = one.cron if one.tz == "UTC" else f"{one.cron} {one.tz}"
    last, following = (None if at is None else f"{at:%Y-%m-%d %H:%M} UTC" for at in (one.last_tick, one.next_tick))
    return (one.name, one.kind, cron, one.catch_up, last, following, _note(one))


def _note(one: ScheduleInfo) -> str:
    """Return who changed or paused the schedule, and why no worker runs it."""
    if one.source == "run time":
        parts = [f"created or changed by {one.changed_by}"]
    else:
        parts = [f"changed by {one.changed_by}" if one.changed_by else "as declared"]
    if one.paused_at is not None:
        parts.append(f"paused by {one.paused_by}{f': {one.pause_reason}' if one.pause_reason else ''}")
    if not one.workers:
        parts.append("no live worker declares it" if one.source == "code" else f"no live worker has {one.kind}")
    return "; ".join(parts)


# ---------------------------------------------------------------- change
@commands.command()
def create(
    name: NameArgument,
    cron: CronArgument,
    kind: KindArgument,
    payload: PayloadArgument = "{}",
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    tz: TzOption = None,
    catch_up: CatchUpOption = None,
    queue: QueueOption = None,
    priority: PriorityOption = None,
    delay: DelayOption = None,
    ttl: TtlOption = None,
    tag: TagOption = None,
    unique_key: UniqueOption = None,
    unique_for: UniqueForOption = None,
    concurrency_key: KeyOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Create a schedule. Its first tick is the next one from now. Every worker that has its kind runs it.

    Example: interlock schedule create -A shop:app nightly '0 3 * * *' report '{"region": "eu"}' --tz Europe/Berlin
    """
    declared = require_app(app)
    options = _options(queue, priority, delay, ttl, tag, unique_key, unique_for, concurrency_key)
    request = _request(declared, kind, options, _read(payload))
    with open_app(app, database, app=declared) as chosen:
        chosen.schedules.create(
            name, cron, request, tz=tz or "UTC", catch_up=catch_up or "last", by=by or login_name(), reason=reason
        )
        _print_next(chosen, name, "is created")


@commands.command()
def change(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="Five fields, as in '0 3 * * *'.")] = None,
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone.")] = None,
    catch_up: Annotated[CatchUp | None, typer.Option(help="Which missed ticks still get a job.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="The kind of its jobs; needs --payload.")] = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The arguments by name, as a JSON object; - reads standard input."),
    ] = None,
    queue: QueueOption = None,
    priority: PriorityOption = None,
    delay: DelayOption = None,
    ttl: TtlOption = None,
    tag: TagOption = None,
    unique_key: UniqueOption = None,
    unique_for: UniqueForOption = None,
    concurrency_key: KeyOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Change a schedule. Values that you do not give stay as they are, but a new --kind drops options such as --queue.

    The change applies at once, without a restart, and stays until the next change or `interlock schedule reset`. A new
    cron line or time zone applies from now on. Changes of the jobs, such as --payload or --queue, need -A.

    Example: interlock schedule change nightly --cron '30 4 * * *' --reason "the backup runs at three"
    """
    options = _options(queue, priority, delay, ttl, tag, unique_key, unique_for, concurrency_key)
    if kind is not None and payload is None:
        raise CommandError("Another kind takes other arguments: give --payload with --kind.")
    changes_jobs = kind is not None or payload is not None or bool(options)
    declared = require_app(app) if changes_jobs else None
    arguments = None if payload is None else _read(payload)
    with open_app(app, database, app=declared) as chosen:
        request = None
        if changes_jobs:
            old = chosen.schedules.get(name)
            given = old.payload if arguments is None else arguments
            merged = {**old.options, **options} if kind in (None, old.kind) else options
            request = _request(chosen, kind or old.kind, merged, given)
        chosen.schedules.change(
            name, cron=cron, tz=tz, catch_up=catch_up, request=request, by=by or login_name(), reason=reason
        )
        _print_next(chosen, name, "is changed")


@commands.command()
def pause(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Pause a schedule: it enqueues no jobs until you resume it. Jobs that it has enqueued run as usual.

    Example: interlock schedule pause nightly --reason "the warehouse moves"
    """
    with open_app(app, database) as chosen:
        done = chosen.schedules.pause(name, by=by or login_name(), reason=reason)
    output.print_line(f"schedule {name} {'is' if done else 'was already'} paused")


@commands.command()
def resume(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Resume a paused schedule. Ticks during the pause get no jobs.

    Example: interlock schedule resume nightly
    """
    with open_app(app, database) as chosen:
        if not chosen.schedules.resume(name, by=by or login_name(), reason=reason):
            output.print_line(f"schedule {name} was not paused")
            return
        _print_next(chosen, name, "is resumed")


@commands.command()
def run(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Enqueue a job of a schedule now, also during a pause, and print its id. The ticks do not change.

    Example: interlock schedule run -A shop:app nightly --reason "the last report was wrong"
    """
    declared = require_app(app)
    with open_app(app, database, app=declared) as chosen:
        job = chosen.schedules.run_now(name, by=by or login_name(), reason=reason)
    output.print_line(job.id)
    if not job.created:
        output.print_note("A job with the unique key of this schedule is active, so no job was created.")


@commands.command()
def reset(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Discard changes at run time: the schedule is again as the code declares it. A pause stays.

    Example: interlock schedule reset nightly
    """
    with open_app(app, database) as chosen:
        done = chosen.schedules.reset(name, by=by or login_name(), reason=reason)
    output.print_line(f"schedule {name} {'is' if done else 'was'} as declared")


@commands.command()
def delete(
    name: NameArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Delete a schedule that no code declares. Its jobs stay.

    Example: interlock schedule delete nightly
    """
    with open_app(app, database) as chosen:
        chosen.schedules.delete(name, by=by or login_name(), reason=reason)
    output.print_line(f"schedule {name} is deleted")


# ---------------------------------------------------------------- parts
def _options(  # noqa: PLR0917 - the options of the command
    queue: str | None,
    priority: int | None,
    delay: str | None,
    ttl: str | None,
    tag: list[str] | None,
    unique_key: str | None,
    unique_for: str | None,
    concurrency_key: str | None,
) -> dict[str, Any]:
    given = {
        "queue": queue,
        "priority": priority,
        "delay": duration(delay, "--delay"),
        "ttl": duration(ttl, "--ttl"),
        "tags": tags(tag),
        "unique_key": unique_key,
        "unique_for": duration(unique_for, "--unique-for"),
        "concurrency_key": concurrency_key,
    }
    return {name: value for name, value in given.items() if value is not None}


def _request(app: App[Any], kind: str, options: Mapping[str, Any], payload: Mapping[str, Any]) -> JobRequest[Any]:
    if kind not in app.kinds:
        raise NotFound(f"This app has no kind {kind!r}: it has {', '.join(sorted(app.kinds)) or 'none'}.")
    return app.kinds[kind].using(**options).request_from_payload(payload)


def _read(payload: str) -> dict[str, Any]:
    return parse_payload(sys.stdin.read() if payload == "-" else payload)


def _print_next(app: App[Any], name: str, done: str) -> None:
    found = app.schedules.get(name)
    then = "paused" if found.paused_at is not None else f"next tick {output.format_time(found.next_tick)} UTC"
    output.print_line(f"schedule {name} {done}; {then}")
