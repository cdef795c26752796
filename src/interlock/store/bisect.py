"""One bad row must not stop its batch."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def halved(items: Sequence[T], work: Callable[[Sequence[T]], None], fatal: Callable[[Exception], bool]) -> list[tuple[T, Exception]]:
    """Do the work for all, or, where it raises, for each half, down to the culprits; answers those with what they raised. What is fatal goes through."""
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
        return halved(items[:middle], work, fatal) + halved(items[middle:], work, fatal)
    return []
