"""`interlock status`: counts jobs and lists problems."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from ..app import App
from ..core.job import Execution, Job
from ..core.sleeper import Sleeper, SystemSleeper
from ..errors import Unavailable
from ..operate.schedule_info import ScheduleInfo
from ..operate.status import HELD, STUCK, Status
from ..store.flow_types import LimitSeen
from ..store.report_types import ExternalWork
from . import output
from .arguments import format_age, last_line
from .common_options import AppOption, CommandError, DatabaseOption, JsonOption, open_app
from .job_ids import display_ids
from .text_table import Column
from .workers_command import worker_fields

Thing = TypeVar("Thing")
EVERY = 1.0
"""Seconds between two refreshes of `--watch`."""
SHOWN = 20
"""How many stuck or held jobs are listed for people; `--json` has more."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """A status, the time it was taken, and the text to show for each id in it."""

    seen: Status
    now: datetime
    ids: Mapping[str, str]


Look = Callable[[], StatusView]


def status(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Count the jobs by state and queue, and list problems.

    Problems are: a kind, or a queue with due jobs, that no live worker serves; an execution whose heartbeat is older
    than twice its lease; a held job; a job that failed in the last 24 hours and was not redriven; an external system
    that does not answer questions about handed-over work; handed-over work that is checked too late.

    Exits with 0 if there is no problem, and with 1 if there is one. Also exits with 1 if the database cannot be read,
    with the reason on standard error. --watch exits with 0.

    Example: interlock status --database postgresql://localhost/shop --watch
    """
    if watch and json:
        raise CommandError("--watch and --json cannot be combined: give one of the two.")
    if watch and not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal: omit it, and run the command as often as you like.")
    with open_app(app, database) as chosen:
        if watch:
            _watch(_status_reader(chosen), SystemSleeper())
            return
        view = _status_reader(chosen)()
    if json:
        _as_json(view.seen, view.now)
    else:
        output.print_blocks(*render_status(view))
    if not view.seen.healthy:
        raise typer.Exit(1)


def _status_reader(app: App[Any]) -> Look:
    def look() -> StatusView:
        seen = app.status()
        failed = [job.id for one in seen.failures for job in one.newest]
        named = [*(one.job_id for one in _stuck_shown(seen)), *(one.id for one in _held_shown(seen)), *failed]
        return StatusView(seen, app.database.store().inspect.now(), display_ids(app, named))

    return look


def _as_json(seen: Status, now: datetime) -> None:
    stuck = [_fields(one) | {"heartbeat_age": _age(one, now)} for one in seen.stuck]
    output.print_json(
        {
            "healthy": seen.healthy,
            "now": now,
            "counts": seen.counts,
            "depths": seen.depths,
            "orphaned_kinds": seen.orphaned_kinds,
            "stuck": stuck,
            "orphaned_queues": seen.orphaned_queues,
            "held_count": seen.held_count,
            "failures": seen.failures,
            "paused": seen.paused,
            "paused_schedules": seen.paused_schedules,
            "external": [_external_fields(one) for one in seen.external],
            "held": seen.held,
            "workers": [worker_fields(one) for one in seen.workers],
            "journal": seen.journal,
        }
    )


def _fields(one: Execution) -> dict[str, Any]:
    return asdict(one)


def _age(one: Execution, now: datetime) -> float:
    return (now - one.heartbeat_at).total_seconds()


# ---------------------------------------------------------------- for people
def render_status(view: StatusView) -> list[RenderableType]:
    """The status as lines and tables."""
    parts = (_counts, _depths, _handed_over, _workers, _paused, _problems)
    return [*(thing for part in parts for thing in part(view.seen)), *_stuck(view), *_held(view), *_failed(view)]


def _counts(seen: Status) -> Iterator[RenderableType]:
    rows = [
        (lifecycle, state, f"{count:,}")
        for lifecycle, states in sorted(seen.counts.items())
        for state, count in sorted(states.items())
    ]
    yield (
        output.render_table(("lifecycle", "state", "jobs"), rows)
        if rows
        else output.render_heading("There are no jobs.")
    )


def _depths(seen: Status) -> Iterator[RenderableType]:
    if not seen.depths:
        return
    blocked = any(one.blocked for one in seen.depths)
    header = ("kind", "queue", "due", "later", *(("blocked",) if blocked else ()), "held", "running", "oldest due")
    yield ""
    yield output.render_table(
        header,
        [
            (
                *(one.kind, one.queue, one.due, one.later),
                *((one.blocked,) if blocked else ()),
                *(one.held, one.running, format_age(one.oldest) if one.due else None),
            )
            for one in seen.depths
        ],
    )


def _handed_over(seen: Status) -> Iterator[RenderableType]:
    if rows := [
        (
            one.kind,
            f"{one.executions:,}",
            f"{one.batch:,} every {one.every:g} s",
            format_age(one.overdue) if one.overdue else None,
        )
        for one in seen.external
    ]:
        yield ""
        yield output.render_table(("kind", "handed over", "checked", "late by"), rows)


def _external_fields(one: ExternalWork) -> dict[str, Any]:
    return {**asdict(one), "late": one.late}


def _workers(seen: Status) -> Iterator[RenderableType]:
    living = sum(one.alive for one in seen.workers)
    silent = f", {len(seen.workers) - living} silent" if living < len(seen.workers) else ""
    yield ""
    yield output.render_heading(f"workers: {living} alive{silent}")


def _paused(seen: Status) -> Iterator[RenderableType]:
    paused: list[tuple[str, LimitSeen | ScheduleInfo]] = [(one.scope, one) for one in seen.paused]
    paused += [("schedule", one) for one in seen.paused_schedules]
    for what, one in paused:
        why = f": {one.pause_reason}" if one.pause_reason else ""
        yield output.render_heading(
            f"The {what} {one.name} was paused at {output.format_time(one.paused_at)} UTC by {one.paused_by}{why}",
            "yellow",
        )


