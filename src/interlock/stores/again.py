"""Again, in place: where the database asks for the same transaction once more, because nothing of it has happened."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

COMMITS = 3
"""How often in all a commit is tried, with its function."""


def again(work: Callable[[], T], asks: Callable[[Exception], bool], tries: int) -> T:
    """`work`, up to so many times while what it raises asks for that; then it goes through."""
    for tried in range(1, tries):
        try:
            return work()
        except Exception as error:
            if not asks(error):
                raise
            time.sleep(random.uniform(0, 0.02 * 2**tried))
    return work()


def draw() -> float:
    """A chance in [0, 1), so that many who lost the same server do not all come back at once."""
    return random.uniform(0, 1)


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and those behind it, as far as they are told."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
