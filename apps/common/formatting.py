"""How things are told: to a program as JSON, to a person as text that a terminal shows and does not obey."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import cast

from rich.cells import cell_len, set_cell_size

NARROWEST = 8
"""Characters that are left of a column, however narrow the terminal."""


# ---------------------------------------------------------------- to a program
def as_json(value: object, *, indent: int | None = None) -> str:
    """A value as JSON, whole. What is not ASCII is written as its number, so nothing in it can upset who reads it."""
    return json.dumps(_simple(value), ensure_ascii=True, allow_nan=False, indent=indent).replace("\x7f", "\\u007f")


def _simple(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _simple(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _simple(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_simple(item) for item in cast("Sequence[object]", value)]
    return value


# ---------------------------------------------------------------- to a person
def plain(text: object) -> str:
    """A text on one line, without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(str(text).splitlines()))


def moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shortened(ids: Sequence[str], shortest: int) -> list[str]:
    """The beginnings of these ids that tell them apart, all of one length."""
    for length in range(shortest, max(map(len, ids), default=0)):
        if len({id[:length] for id in ids}) == len(ids):
            return [id[:length] for id in ids]
    return list(ids)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None, cut: Sequence[str] = ()) -> str:
    """Rows under their columns. Where they are wider than `width`, the columns to `cut` are, one after the other."""
    cells = [list(columns), *([plain("" if cell is None else cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for place in map(columns.index, cut if width is not None else ()):
        beyond = sum(widths) + 2 * (len(widths) - 1) - (width or 0)
        widths[place] = min(widths[place], max(NARROWEST, widths[place] - beyond))
    cells = [[cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…" for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join("  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


# ---------------------------------------------------------------- in a terminal
def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """On the other channel, so that what is printed stays what was asked for."""
    sys.stderr.write(f"{plain(text)}\n")


def width() -> int | None:
    """How wide what is printed may be; a pipe takes everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
