"""Where the story is seen: a live screen on a terminal, plain lines elsewhere."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...lifecycle import Lifecycle
from .. import screen
from .cast import Player

HEARD = 9
"""How many of the last lines stay on the screen."""
AMBER = "bold dark_orange"
STYLES = {"works": "green", "killed": "bold red", "frozen": "bold cyan", "ended": "dim"}
WIDEST = 20
"""Characters of a bar at most, each for two jobs."""


@dataclass(frozen=True)
class Held:
    """A job that somebody holds: under which number, who, and for how many seconds more."""

    number: int
    owner: str
    left: float


@dataclass(frozen=True)
class View:
    """What there is to see at a moment."""

    title: str
    lifecycles: Sequence[Lifecycle]
    counts: Mapping[str, Mapping[str, int]]
    held: Sequence[Held] = ()
    players: Sequence[Player] = field(default=())


Look = Callable[[], View]


class Stage(Protocol):
    """Shows what is said, and what there is to see."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def title(self, sentence: str) -> None:
        """A new scene."""
        ...

    def say(self, sentence: str, style: str = "") -> None: ...

    def aside(self, line: str) -> None:
        """What a picture shows anyway."""
        ...

    def draw(self, look: Look) -> None:
        """Show the present moment, where it can be shown."""
        ...


def stage() -> Stage:
    return LiveStage() if sys.stdout.isatty() else PlainStage()


class PlainStage:
    """Lines, one after the other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def title(self, sentence: str) -> None:
        self.say(f"\n{sentence}", "bold")

    def say(self, sentence: str, style: str = "") -> None:
        screen.say(sentence, style=style)
        sys.stdout.flush()

    def aside(self, line: str) -> None:
        self.say(line)

    def draw(self, look: Look) -> None:
        del look


class LiveStage:
    """One screen that changes; when the story is over it makes room for the last one."""

    def __init__(self) -> None:
        self._live = Live(console=screen.console(), auto_refresh=False, transient=True)
        self._heard: deque[Text] = deque(maxlen=HEARD)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def title(self, sentence: str) -> None:
        del sentence
        self._heard.clear()

    def say(self, sentence: str, style: str = "") -> None:
        self._heard.append(Text(screen.plain(sentence), style=style))

    def aside(self, line: str) -> None:
        del line

    def draw(self, look: Look) -> None:
        view = look()
        self._live.update(Group(*picture(view), "", *self._heard), refresh=True)


# ---------------------------------------------------------------- the picture
def picture(view: View) -> Iterator[RenderableType]:
    """The whole screen, but for what was said."""
    yield Text(view.title, style="bold")
    yield ""
    if len(view.lifecycles) == 1:
        yield diagram(view.lifecycles[0], view.counts.get(view.lifecycles[0].name, {}))
    else:
        yield overview(view.lifecycles, view.counts)
    yield ""
    yield from _players(view)


def diagram(lifecycle: Lifecycle, counts: Mapping[str, int]) -> Table:
    """A lifecycle, a line for each state: how many jobs are there, and where its events lead."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for state in lifecycle.states:
        count = counts.get(state, 0)
        bar = f"{'█' * min((count + 1) // 2, WIDEST):<{WIDEST}}"
        style = _style(lifecycle, state)
        made.add_row(Text(state, style=style), Text(f"{count:>3}"), Text(bar, style=style), Text(ways(lifecycle, state), style="dim"))
    return made


def overview(lifecycles: Sequence[Lifecycle], counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Several lifecycles, a line for each: where their jobs are."""
    made = Table("lifecycle", "where its jobs are", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for lifecycle in lifecycles:
        cell = Text()
        for state in lifecycle.states:
            count = counts.get(lifecycle.name, {}).get(state, 0)
            cell.append(f"{state} {count}", style=_style(lifecycle, state) if count else "dim").append("   ")
        made.add_row(Text(lifecycle.name, style="bold"), cell)
    return made


def ways(lifecycle: Lifecycle, state: str) -> str:
    """Where the events of a state lead."""
    targets: dict[str, list[str]] = {}
    for arrow in lifecycle.arrows:
        if arrow.source == state:
            targets.setdefault(arrow.target, []).append(arrow.event)
    return "   ".join(f"─{', '.join(events)}─▶ {target}" for target, events in targets.items())


def _style(lifecycle: Lifecycle, state: str) -> str:
    if state not in lifecycle.finals:
        return "blue" if state in lifecycle.waiting else "yellow"
    return "green" if state in lifecycle.targets("succeed") else "red"


def _players(view: View) -> Iterator[RenderableType]:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for player in view.players:
        mine = [held for held in view.held if held.owner.partition("#")[0] == player.name and "/" not in held.owner]
        made.add_row(Text(player.name, style="bold"), Text(f"process {player.pid}", style="dim"), Text(player.fate, style=STYLES[player.fate]),
                     Text(f"holds {len(mine)}"), _leases(player, mine))
    yield made


def _leases(player: Player, mine: Sequence[Held]) -> Text:
    """The orders that it holds; those of one who can do nothing with them are amber, with what is left of their lease."""
    if player.fate == "works":
        return Text(" ".join(f"#{held.number}" for held in mine), style="dim")
    return Text("  ".join(f"#{held.number} {max(held.left, 0):.1f} s" for held in mine), style=AMBER)
