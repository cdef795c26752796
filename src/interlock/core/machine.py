"""Machines: states and labelled arrows, written as data or read from the Mermaid diagram that documents them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Self

from . import mermaid
from .mermaid import NAME, Drawing, Edge


@dataclass(frozen=True, slots=True)
class Arrow:
    """One way from a state to another. Two arrows are the same if they join the same states by the same event."""

    source: str
    event: str
    target: str
    note: str = field(default="", compare=False)
    """The prose beside the event; nothing depends on it."""
    line: int | None = field(default=None, compare=False)
    """Where it is drawn, if it was read from a diagram."""

    def __str__(self) -> str:
        return f"{self.source} --> {self.target}: {self.event}" if self.event else f"{self.source} --> {self.target}"


class Machine:
    """States and labelled arrows. It may run for ever, and its labels may say anything.

    Two machines are equal if name, initial state and arrows are; in which order they were drawn, and with what prose, does not count.
    """

    name: str
    initial: str
    arrows: tuple[Arrow, ...]
    states: tuple[str, ...]
    """In order of appearance."""
    finals: frozenset[str]
    """The states that no arrow leaves."""

    def __init__(self, name: str, /, *, transitions: Iterable[tuple[str, str, str]], initial: str | None = None) -> None:
        """A machine of (source, event, target) triples that starts in `initial`, or else in the first source. `LifecycleError` if it makes no sense."""
        edges = [Edge(source, " ".join(event.split()), target) for source, event, target in transitions]
        states: dict[str, int | None] = dict.fromkeys(state for edge in edges for state in (edge.source, edge.target))
        first = edges[0].source if edges else None
        self._declare(name, Drawing(name, initial if initial is not None else first, edges, states))

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """The machine that a Mermaid `stateDiagram-v2` draws. `LifecycleError`, naming the line, if it makes no sense."""
        return cls._drawn(name, mermaid.read(text, origin=name))

    @classmethod
    def load(cls, path: str | PathLike[str], name: str | None = None) -> Self:
        """The machine that a Markdown file draws; its name is by default the file's stem."""
        file = Path(path)
        return cls.from_markdown(file.stem if name is None else name, file.read_text(encoding="utf-8-sig"), origin=file.name)

    @classmethod
    def from_markdown(cls, name: str, markdown: str, *, origin: str) -> Self:
        """The machine that a Markdown text draws: in its only state diagram, or in the one under the heading that names it. `origin` is for errors."""
        text, line = mermaid.find(markdown, name, origin=origin)
        return cls._drawn(name, mermaid.read(text, origin=f"{name} ({origin})", first_line=line))

    @classmethod
    def _drawn(cls, name: str, drawing: Drawing) -> Self:
        machine = cls.__new__(cls)
        cls._declare(machine, name, drawing)
        return machine

    def _declare(self, name: str, drawing: Drawing) -> None:
        self.name = name
        if not NAME.fullmatch(name):
            drawing.refuse(f"{name!r} is not a name: use a letter, then up to 63 letters, digits, `_` or `-`.")
        for state, line in drawing.states.items():
            if not NAME.fullmatch(state):
                drawing.refuse(f"{state!r} is not a state's name: use a letter, then up to 63 letters, digits, `_` or `-`.", line)
        if not drawing.edges:
            drawing.refuse("there are no arrows: a machine needs at least one.")
        if drawing.initial is None:
            drawing.refuse("there is no initial state: draw `[*] --> first_state`.")
        if drawing.initial not in drawing.states:
            drawing.refuse(f"the initial state {drawing.initial} is in no arrow: the states are {', '.join(drawing.states)}.")
        self.initial = drawing.initial
        self.states = tuple(drawing.states)
        self.arrows = tuple(self._arrow(edge, drawing) for edge in drawing.edges)
        self.finals = frozenset(self.states) - {arrow.source for arrow in self.arrows}
        self._refuse_repetition(drawing)

    def _arrow(self, edge: Edge, drawing: Drawing) -> Arrow:
        if "%%" in edge.label or edge.label.startswith(":"):
            drawing.refuse(f"the label {edge.label!r} would not read back from a diagram: write it without `%%` and without a leading `:`.", edge.line)
        event, note = self._label(edge.label)
        return Arrow(edge.source, event, edge.target, note, edge.line)

    @staticmethod
    def _label(label: str) -> tuple[str, str]:
        """What a label says: the event and the prose. Of a plain machine, all of it is the event."""
        return label, ""

    def _refuse_repetition(self, drawing: Drawing) -> None:
        seen: set[Arrow] = set()
        for arrow in self.arrows:
            if arrow in seen:
                drawing.refuse(f"the arrow {arrow} is drawn twice: once is enough.", arrow.line)
            seen.add(arrow)
        for state, line in drawing.ends.items():
            if state not in self.finals:
                drawing.refuse(f"state {state} is drawn as final (`{state} --> [*]`) and has exits: take out one or the other.", line)

    def mermaid(self) -> str:
        """The diagram; parsed again under the same name it is an equal machine."""
        return mermaid.write(self.initial, ((arrow.source, f"{arrow.event} {arrow.note}".strip(), arrow.target) for arrow in self.arrows))

    def table(self) -> str:
        """The arrows as a Markdown table, in the order drawn."""
        noted = any(arrow.note for arrow in self.arrows)
        rows = [("From", "Event", "To", "Note"), ("---", "---", "---", "---")]
        rows += [(arrow.source, arrow.event.replace("|", "\\|"), arrow.target, arrow.note.replace("|", "\\|")) for arrow in self.arrows]
        return "".join("| " + " | ".join(row if noted else row[:3]) + " |\n" for row in rows)

    def pairs(self) -> frozenset[tuple[str, str]]:
        """Which states an arrow joins, whatever it is called."""
        return frozenset((arrow.source, arrow.target) for arrow in self.arrows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, frozenset[Arrow]]:
        return self.name, self.initial, frozenset(self.arrows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.states)} states, {len(self.arrows)} arrows, starts in {self.initial}>"
