"""The commands `queues`, `limit`, `pause` and `resume`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ..app import App
from ..core.limits import SCOPES, Limit
from ..errors import NotFound
from ..operate.controls import KindControls, QueueControls
from ..store.flow_types import UNCHANGED, LimitChange, LimitSeen, Unchanged
from ..store.report_types import Depth
from . import output
from .arguments import format_age
from .common_options import (
    AppOption,
    ByOption,
    CommandError,
    DatabaseOption,
    JsonOption,
    OperationReasonOption,
    login_name,
    open_app,
)

QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue.")]
KindOption = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="The kind.")]
NumberOption = Annotated[str | None, typer.Option(metavar="N|none", help="How many jobs may run at once.")]
RateOption = Annotated[
    str | None, typer.Option(metavar="RATE|none", help="How often jobs may start, as in 10/s, 1000/h or 5/30s.")
]
BurstOption = Annotated[
    int | None, typer.Option(min=1, help="How many jobs may start at once after a quiet time; needs --rate.")
]
NumberPerKeyOption = Annotated[
    str | None, typer.Option(metavar="N|none", help="How many jobs of each concurrency key may run at once.")
]
RatePerKeyOption = Annotated[
    str | None, typer.Option(metavar="RATE|none", help="How often jobs of each concurrency key may start, as in 10/s.")
]
BurstPerKeyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How many jobs of each concurrency key may start at once after a quiet time; needs --rate-per-key.",
    ),
]


@dataclass(slots=True)
class Load:
    """The jobs of a queue or a kind, and its limits."""

    name: str
    due: int = 0
    later: int = 0
    blocked: int = 0
    held: int = 0
    running: int = 0
    limits: dict[str, LimitSeen] = field(default_factory=dict[str, LimitSeen])

    def add(self, depth: Depth) -> None:
        self.due += depth.due
        self.later += depth.later
        self.blocked += depth.blocked
        self.held += depth.held
        self.running += depth.running


def queues(*, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List queues and kinds with their waiting and running jobs, limits and pauses.

    Example: interlock queues -A shop:app
    """
    with open_app(app, database) as chosen:
        depths, limits = chosen.database.store().inspect.depths(), chosen.limits()
    by_queue = _loads("queue", ((depth.queue, depth) for depth in depths), limits)
    by_kind = _loads("kind", ((depth.kind, depth) for depth in depths), limits)
    if json:
        output.print_json({"queues": [_fields(one) for one in by_queue], "kinds": [_fields(one) for one in by_kind]})
        return
    if not by_queue and not by_kind:
        output.print_note("No job waits or runs, and no queue or kind has a limit or is paused.")
        return
    for what, loads in (("queue", by_queue), ("kind", by_kind)):
        header = (what, "due", "later", "blocked", "held", "running", "limit", "paused")
        output.print_table(header, [_row(one) for one in loads])


def _loads(scope: str, depths: Iterable[tuple[str, Depth]], limits: Iterable[LimitSeen]) -> list[Load]:
    found: dict[str, Load] = {}
    for name, depth in depths:
        found.setdefault(name, Load(name)).add(depth)
    for seen in limits:
        if seen.scope == scope or (scope == "kind" and seen.scope == "key"):
            found.setdefault(seen.name, Load(seen.name)).limits[seen.scope] = seen
    return [found[name] for name in sorted(found)]


def _row(load: Load) -> tuple[object, ...]:
    limits = [
        f"{_show_limit(seen.limit)}{' per key' if scope == 'key' else ''}"
        for scope in SCOPES
        if (seen := load.limits.get(scope)) is not None and not seen.limit.unlimited
    ]
    paused = [
        f"by {seen.paused_by}{f': {seen.pause_reason}' if seen.pause_reason else ''}"
        for seen in load.limits.values()
        if seen.paused_at is not None
    ]
    counts = (load.due, load.later, load.blocked, load.held, load.running)
    return (load.name, *counts, "; ".join(limits), "; ".join(paused))


def _show_limit(limit: Limit) -> str:
    running = [] if limit.max_running is None else [f"{limit.max_running} running"]
    rate = [] if limit.rate is None else [f"{limit.rate} (burst {limit.burst})"]
    return ", ".join(running + rate)


def _fields(load: Load) -> dict[str, Any]:
    return {
        "name": load.name,
        "due": load.due,
        "later": load.later,
        "blocked": load.blocked,
        "held": load.held,
        "running": load.running,
        "limits": load.limits,
    }


