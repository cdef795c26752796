"""What a person reads: lines, tables, JSON. What was stored is shown as text and never obeyed: no markup, no control characters."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

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


def say(text: object = "", style: str | None = None) -> None:
    """A line, or several; long ones are left to the terminal to wrap."""
    console().print(Text(plain(text, lines=True), style=style or ""), soft_wrap=True)


def complain(sentence: str) -> None:
    """Why it went no further, on the other channel."""
    console(stderr=True).print(Text("interlock: ", style="bold red").append(plain(sentence), style="not bold default"), soft_wrap=True)


def remark(sentence: str, *, lines: bool = False) -> None:
    """Something worth knowing, on the other channel, so that what is printed stays what was asked for."""
    console(stderr=True).print(Text(plain(sentence.rstrip(), lines=lines), style="dim"), soft_wrap=True)


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Rows under their columns; the ids are never cut."""
    made = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in made.columns:
        column.no_wrap = str(column.header) in ("id", "at")
        column.overflow = "fold"
    for row in rows:
        made.add_row(*(Text(plain("" if cell is None else cell)) for cell in row))
    return made


def heading(text: object, style: str = "bold") -> Text:
    """A line of its own, as a thing to show."""
    return Text(plain(text), style=style)


def show(*things: RenderableType) -> None:
    """One after the other, without spaces at the ends of lines."""
    out = console()
    with out.capture() as captured:
        for thing in things:
            out.print(thing, soft_wrap=isinstance(thing, Text))
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    show(grid(columns, rows))


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """What is known of one thing, a line each; what is not known is left out."""
    known = [(name, value) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        text = plain(value, lines=True).replace("\n", "\n" + " " * (width + 2))
        console().print(Text(f"{name:<{width}}  ", style="bold").append(text, style="not bold"), soft_wrap=True)


def moment(at: datetime | None) -> str | None:
    """A stored time as people read it, in UTC."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# ---------------------------------------------------------------- for programs
def as_json(value: object) -> None:
    """A value as JSON, whole. Every character that a terminal might obey is written as its number."""
    text = json.dumps(_simple(value), indent=2, ensure_ascii=True)
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")


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
