"""Shows the demo: as a live screen in a terminal, as plain lines otherwise."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...core.lifecycle import Lifecycle
from .. import output
from .demo_workers import WorkerProcess

SHOWN_LINES = 9
"""How many of the last lines the screen shows."""
AMBER = "bold dark_orange"
STYLES = {"works": "green", "killed": "bold red", "frozen": "bold cyan", "ended": "dim"}
WIDEST = 20
"""Characters of a bar at most, each for two jobs."""


@dataclass(frozen=True)
class LeasedOrder:
    """A leased order: its number, the owner of its lease, and the seconds until the lease expires."""

    number: int
    owner: str
    left: float


@dataclass(frozen=True)
class DemoView:
    """The data of one screen."""

    title: str
    lifecycles: Sequence[Lifecycle]
    counts: Mapping[str, Mapping[str, int]]
    leased: Sequence[LeasedOrder] = ()
    workers: Sequence[WorkerProcess] = field(default=())


Look = Callable[[], DemoView]


class Display(Protocol):
    """Shows messages and screens."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def title(self, sentence: str) -> None:
        """Start a new step."""
        ...

    def say(self, sentence: str, style: str = "") -> None: ...

    def detail(self, line: str) -> None:
        """Print a line that the live screen does not need."""
        ...

    def draw(self, look: Look) -> None:
        """Show the current screen, if the display has one."""
        ...


def open_display() -> Display:
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


class PlainDisplay:
    """Prints plain lines."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def title(self, sentence: str) -> None:
        self.say(f"\n{sentence}", "bold")

    def say(self, sentence: str, style: str = "") -> None:
        output.print_line(sentence, style=style)
        sys.stdout.flush()

    def detail(self, line: str) -> None:
        self.say(line)

    def draw(self, look: Look) -> None:
        del look


class LiveDisplay:
    """Updates one live screen, which disappears when the demo ends."""

    def __init__(self) -> None:
        self._live = Live(console=output.make_console(), auto_refresh=False, transient=True)
        self._lines: deque[Text] = deque(maxlen=SHOWN_LINES)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def title(self, sentence: str) -> None:
        del sentence
        self._lines.clear()

    def say(self, sentence: str, style: str = "") -> None:
        self._lines.append(Text(output.sanitize(sentence), style=style))

    def detail(self, line: str) -> None:
        del line

    def draw(self, look: Look) -> None:
        view = look()
        self._live.update(Group(*picture(view), "", *self._lines), refresh=True)


# ---------------------------------------------------------------- the picture
def picture(view: DemoView) -> Iterator[RenderableType]:
    """Render the screen without the message lines."""
    yield Text(view.title, style="bold")
    yield ""
    if len(view.lifecycles) == 1:
        yield diagram(view.lifecycles[0], view.counts.get(view.lifecycles[0].name, {}))
    else:
        yield overview(view.lifecycles, view.counts)
    yield ""
    yield from _workers(view)


def diagram(lifecycle: Lifecycle, counts: Mapping[str, int]) -> Table:
    """Render a lifecycle, one line per state: its job count and its transitions."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for state in lifecycle.states:
        count = counts.get(state, 0)
        bar = f"{'█' * min((count + 1) // 2, WIDEST):<{WIDEST}}"
        style = _style(lifecycle, state)
        made.add_row(
            Text(state, style=style),
            Text(f"{count:>3}"),
            Text(bar, style=style),
            Text(transitions_from(lifecycle, state), style="dim"),
        )
    return made


def overview(lifecycles: Sequence[Lifecycle], counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Render several lifecycles, one line each, with job counts by state."""
    made = Table("lifecycle", "where its jobs are", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for lifecycle in lifecycles:
        cell = Text()
        for state in lifecycle.states:
            count = counts.get(lifecycle.name, {}).get(state, 0)
            cell.append(f"{state} {count}", style=_style(lifecycle, state) if count else "dim").append("   ")
        made.add_row(Text(lifecycle.name, style="bold"), cell)
    return made


def transitions_from(lifecycle: Lifecycle, state: str) -> str:
    """Render the transitions out of a state."""
    targets: dict[str, list[str]] = {}
    for arrow in lifecycle.arrows:
        if arrow.source == state:
            targets.setdefault(arrow.target, []).append(arrow.event)
    return "   ".join(f"─{', '.join(events)}─▶ {target}" for target, events in targets.items())


def _style(lifecycle: Lifecycle, state: str) -> str:
    if state not in lifecycle.finals:
        return "blue" if state in lifecycle.waiting else "yellow"
    return "green" if state in lifecycle.targets("succeed") else "red"


def _workers(view: DemoView) -> Iterator[RenderableType]:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for worker in view.workers:
        mine = [
            order for order in view.leased if order.owner.partition("#")[0] == worker.name and "/" not in order.owner
        ]
        made.add_row(
            Text(worker.name, style="bold"),
            Text(f"process {worker.pid}", style="dim"),
            Text(worker.fate, style=STYLES[worker.fate]),
            Text(f"{len(mine)} jobs"),
            _leases(worker, mine),
        )
    yield made


def _leases(worker: WorkerProcess, mine: Sequence[LeasedOrder]) -> Text:
    """Render a worker's orders. For a killed or frozen worker, show the rest of each lease."""
    if worker.fate == "works":
        return Text(" ".join(f"#{order.number}" for order in mine), style="dim")
    return Text("  ".join(f"#{order.number} {max(order.left, 0):.1f} s" for order in mine), style=AMBER)