def limit(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    max_running: NumberOption = None,
    rate: RateOption = None,
    burst: BurstOption = None,
    max_running_per_key: NumberPerKeyOption = None,
    rate_per_key: RatePerKeyOption = None,
    burst_per_key: BurstPerKeyOption = None,
    reset: Annotated[bool, typer.Option("--reset", help="Return to the limits that the code declares.")] = False,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Limit how many jobs of a queue or kind run at once, over all workers, and how often they start.

    Limits that you do not give stay as they are; none removes a limit. A change applies at once, without a restart, and
    stays until the next change or --reset. The options with -per-key limit the jobs of a kind that have the same
    concurrency key.

    Example: interlock limit -A shop:app --queue mail --max-running 5 --rate 10/s
    """
    whole = (_number(max_running, "--max-running"), _rate(rate), burst)
    of_keys = (_number(max_running_per_key, "--max-running-per-key"), _rate(rate_per_key), burst_per_key)
    _check_change(whole, "")
    _check_change(of_keys, "-per-key")
    named = [given for given in (*whole[:2], *of_keys[:2]) if given is not UNCHANGED]
    if reset == bool(named):
        raise CommandError("Give the limits to change, such as --max-running 5 or --rate 10/s, or --reset alone.")
    if queue is not None and (of_keys[0] is not UNCHANGED or of_keys[1] is not UNCHANGED):
        raise CommandError("Only kinds have concurrency keys: give --kind with the options for keys.")
    with open_app(app, database) as chosen:
        controls, who = _controls(chosen, queue, kind), by or login_name()
        if reset:
            done = controls.reset_limits(by=who, reason=reason)
            output.print_line(f"{controls.scope} {controls.name}: {'as declared' if done else 'was as declared'}")
            return
        if whole[0] is not UNCHANGED or whole[1] is not UNCHANGED:
            controls.limit(max_running=whole[0], rate=whole[1], burst=whole[2], by=who, reason=reason)
        if isinstance(controls, KindControls) and (of_keys[0] is not UNCHANGED or of_keys[1] is not UNCHANGED):
            controls.limit_per_key(max_running=of_keys[0], rate=of_keys[1], burst=of_keys[2], by=who, reason=reason)
        for seen in chosen.limits():
            if seen.name == controls.name and (seen.scope == "queue") == (controls.scope == "queue"):
                per_key = " per key" if seen.scope == "key" else ""
                output.print_line(f"{controls.scope} {seen.name}{per_key}: {_show_limit(seen.limit) or 'no limit'}")


def _number(text: str | None, option: str) -> int | Unchanged | None:
    if text is None:
        return UNCHANGED
    if text == "none":
        return None
    if not text.isdecimal():
        raise CommandError(f"{option} {text!r} is not a number: give one, or none to remove the limit.")
    return int(text)


def _rate(text: str | None) -> str | Unchanged | None:
    return UNCHANGED if text is None else None if text == "none" else text


def _check_change(given: tuple[int | Unchanged | None, str | Unchanged | None, int | None], suffix: str) -> None:
    """Check all values before the first one is stored."""
    _, rate, burst = given
    if burst is not None and not isinstance(rate, str):
        raise CommandError(
            f"--burst{suffix} needs --rate{suffix}: give both, as in --rate{suffix} 10/s --burst{suffix} {burst}."
        )
    LimitChange(*given).to_limit()


def _controls(app: App[Any], queue: str | None, kind: str | None) -> QueueControls:
    if (queue is None) == (kind is None):
        raise CommandError("Name one queue or one kind: give --queue NAME or --kind NAME.")
    if queue is None:
        controls = app.kind(kind or "")
        _check_kind(app, controls.name)
        return controls
    chosen = app.queue(queue)
    _check_queue(app, chosen.name)
    return chosen


def _check_kind(app: App[Any], name: str) -> None:
    """Raise `NotFound` if neither an app has the kind, nor a limit or pause names it."""
    store = app.database.store()
    if name in app.kinds or store.registry.kind(name) is not None:
        return
    limited = {seen.name for seen in store.limits.all() if seen.scope != "queue"}
    if name in limited:
        return
    if app.kinds:
        raise NotFound(
            f"This app has no kind {name!r}, and no app has registered it in this database: this app has "
            f"{', '.join(sorted(app.kinds))}."
        )
    known = limited | {depth.kind for depth in store.inspect.depths()}
    raise NotFound(
        f"No app has registered a kind {name!r} in this database: those with jobs, limits or pauses are "
        f"{', '.join(sorted(known)) or 'none'}."
    )


def _check_queue(app: App[Any], name: str) -> None:
    """Warn of a queue that nothing uses. It needs no declaration, so its name may still be right."""
    store = app.database.store()
    known = {"default", *app.queues, *(kind.spec.queue for kind in app.kinds.values())}
    known |= {seen.name for seen in store.limits.all() if seen.scope == "queue"}
    known |= {queue for worker in store.workers.all() if worker.alive for queue in worker.facts.queues}
    if name not in known and name not in (used := {depth.queue for depth in store.inspect.depths()}):
        output.print_note(
            f"No app or worker uses a queue {name!r}, and no job waits or runs in it: known are "
            f"{', '.join(sorted(known | used))}."
        )


def pause(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Pause a queue or a kind: no worker starts its jobs until you resume it. Running jobs continue.

    Example: interlock pause --queue mail --reason "the provider is down"
    """
    with open_app(app, database) as chosen:
        controls = _controls(chosen, queue, kind)
        done = controls.pause(by=by or login_name(), reason=reason)
    output.print_line(f"{controls.scope} {controls.name} {'is' if done else 'was already'} paused")


def resume(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    by: ByOption = None,
    reason: OperationReasonOption = "",
) -> None:
    """Resume a paused queue or kind.

    Example: interlock resume --queue mail
    """
    with open_app(app, database) as chosen:
        controls = _controls(chosen, queue, kind)
        done = controls.resume(by=by or login_name(), reason=reason)
    output.print_line(f"{controls.scope} {controls.name} {'is resumed' if done else 'was not paused'}")


def operations(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    number: Annotated[int, typer.Option("-n", min=1, help="How many to list.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the changes of limits, pauses and schedules, newest first, with who made them and why.

    Example: interlock operations -n 50
    """
    with open_app(app, database) as chosen:
        found, now = chosen.operations(limit=number), chosen.database.store().inspect.now()
    if json:
        output.print_json(found)
        return
    if not found:
        output.print_note("Nobody has changed a limit, a pause or a schedule.")
        return
    output.print_table(
        ("when", "event", "what", "actor", "reason", "detail"),
        [
            (
                f"{format_age((now - one.at).total_seconds())} ago",
                one.event,
                f"{one.scope} {one.name}",
                one.actor,
                one.reason or "",
                ", ".join(f"{name}={value}" for name, value in (one.detail or {}).items()),
            )
            for one in found
        ],
    )