def _problems(seen: Status) -> Iterator[RenderableType]:
    yield ""
    if seen.healthy:
        yield output.render_heading("No problems found.", "bold green")
    for kind in seen.orphaned_kinds:
        jobs = sum(one.due + one.later + one.running for one in seen.depths if one.kind == kind)
        yield output.render_heading(
            f"No live worker serves {kind}, which has {jobs:,} waiting or running: start a worker for it.", "bold red"
        )
    for depth in seen.orphaned_queues:
        due = f"{depth.due:,} {'is' if depth.due == 1 else 'are'} due"
        yield output.render_heading(
            f"No live worker serves {depth.kind} in the queue {depth.queue}, where {due}: "
            f"start one with --queues {depth.queue}.",
            "bold red",
        )
    for one in seen.external:
        if one.error is not None:
            since = f" since {output.format_time(one.down_since)} UTC" if one.down_since else ""
            yield output.render_heading(
                f"The external system of {one.kind} is unreachable{since}, {one.failures} time(s) in a row: "
                f"{one.error}",
                "bold red",
            )
        if one.late:
            yield output.render_heading(
                f"{one.kind}: a check of {one.executions:,} external jobs is {format_age(one.overdue)} late: "
                "start another worker for it, or raise its batch.",
                "bold red",
            )


def _stuck(view: StatusView) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    if seen.stuck:
        why = "the heartbeat is older than twice the lease. The next worker that serves the kind recovers them."
        yield output.render_heading(f"Stuck: {why}", "bold red")
        shown = _stuck_shown(seen)
        attempt, state = Column("attempt", "whole", spare=True), Column("state", spare=True)
        yield output.render_table(
            ("id", "kind", attempt, "status", state, "owner", "last heartbeat"),
            [
                (
                    view.ids[one.job_id],
                    one.kind,
                    one.attempt,
                    one.status,
                    one.state,
                    one.lease_owner,
                    f"{format_age(_age(one, now))} ago",
                )
                for one in shown
            ],
        )
        full = STUCK in Counter(one.kind for one in seen.stuck).values()
        listed = f"--json lists {STUCK} of each kind" if full else "--json lists them"
        yield from _more(len(seen.stuck) - len(shown), listed, at_least=full)


def _held(view: StatusView) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    if not seen.held_count:
        return
    jobs = "1 job is" if seen.held_count == 1 else f"{seen.held_count:,} jobs are"
    look = "look at each with interlock explain ID, then interlock release ID."
    yield output.render_heading(f"{jobs} held until someone decides: {look}", "bold yellow")
    shown = _held_shown(seen)
    yield output.render_table(
        ("id", "kind", Column("state", spare=True), "held for", Column("why", "wrap")),
        [
            (view.ids[one.id], one.kind, one.state, one.held_at and _since(one.held_at, now), one.held_reason)
            for one in shown
        ],
    )
    listed = "--json lists them" if len(seen.held) == seen.held_count else f"--json lists {HELD} of each kind and queue"
    yield from _more(seen.held_count - len(shown), listed)


def _of_each(things: Sequence[Thing], group: Callable[[Thing], object]) -> list[Thing]:
    """The things to show, in order. The first of each group comes before the second of any group."""
    places = Counter[object]()
    ranked: list[tuple[int, int]] = []
    for number, thing in enumerate(things):
        ranked.append((places[group(thing)], number))
        places[group(thing)] += 1
    chosen = sorted(ranked)[: max(SHOWN, len(places))]
    return [things[number] for _, number in sorted(chosen, key=lambda one: one[1])]


def _stuck_shown(seen: Status) -> list[Execution]:
    return _of_each(seen.stuck, lambda one: one.kind)


def _held_shown(seen: Status) -> list[Job]:
    return _of_each(seen.held, lambda one: (one.kind, one.queue))


def _failed(view: StatusView) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    for one in seen.failures:
        jobs = "1 job" if one.count == 1 else f"{one.count:,} jobs"
        newest = "; the newest:" if one.count > len(one.newest) else ":"
        yield output.render_heading(f"{jobs} of {one.kind} failed in the last 24 hours{newest}", "bold yellow")
        yield output.render_table(
            ("id", "state", "attempt", "failed", "error"),
            [
                (view.ids[job.id], job.state, job.attempt, f"{_since(job.finished_at, now)} ago", last_line(job.error))
                for job in one.newest
            ],
        )
    if seen.failures:
        listed = "interlock jobs --phase failed lists them; interlock redrive enqueues them again, by id or by filters."
        yield output.render_heading(listed, "dim")


def _since(at: datetime, now: datetime) -> str:
    return format_age((now - at).total_seconds())


def _more(count: int, where: str, *, at_least: bool = False) -> Iterator[RenderableType]:
    if count > 0:
        yield output.render_heading(f"and {'at least ' if at_least else ''}{count:,} more: {where}", "dim")


def _watch(look: Look, sleeper: Sleeper) -> None:
    """Print the status every second. If the database is unreachable, say so and retry."""
    with Live(console=output.make_console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(Group(*_render_now(look)), refresh=True)
                sleeper.sleep(EVERY)
        except KeyboardInterrupt:
            return


def _render_now(look: Look) -> list[RenderableType]:
    try:
        view = look()
    except Unavailable as error:
        return [output.render_heading(f"The database is unreachable; retrying every second: {error}", "bold red")]
    return [output.render_heading(f"{output.format_time(view.now)} UTC, until Ctrl-C", "dim"), "", *render_status(view)]
