"""Reads and writes Mermaid state diagrams. It supports the part of Mermaid that names states and transitions."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..errors import LifecycleError

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
HEADER = "stateDiagram-v2"
END = "[*]"

_STATE = re.compile(r'state\s+(?:"[^"]*"\s+as\s+)?(?P<name>[^\s"{<]+)\s*(?P<open>\{)?')
_NOTE = re.compile(r"note\s+(?:left|right)\s+of\s+[^\s:]+\s*(?P<text>:.*)?")
_FLOATING_NOTE = re.compile(r'note\s+"[^"]*"\s+as\s+\S+')
_LOOKS = re.compile(r"(?:direction\s+(?:LR|RL|TB|BT|TD)|classDef\s.+|class\s.+)")
_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})\s*(?P<info>[^\s`{]*)")
_HEADING = re.compile(r"#{1,6}\s+(?P<text>.+)")


@dataclass(frozen=True, slots=True)
class Edge:
    """A transition as written, before its label is parsed."""

    source: str
    label: str
    target: str
    line: int | None = None


@dataclass(slots=True)
class Drawing:
    """A diagram with its composites flattened.

    `states` has the line where each first appears; `ends` has those marked as final.
    """

    origin: str
    initial: str | None = None
    edges: list[Edge] = field(default_factory=list[Edge])
    states: dict[str, int | None] = field(default_factory=dict[str, int | None])
    ends: dict[str, int] = field(default_factory=dict[str, int])

    def refuse(self, sentence: str, line: int | None = None) -> NoReturn:
        raise LifecycleError(
            f"{self.origin}, line {line}: {sentence}" if line is not None else f"{self.origin}: {sentence}"
        )


@dataclass(slots=True)
class _Composite:
    name: str
    line: int | None
    parent: "_Composite | None"
    initial: str | None = None
    mentions: dict[str, None] = field(default_factory=dict[str, None])


def read(text: str, *, origin: str, first_line: int = 1) -> Drawing:
    """The diagram in `text`.

    `LifecycleError`, with line and remedy, for anything outside the supported part of Mermaid.
    """
    reader = _Reader(origin)
    for number, line in enumerate(_lines(text), first_line):
        reader.read(line, number)
    return reader.flatten()


def write(initial: str, edges: Iterable[tuple[str, str, str]]) -> str:
    """A diagram of these (source, label, target) edges. Reading it gives the same edges."""
    lines = [HEADER, f"  {END} --> {initial}"]
    lines += [
        f"  {source} --> {target}: {label}" if label else f"  {source} --> {target}" for source, label, target in edges
    ]
    return "\n".join(lines) + "\n"


def find(markdown: str, name: str, *, origin: str) -> tuple[str, int]:
    """The state diagram of a Markdown text, and its line: the only one, or the one under a heading with `name`."""
    blocks = [block for block in _blocks(_lines(markdown)) if _is_state_diagram(block.text)]
    if not blocks:
        raise LifecycleError(
            f"{origin} has no ```mermaid block that starts with `{HEADER}`: add one, or name another file."
        )
    if len(blocks) > 1:
        blocks = _under_heading(blocks, name, origin)
    return blocks[0].text, blocks[0].line


@dataclass(frozen=True, slots=True)
class _Block:
    heading: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return [word.casefold() for word in NAME.findall(self.heading)]


def _under_heading(blocks: Sequence[_Block], name: str, origin: str) -> list[_Block]:
    wanted = name.casefold()
    named = [block for block in blocks if block.words[:1] == [wanted]] or [
        block for block in blocks if wanted in block.words
    ]
    if len(named) != 1:
        headings = ", ".join(f"“{block.heading}” (line {block.line})" for block in named or blocks)
        count = f"{len(blocks)} state diagrams, {len(named)} of them under a heading that names {name}"
        raise LifecycleError(f"{origin} has {count}: {headings}. Exactly one heading must name it.")
    return named


def _lines(text: str) -> list[str]:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _is_state_diagram(text: str) -> bool:
    words = (line.strip() for line in text.split("\n"))
    return next((line for line in words if line and not line.startswith("%%")), "").startswith("stateDiagram")


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    heading, fence, start, mermaid = "", "", 0, False
    for number, line in enumerate(lines, 1):
        opened = _FENCE.match(line)
        if fence:
            if opened and line.strip() == opened["fence"] and opened["fence"].startswith(fence):
                if mermaid:
                    yield _Block(heading, start, "\n".join(lines[start - 1 : number - 1]))
                fence = ""
        elif opened:
            fence, start, mermaid = opened["fence"], number + 1, opened["info"].lower() == "mermaid"
        elif titled := _HEADING.match(line):
            heading = titled["text"].strip()


class _Reader:
    """Reads a diagram line by line. It resolves transitions at the end, when all composites are known."""

    def __init__(self, origin: str) -> None:
        self.drawing = Drawing(origin)
        self.top = _Composite("", None, None)
        self.inside = self.top
        self.composites: dict[str, _Composite] = {}
        self.edges: list[Edge] = []
        self.seen: dict[str, int] = {}
        self.started = False
        self.note_from: int | None = None

    def read(self, text: str, number: int) -> None:
        line = re.split(r"(?:^|\s)%%", text.strip(), maxsplit=1)[0].strip()
        if self.note_from is not None:
            self.note_from = None if line == "end note" else self.note_from
        elif not line:
            return
        elif not self.started:
            if line != HEADER:
                self.drawing.refuse(f"found {line!r}, but a diagram starts with `{HEADER}`.", number)
            self.started = True
        elif not self._note(line, number):
            self._statement(line, number)

    def _note(self, line: str, number: int) -> bool:
        note = _NOTE.fullmatch(line)
        if note and note["text"] is None:
            self.note_from = number
        return bool(note or _FLOATING_NOTE.fullmatch(line))

    def _statement(self, line: str, number: int) -> None:
        if declared := _STATE.fullmatch(line):
            self._declare(declared["name"], bool(declared["open"]), number, line)
        elif line == "}":
            if self.inside.parent is None:
                self.drawing.refuse("this `}` closes nothing: remove it.", number)
            self.inside = self.inside.parent
        elif "-->" in line:
            self._arrow(line, number)
        elif not _LOOKS.fullmatch(line):
            forms = '`A --> B: event`, `[*] --> A`, `A --> [*]`, `state "Long name" as A` or `state A {`'
            self.drawing.refuse(f"{line!r} is not understood: write one of {forms} per line.", number)

    def _declare(self, name: str, opens: bool, number: int, line: str) -> None:
        self._name(name, number, line)
        if not opens:
            self._mention(name, number)
            return
        if name in self.composites:
            self.drawing.refuse(f"composite {name} is opened a second time: put its states in one place.", number)
        self.inside = self.composites[name] = _Composite(name, number, self.inside)

    def _arrow(self, line: str, number: int) -> None:
        left, _, rest = line.partition("-->")
        right, _, label = rest.partition(":")
        source, target, label = left.strip(), right.strip(), " ".join(label.split())
        if label.startswith(":"):
            self.drawing.refuse(f"{line!r} styles a state in an arrow: give it its own `class` line.", number)
        for name in (source, target):
            if name != END:
                self._name(name, number, line)
        if source == END:
            self._start(target, number)
        elif target == END:
            self._mention(source, number)
            self.drawing.ends.setdefault(source, number)
        else:
            self._mention(source, number)
            self._mention(target, number)
            self.edges.append(Edge(source, label, target, number))

    def _start(self, name: str, number: int) -> None:
        if name == END:
            self.drawing.refuse(f"`{END} --> {END}` has no state: name the first one.", number)
        if self.inside.initial not in (None, name):
            self.drawing.refuse(
                f"{name} is a second initial state beside {self.inside.initial}: keep one `{END} -->`.", number
            )
        self.inside.initial = name
        self._mention(name, number)

    def _name(self, name: str, number: int, line: str) -> None:
        if not NAME.fullmatch(name):
            self.drawing.refuse(
                f"{name!r} in {line!r} is not a state's name: use a letter, then up to 63 letters, digits, `_` or `-`.",
                number,
            )

    def _mention(self, name: str, number: int) -> None:
        self.seen.setdefault(name, number)
        self.inside.mentions.setdefault(name)

    # ------------------------------------------------------------ flattening
    def flatten(self) -> Drawing:
        drawing = self.drawing
        if not self.started:
            drawing.refuse(f"the diagram is empty: it starts with `{HEADER}`.")
        if self.note_from is not None:
            drawing.refuse("this note has no `end note`: add it.", self.note_from)
        if self.inside is not self.top:
            drawing.refuse(f"composite {self.inside.name} is not closed: add a `}}`.", self.inside.line)
        drawing.states = {name: line for name, line in self.seen.items() if name not in self.composites}
        drawing.initial = self.top.initial and self._entered(self.top.initial, self.seen[self.top.initial])
        for name, line in drawing.ends.items():
            if name in self.composites:
                drawing.refuse(f"composite {name} is marked as final: mark its states instead.", line)
        drawing.edges = [flat for edge in self.edges for flat in self._flat(edge)]
        return drawing

    def _flat(self, edge: Edge) -> Iterator[Edge]:
        target = self._entered(edge.target, edge.line)
        if edge.source not in self.composites:
            yield Edge(edge.source, edge.label, target, edge.line)
            return
        members = dict.fromkeys(self._members(self.composites[edge.source]))
        if not members:
            self.drawing.refuse(
                f"composite {edge.source} has no states for this transition to leave: add them inside its braces.",
                edge.line,
            )
        # A transition from a composite to one of its own states applies to its other states.
        yield from (Edge(member, edge.label, target, edge.line) for member in members if member != target)

    def _members(self, composite: _Composite) -> Iterator[str]:
        yield from (name for name in composite.mentions if name not in self.composites)
        for inner in self.composites.values():
            if inner.parent is composite:
                yield from self._members(inner)

    def _entered(self, name: str, line: int | None) -> str:
        visited: set[str] = set()
        while name in self.composites:
            inner = self.composites[name].initial
            if inner is None or inner in visited:
                self.drawing.refuse(
                    f"composite {name} has no initial state: add `{END} --> first_state` inside its braces.",
                    line,
                )
            visited.add(inner)
            name = inner
        return name
