"""Output of the commands: JSON for programs, and text without control characters for people."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import cast

from rich.cells import cell_len, set_cell_size

MIN_COLUMN_WIDTH = 8
"""Columns are never cut below this width, in characters."""


# ---------------------------------------------------------------- for programs
def to_json(value: object, *, indent: int | None = None) -> str:
    """A value as ASCII JSON: everything else is escaped, so that the output is safe for terminals and line readers."""
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


# ---------------------------------------------------------------- for people
def plain_text(text: object) -> str:
    """The text on one line. Control and format characters are replaced, so that a terminal does not interpret them."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(str(text).splitlines()))


def format_time(at: datetime) -> str:
    """A timestamp for people, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shorten_ids(ids: Sequence[str], shortest: int) -> list[str]:
    """Unique prefixes of these ids, all of the same length."""
    for length in range(shortest, max(map(len, ids), default=0)):
        if len({id[:length] for id in ids}) == len(ids):
            return [id[:length] for id in ids]
    return list(ids)


def format_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None, cut: Sequence[str] = ()
) -> str:
    """A table as text. If it is wider than `width`, the columns in `cut` are shortened, in this order."""
    cells = [list(columns), *([plain_text("" if cell is None else cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for place in map(columns.index, cut if width is not None else ()):
        beyond = sum(widths) + 2 * (len(widths) - 1) - (width or 0)
        widths[place] = min(widths[place], max(MIN_COLUMN_WIDTH, widths[place] - beyond))
    cells = [
        [
            cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"
            for cell, width in zip(row, widths, strict=True)
        ]
        for row in cells
    ]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


# ---------------------------------------------------------------- in a terminal
def say(text: str) -> None:
    """Print a line to stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Print a line to stderr, so that stdout has only the result."""
    sys.stderr.write(f"{plain_text(text)}\n")


def terminal_width() -> int | None:
    """The width of the terminal. None for a pipe, which gets everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
