"""Prints lines, tables and JSON. Stored text is shown without markup or control characters."""

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

from .text_table import Column, lines, wrap

WHOLE = (
    "id",
    "at",
    "pid",
    "busy",
    "attempt",
    "holder",
    "version",
    "left",
    "tries left",
    "due",
    "later",
    "held",
    "running",
    "jobs",
    "states",
    "transitions",
    "oldest due",
    "handed over",
    "last heartbeat",
    "held for",
    "failed",
    "ended by",
    "status",
    "event",
)
"""Columns that are never cut: ids, numbers, times, and the engine's own terms."""
# Control characters, which a terminal would execute, and characters that change the text direction.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_KEEPS_LINES = re.compile(f"(?!\n){_CONTROL.pattern}")


def sanitize(text: object, *, lines: bool = False) -> str:
    """Replace control characters. The result is one line unless `lines` is set."""
    shown = str(text).replace("\r\n", "\n").replace("\t", " ")
    return _KEEPS_LINES.sub("\ufffd", shown) if lines else _CONTROL.sub("\ufffd", shown.replace("\n", " "))


def make_console(*, stderr: bool = False) -> Console:
    """Make a console. Without a terminal, lines are never cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 10_000, markup=False, highlight=False, emoji=False)


def terminal_width() -> int | None:
    """The width of the terminal; None without one, as in a pipe."""
    return make_console().width if sys.stdout.isatty() else None


def print_line(text: object = "", style: str | None = None) -> None:
    """Print one or more lines; in a terminal, long lines wrap between words."""
    make_console().print(Text(sanitize(text, lines=True), style=style or ""), soft_wrap=not sys.stdout.isatty())


def print_error(sentence: str) -> None:
    """Print an error to standard error."""
    said = Text("interlock: ", style="bold red").append(sanitize(sentence), style="not bold default")
    make_console(stderr=True).print(said, soft_wrap=not sys.stderr.isatty())


def print_note(sentence: str, *, lines: bool = False) -> None:
    """Print a note to standard error, so that standard output has only the result."""
    make_console(stderr=True).print(Text(sanitize(sentence.rstrip(), lines=lines), style="dim"), soft_wrap=True)


def render_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Text:
    """A table. In a terminal, cells are cut to fit its width; ids are never cut."""
    shaped = [column if isinstance(column, Column) else _named(column) for column in columns]
    head, *body = lines(
        shaped, ([sanitize("" if cell is None else cell) for cell in row] for row in rows), terminal_width()
    )
    made = Text(head, style="bold", no_wrap=True, overflow="ignore")
    return made.append("".join(f"\n{line}" for line in body), style="not bold")


def _named(column: str) -> Column:
    return Column(column, "whole" if column in WHOLE else "cut")


def render_heading(text: object, style: str = "bold") -> Text:
    """Return a line to print."""
    return Text(sanitize(text), style=style)


def print_blocks(*things: RenderableType) -> None:
    """Print these blocks without trailing spaces."""
    out = make_console()
    with out.capture() as captured:
        for thing in things:
            out.print(thing, soft_wrap=isinstance(thing, Text) and (thing.no_wrap or not sys.stdout.isatty()))
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    print_blocks(render_table(columns, rows))


def print_fields(rows: Iterable[tuple[str, object]], *, indent: int = 0) -> None:
    """Print one field per line. Fields that are None are omitted."""
    known = [(name, sanitize(value, lines=True)) for name, value in rows if value is not None]
    names, room = max((len(name) for name, _ in known), default=0), terminal_width()
    for name, text in known:
        # In a terminal, a text of several lines is printed below its name, at full width.
        below = room is not None and "\n" in text
        deep = indent + (2 if below else names + 2)
        parts = text.split("\n")
        if room is not None:
            parts = [part for line in parts for part in wrap(line, room - deep)]
        head = f"{name}\n{' ' * deep}" if below else f"{name:<{names}}  "
        shown = Text(" " * indent + head, style="bold").append(f"\n{' ' * deep}".join(parts), style="not bold")
        make_console().print(shown, soft_wrap=True)


def format_time(at: datetime | None) -> str | None:
    """Format a stored time for people, in UTC."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# ---------------------------------------------------------------- for programs
def print_json(value: object) -> None:
    """Print a value as JSON. Non-ASCII characters are escaped."""
    text = json.dumps(_simple(value), indent=2, ensure_ascii=True)
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")


def print_json_list(values: Iterable[object]) -> None:
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
