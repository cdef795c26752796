"""Finds the bad rows of a batch, so that they do not stop the others."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def bisect(
    items: Sequence[T], work: Callable[[Sequence[T]], None], fatal: Callable[[Exception], bool]
) -> list[tuple[T, Exception]]:
    """Do the work for all items. If it raises, do it for each half, down to single items.

    Returns the items that failed alone, with their errors. A fatal error propagates.
    """
    if not items:
        return []
    try:
        work(items)
    except Exception as error:
        if fatal(error):
            raise
        if len(items) == 1:
            return [(items[0], error)]
        middle = len(items) // 2
        return bisect(items[:middle], work, fatal) + bisect(items[middle:], work, fatal)
    return []
