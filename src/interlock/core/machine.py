"""State machines: states and labelled transitions, written as data or read from a Mermaid diagram."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Self

from . import mermaid
from .mermaid import NAME, Drawing, Edge


@dataclass(frozen=True, slots=True)
class Arrow:
    """One transition. Two are equal if they have the same source, event and target."""

    source: str
    event: str
    target: str
    note: str = field(default="", compare=False)
    """The text after the event. The engine ignores it."""
    line: int | None = field(default=None, compare=False)
    """The line in the diagram, if it was read from one."""

    def __str__(self) -> str:
        return f"{self.source} --> {self.target}: {self.event}" if self.event else f"{self.source} --> {self.target}"


class Machine:
    """States and labelled transitions. Labels are free text, and a machine needs no final state.

    Two machines are equal if they have the same name, initial state and transitions. Order and notes do not matter.
    """

    name: str
    initial: str
    arrows: tuple[Arrow, ...]
    states: tuple[str, ...]
    """In order of appearance."""
    finals: frozenset[str]
    """The states without exits."""

    def __init__(
        self, name: str, /, *, transitions: Iterable[tuple[str, str, str]], initial: str | None = None
    ) -> None:
        """Build a machine from (source, event, target) triples. It starts in `initial`, or in the first source.

        `LifecycleError` if it is faulty.
        """
        edges = [Edge(source, " ".join(event.split()), target) for source, event, target in transitions]
        states: dict[str, int | None] = dict.fromkeys(state for edge in edges for state in (edge.source, edge.target))
        first = edges[0].source if edges else None
        self._declare(name, Drawing(name, initial if initial is not None else first, edges, states))

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """The machine of a Mermaid `stateDiagram-v2`. `LifecycleError`, with the line, if it is faulty."""
        return cls._from_drawing(name, mermaid.read(text, origin=name))

    @classmethod
    def load(cls, path: str | PathLike[str], name: str | None = None) -> Self:
        """The machine in a Markdown file; its name is the file's stem by default."""
        file = Path(path)
        return cls.from_markdown(
            file.stem if name is None else name, file.read_text(encoding="utf-8-sig"), origin=file.name
        )

    @classmethod
    def from_markdown(cls, name: str, markdown: str, *, origin: str) -> Self:
        """The machine in a Markdown text: its only state diagram, or the one under the heading with its name.

        Errors name the text by its `origin`.
        """
        text, line = mermaid.find(markdown, name, origin=origin)
        return cls._from_drawing(name, mermaid.read(text, origin=f"{name} ({origin})", first_line=line))

    @classmethod
    def _from_drawing(cls, name: str, drawing: Drawing) -> Self:
        machine = cls.__new__(cls)
        cls._declare(machine, name, drawing)
        return machine

    def _declare(self, name: str, drawing: Drawing) -> None:
        self.name = name
        if not NAME.fullmatch(name):
            drawing.refuse(f"{name!r} is not a name: use a letter, then up to 63 letters, digits, `_` or `-`.")
        for state, line in drawing.states.items():
            if not NAME.fullmatch(state):
                drawing.refuse(
                    f"{state!r} is not a state's name: use a letter, then up to 63 letters, digits, `_` or `-`.", line
                )
        if not drawing.edges:
            drawing.refuse("there are no transitions: a machine needs at least one.")
        if drawing.initial is None:
            drawing.refuse("there is no initial state: add `[*] --> first_state`.")
        if drawing.initial not in drawing.states:
            drawing.refuse(
                f"the initial state {drawing.initial} is in no transition: the states are {', '.join(drawing.states)}."
            )
        self.initial = drawing.initial
        self.states = tuple(drawing.states)
        self.arrows = tuple(self._arrow(edge, drawing) for edge in drawing.edges)
        self.finals = frozenset(self.states) - {arrow.source for arrow in self.arrows}
        self._refuse_repetition(drawing)

    def _arrow(self, edge: Edge, drawing: Drawing) -> Arrow:
        if "%%" in edge.label or edge.label.startswith(":"):
            drawing.refuse(
                f"the label {edge.label!r} cannot be read back from a diagram: remove `%%` and a leading `:`.",
                edge.line,
            )
        event, note = self._label(edge.label)
        return Arrow(edge.source, event, edge.target, note, edge.line)

    @staticmethod
    def _label(label: str) -> tuple[str, str]:
        """The event and the note of a label. In a plain machine, the whole label is the event."""
        return label, ""

    def _refuse_repetition(self, drawing: Drawing) -> None:
        seen: set[Arrow] = set()
        for arrow in self.arrows:
            if arrow in seen:
                drawing.refuse(f"the transition {arrow} appears twice: remove one.", arrow.line)
            seen.add(arrow)
        for state, line in drawing.ends.items():
            if state not in self.finals:
                drawing.refuse(
                    f"state {state} is marked as final (`{state} --> [*]`) but has exits: remove one or the other.",
                    line,
                )

    def mermaid(self) -> str:
        """The Mermaid diagram. Parsing it under the same name gives an equal machine."""
        return mermaid.write(
            self.initial, ((arrow.source, f"{arrow.event} {arrow.note}".strip(), arrow.target) for arrow in self.arrows)
        )

    def table(self) -> str:
        """The transitions as a Markdown table, in their order."""
        noted = any(arrow.note for arrow in self.arrows)
        rows = [("From", "Event", "To", "Note"), ("---", "---", "---", "---")]
        rows += [
            (arrow.source, arrow.event.replace("|", "\\|"), arrow.target, arrow.note.replace("|", "\\|"))
            for arrow in self.arrows
        ]
        return "".join("| " + " | ".join(row if noted else row[:3]) + " |\n" for row in rows)

    def pairs(self) -> frozenset[tuple[str, str]]:
        """The (source, target) pairs of all transitions."""
        return frozenset((arrow.source, arrow.target) for arrow in self.arrows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, frozenset[Arrow]]:
        return self.name, self.initial, frozenset(self.arrows)

    def __repr__(self) -> str:
        sizes = f"{len(self.states)} states, {len(self.arrows)} transitions"
        return f"<{type(self).__name__} {self.name}: {sizes}, starts in {self.initial}>"
