"""`interlock status` and `interlock workers`: what stands in the database, and what of it needs a look."""

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
from ..errors import Unavailable
from ..job import Execution, Job
from ..records import Outside, WorkerSeen
from ..status import HELD, STUCK, Status
from ..waits import SystemWaits, Waits
from . import screen
from .job_ids import shown_ids
from .table import Column
from .target import AppOption, DatabaseOption, JsonOption, Miscalled, opened
from .words import ago, last_line

Thing = TypeVar("Thing")
EVERY = 1.0
"""Seconds between two looks of `--watch`."""
SHOWN = 20
"""How many stuck or held jobs are listed for people; `--json` has more."""


@dataclass(frozen=True, slots=True)
class View:
    """A status, the time it was taken, and the text to show for each id in it."""

    seen: Status
    now: datetime
    ids: Mapping[str, str]


Look = Callable[[], View]


def status(
    *, app: AppOption = None, database: DatabaseOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Count the jobs by state and queue, and name what needs a look.

    These need a look: a kind, or a queue with due jobs, that no live worker serves; an execution whose heartbeat is
    older than twice its lease; a held job; a job that failed in the last 24 hours and was not redriven; an external
    system that did not answer questions about handed-over work, or that is asked too seldom.

    Exits with 0 if nothing needs a look, and with 1 if something does. Also exits with 1 if the database cannot be
    read, with the reason on standard error. --watch ends with 0.

    Example: interlock status --database postgresql://localhost/shop --watch
    """
    if watch and json:
        raise Miscalled("--watch draws for people, and --json is for programs: give one of the two.")
    if watch and not sys.stdout.isatty():
        raise Miscalled("--watch needs a terminal to draw on: leave it out, and call the command as often as you like.")
    with opened(app, database) as chosen:
        if watch:
            _watch(_looking(chosen), SystemWaits())
            return
        view = _looking(chosen)()
    if json:
        _as_json(view.seen, view.now)
    else:
        screen.show(*drawn(view))
    if not view.seen.calm:
        raise typer.Exit(1)


def _looking(app: App[Any]) -> Look:
    def look() -> View:
        seen = app.status()
        failed = [job.id for one in seen.failures for job in one.newest]
        named = [*(one.job_id for one in _stuck_shown(seen)), *(one.id for one in _held_shown(seen)), *failed]
        return View(seen, app.database.store().now(), shown_ids(app, named))

    return look


def _as_json(seen: Status, now: datetime) -> None:
    stuck = [_fields(one) | {"heartbeat_age": _age(one, now)} for one in seen.stuck]
    screen.as_json({
        "calm": seen.calm, "now": now, "counts": seen.counts, "depths": seen.depths, "orphaned_kinds": seen.orphaned_kinds, "stuck": stuck,
        "orphaned_queues": seen.orphaned_queues, "held_count": seen.held_count, "failures": seen.failures,
        "outside": [_outside(one) for one in seen.outside], "held": seen.held, "workers": [_worker(one) for one in seen.workers], "journal": seen.journal})


def _fields(one: Execution) -> dict[str, Any]:
    return asdict(one)


def _age(one: Execution, now: datetime) -> float:
    return (now - one.heartbeat_at).total_seconds()


# ---------------------------------------------------------------- for people
def drawn(view: View) -> list[RenderableType]:
    """The status as lines and tables."""
    parts = (_counts, _depths, _handed_over, _workers, _needs_a_look)
    return [*(thing for part in parts for thing in part(view.seen)), *_stuck(view), *_held(view), *_failed(view)]


def _counts(seen: Status) -> Iterator[RenderableType]:
    rows = [(lifecycle, state, f"{count:,}") for lifecycle, states in sorted(seen.counts.items()) for state, count in sorted(states.items())]
    yield screen.grid(("lifecycle", "state", "jobs"), rows) if rows else screen.heading("There are no jobs.")


def _depths(seen: Status) -> Iterator[RenderableType]:
    if seen.depths:
        yield ""
        yield screen.grid(("kind", "queue", "due", "later", "held", "running", "oldest due"), [
            (one.kind, one.queue, one.due, one.later, one.held, one.running, ago(one.oldest) if one.due else None) for one in seen.depths])


def _handed_over(seen: Status) -> Iterator[RenderableType]:
    if rows := [(one.kind, f"{one.handed:,}", f"{one.batch:,} every {one.every:g} s", ago(one.overdue) if one.overdue else None) for one in seen.outside]:
        yield ""
        yield screen.grid(("kind", "handed over", "asked about", "a check is late by"), rows)


def _outside(one: Outside) -> dict[str, Any]:
    return {**asdict(one), "late": one.late}


def _workers(seen: Status) -> Iterator[RenderableType]:
    living = sum(one.alive for one in seen.workers)
    silent = f", {len(seen.workers) - living} silent" if living < len(seen.workers) else ""
    yield ""
    yield screen.heading(f"workers: {living} alive{silent}")


def _needs_a_look(seen: Status) -> Iterator[RenderableType]:
    yield ""
    if seen.calm:
        yield screen.heading("Nothing needs a look.", "bold green")
    for kind in seen.orphaned_kinds:
        jobs = sum(one.due + one.later + one.running for one in seen.depths if one.kind == kind)
        yield screen.heading(f"No live worker serves {kind}, of which {jobs:,} wait or run: start one that has it.", "bold red")
    for depth in seen.orphaned_queues:
        due = f"{depth.due:,} {'is' if depth.due == 1 else 'are'} due"
        yield screen.heading(
            f"No live worker serves {depth.kind} in the queue {depth.queue}, where {due}: "
            f"start one with --queues {depth.queue}.", "bold red")
    for one in seen.outside:
        if one.error is not None:
            since = f" since {screen.moment(one.down_since)} UTC" if one.down_since else ""
            yield screen.heading(f"The outside of {one.kind} could not be asked{since}, {one.failures} time(s) in a row: {one.error}", "bold red")
        if one.late:
            yield screen.heading(
                f"{one.kind}: a check is {ago(one.overdue)} late, more than two passes over {one.handed:,}: "
                "start a worker that knows it, or ask about more at once.", "bold red")


def _stuck(view: View) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    if seen.stuck:
        why = "the heartbeat is older than twice the lease. The next keeper that knows the kind takes them over."
        yield screen.heading(f"Stuck: {why}", "bold red")
        shown = _stuck_shown(seen)
        attempt, state = Column("attempt", "whole", spare=True), Column("state", spare=True)
        yield screen.grid(("id", "kind", attempt, "status", state, "owner", "last heartbeat"), [
            (view.ids[one.job_id], one.kind, one.attempt, one.status, one.state, one.lease_owner,
             f"{ago(_age(one, now))} ago") for one in shown])
        full = STUCK in Counter(one.kind for one in seen.stuck).values()
        listed = f"--json lists {STUCK} of each kind" if full else "--json lists them"
        yield from _more(len(seen.stuck) - len(shown), listed, at_least=full)


def _held(view: View) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    if not seen.held_count:
        return
    jobs = "1 job is" if seen.held_count == 1 else f"{seen.held_count:,} jobs are"
    look = "look at each with interlock explain ID, then interlock release ID."
    yield screen.heading(f"{jobs} held until someone decides: {look}", "bold yellow")
    shown = _held_shown(seen)
    yield screen.grid(("id", "kind", Column("state", spare=True), "held for", Column("why", "wrap")), [
        (view.ids[one.id], one.kind, one.state, one.held_at and _since(one.held_at, now), one.held_reason)
        for one in shown])
    listed = "--json lists them" if len(seen.held) == seen.held_count else f"--json lists {HELD} of each kind and queue"
    yield from _more(seen.held_count - len(shown), listed)


def _of_each(things: Sequence[Thing], group: Callable[[Thing], object]) -> list[Thing]:
    """The things to show, in order. The first of each group comes before the second of any group."""
    places = Counter[object]()
    ranked: list[tuple[int, int]] = []
    for number, thing in enumerate(things):
        ranked.append((places[group(thing)], number))
        places[group(thing)] += 1
    chosen = sorted(ranked)[:max(SHOWN, len(places))]
    return [things[number] for _, number in sorted(chosen, key=lambda one: one[1])]


def _stuck_shown(seen: Status) -> list[Execution]:
    return _of_each(seen.stuck, lambda one: one.kind)


def _held_shown(seen: Status) -> list[Job]:
    return _of_each(seen.held, lambda one: (one.kind, one.queue))


def _failed(view: View) -> Iterator[RenderableType]:
    seen, now = view.seen, view.now
    for one in seen.failures:
        jobs = "1 job" if one.count == 1 else f"{one.count:,} jobs"
        newest = "; the newest:" if one.count > len(one.newest) else ":"
        yield screen.heading(f"{jobs} of {one.kind} failed in the last 24 hours{newest}", "bold yellow")
        yield screen.grid(("id", "state", "attempt", "failed", "error"), [
            (view.ids[job.id], job.state, job.attempt, f"{_since(job.finished_at, now)} ago", last_line(job.error))
            for job in one.newest])
    if seen.failures:
        listed = "interlock jobs --phase failed lists them; interlock redrive ID makes a new job of one."
        yield screen.heading(listed, "dim")


def _since(at: datetime, now: datetime) -> str:
    return ago((now - at).total_seconds())


def _more(count: int, where: str, *, at_least: bool = False) -> Iterator[RenderableType]:
    if count > 0:
        yield screen.heading(f"and {'at least ' if at_least else ''}{count:,} more: {where}", "dim")


def _watch(look: Look, waits: Waits) -> None:
    """Draw what is there again and again. A database that goes away is said so, and asked again."""
    with Live(console=screen.console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(Group(*_now(look)), refresh=True)
                waits.sleep(EVERY)
        except KeyboardInterrupt:
            return


def _now(look: Look) -> list[RenderableType]:
    try:
        view = look()
    except Unavailable as error:
        return [screen.heading(f"The database is out of reach, and asked again every second: {error}", "bold red")]
    return [screen.heading(f"{screen.moment(view.now)} UTC, until Ctrl-C", "dim"), "", *drawn(view)]


# ---------------------------------------------------------------- workers
def workers(*, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List the workers that the database has heard of and that have not ended in good order.

    A worker without a heartbeat for 30 seconds does not count as alive; its row is deleted after a day.

    Example: interlock workers --json
    """
    with opened(app, database) as chosen:
        seen = chosen.database.store().workers()
    if json:
        screen.as_json([_worker(one) for one in seen])
        return
    if not seen:
        screen.remark("No worker runs here: interlock worker -A MODULE:APP starts one.")
        return
    comma = "," if screen.width() is None else ", "
    host, pid = Column("host", spare=True), Column("pid", "whole", spare=True)
    kinds, queues = Column("kinds", "wrap"), Column("queues", "wrap")
    screen.table(("name", host, pid, "state", "busy", kinds, queues, "last beat"), [
        (one.facts.name, one.facts.host, one.facts.pid, one.facts.state if one.alive else "silent", f"{one.facts.busy}/{one.facts.slots}",
         comma.join(one.facts.kinds), comma.join(one.facts.queues), f"{ago(one.silent)} ago") for one in seen])


def _worker(one: WorkerSeen) -> dict[str, Any]:
    return {**asdict(one.facts), "alive": one.alive, "started_at": one.started_at, "beat_at": one.beat_at, "silent": one.silent}
