"""Tables that fit the terminal without breaking words. Without a terminal, every cell is complete."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len, set_cell_size

GAP = 2
NARROWEST = 6
"""The smallest width of a cut column, in cells. It also keeps its header."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A cell that does not fit stays complete, is cut at its end, or wraps between words."""

    name: str
    shape: Literal["whole", "cut", "wrap"] = "cut"
    spare: bool = False
    """Whether to drop the column if the table does not fit otherwise."""


def lines(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None) -> list[str]:
    """The header and the rows, at most `width` cells wide if possible; without a width, at full width."""
    cells = [tuple(row) for row in rows]
    shown = list(range(len(columns)))
    if width is not None:
        for spare in [place for place in shown if columns[place].spare]:
            if _total([_natural(columns, cells, place) for place in shown]) > width:
                shown.remove(spare)
    chosen = [columns[place] for place in shown]
    table = [tuple(row[place] for place in shown) for row in [tuple(column.name for column in columns), *cells]]
    widths = [max(cell_len(row[place]) for row in table) for place in range(len(chosen))]
    if width is not None:
        _shrink(chosen, widths, width)
    return [line for row in table for line in _row(chosen, row, widths)]


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits before an ellipsis."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"


def wrap(text: str, width: int) -> list[str]:
    """Wrap the text between words. A word longer than a line is split over several lines."""
    return textwrap.wrap(text, max(width, 1), break_on_hyphens=False) or [""]


def _natural(columns: Sequence[Column], cells: Sequence[Sequence[str]], place: int) -> int:
    return max(map(cell_len, [columns[place].name, *(row[place] for row in cells)]))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Shrink the widest column that may shrink, cell by cell, until the table fits or no column may shrink."""
    floors = [
        wide if column.shape == "whole" else min(wide, max(cell_len(column.name), NARROWEST))
        for column, wide in zip(columns, widths, strict=True)
    ]
    widths[:] = [max(floor, min(wide, width)) for floor, wide in zip(floors, widths, strict=True)]
    while _total(widths) > width:
        loose = [place for place, wide in enumerate(widths) if wide > floors[place]]
        if not loose:
            return
        widths[max(loose, key=lambda place: widths[place])] -= 1


def _row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    parts = [_cell(column, text, width) for column, text, width in zip(columns, row, widths, strict=True)]
    return [
        (" " * GAP)
        .join(set_cell_size(text, max(width, cell_len(text))) for text, width in zip(line, widths, strict=True))
        .rstrip()
        for line in zip_longest(*parts, fillvalue="")
    ]


def _cell(column: Column, text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return [cut(word, width) for word in _words(text, width)] if column.shape == "wrap" else [cut(text, width)]


def _words(text: str, width: int) -> list[str]:
    """Wrap the text between words. A word longer than a line stays in one piece."""
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]
