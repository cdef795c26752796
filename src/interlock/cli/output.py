"""What a person reads: lines, tables, JSON. What was stored is shown as text and never obeyed: no markup, no control characters."""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.text import Text

from .table import Column, lines, wrap

WHOLE = (
    "id", "at", "pid", "busy", "attempt", "holder", "version", "left", "tries left", "due", "later", "held", "running",
    "jobs", "states", "arrows", "oldest due", "handed over", "last beat", "last heartbeat", "held for", "failed",
    "ended by", "status", "event")
"""Columns that are never cut: ids, numbers, times, and the engine's own terms."""
# Control characters (a terminal obeys them), and those that turn the direction of what follows.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_KEEPS_LINES = re.compile(f"(?!\n){_CONTROL.pattern}")


def plain(text: object, *, lines: bool = False) -> str:
    """A text that a terminal shows and does not obey: on one line, unless it may keep its lines."""
    shown = str(text).replace("\r\n", "\n").replace("\t", " ")
    return _KEEPS_LINES.sub("\ufffd", shown) if lines else _CONTROL.sub("\ufffd", shown.replace("\n", " "))


def console(*, stderr: bool = False) -> Console:
    """A console that is as wide as its lines where nobody sees them being cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 10_000, markup=False, highlight=False, emoji=False)


def width() -> int | None:
    """The width of the terminal; None without one, as in a pipe."""
    return console().width if sys.stdout.isatty() else None


def say(text: object = "", style: str | None = None) -> None:
    """Print one or more lines; in a terminal, long lines wrap between words."""
    console().print(Text(plain(text, lines=True), style=style or ""), soft_wrap=not sys.stdout.isatty())


def complain(sentence: str) -> None:
    """Why it went no further, on the other channel."""
    said = Text("interlock: ", style="bold red").append(plain(sentence), style="not bold default")
    console(stderr=True).print(said, soft_wrap=not sys.stderr.isatty())


def remark(sentence: str, *, lines: bool = False) -> None:
    """Something worth knowing, on the other channel, so that what is printed stays what was asked for."""
    console(stderr=True).print(Text(plain(sentence.rstrip(), lines=lines), style="dim"), soft_wrap=True)


def grid(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Text:
    """A table. In a terminal, cells are cut to fit its width; ids are never cut."""
    shaped = [column if isinstance(column, Column) else _named(column) for column in columns]
    head, *body = lines(shaped, ([plain("" if cell is None else cell) for cell in row] for row in rows), width())
    made = Text(head, style="bold", no_wrap=True, overflow="ignore")
    return made.append("".join(f"\n{line}" for line in body), style="not bold")


def _named(column: str) -> Column:
    return Column(column, "whole" if column in WHOLE else "cut")


def heading(text: object, style: str = "bold") -> Text:
    """A line of its own, as a thing to show."""
    return Text(plain(text), style=style)


def show(*things: RenderableType) -> None:
    """One after the other, without spaces at the ends of lines."""
    out = console()
    with out.capture() as captured:
        for thing in things:
            out.print(thing, soft_wrap=isinstance(thing, Text) and (thing.no_wrap or not sys.stdout.isatty()))
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    show(grid(columns, rows))


def pairs(rows: Iterable[tuple[str, object]], *, indent: int = 0) -> None:
    """What is known of one thing, a line each; what is not known is left out."""
    known = [(name, plain(value, lines=True)) for name, value in rows if value is not None]
    names, room = max((len(name) for name, _ in known), default=0), width()
    for name, text in known:
        # In a terminal, a text of several lines is printed below its name, at full width.
        below = room is not None and "\n" in text
        deep = indent + (2 if below else names + 2)
        parts = text.split("\n")
        if room is not None:
            parts = [part for line in parts for part in wrap(line, room - deep)]
        head = f"{name}\n{' ' * deep}" if below else f"{name:<{names}}  "
        shown = Text(" " * indent + head, style="bold").append(f"\n{' ' * deep}".join(parts), style="not bold")
        console().print(shown, soft_wrap=True)


def moment(at: datetime | None) -> str | None:
    """A stored time as people read it, in UTC."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# ---------------------------------------------------------------- for programs
def as_json(value: object) -> None:
    """A value as JSON, whole. Every character that a terminal might obey is written as its number."""
    text = json.dumps(_simple(value), indent=2, ensure_ascii=True)
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")


def each_as_json(values: Iterable[object]) -> None:
    """Print the values as a JSON list, one at a time, so that they are not all in memory at once."""
    begun = False
    for value in values:
        text = json.dumps(_simple(value), indent=2, ensure_ascii=True).replace("\x7f", "\\u007f")
        sys.stdout.write((",\n" if begun else "[\n") + textwrap.indent(text, "  "))
        begun = True
    sys.stdout.write("\n]\n" if begun else "[]\n")


def _simple(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _simple(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _simple(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_simple(item) for item in cast("Sequence[object]", value)]
    return value
