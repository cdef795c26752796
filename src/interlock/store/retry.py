"""Again, in place: where the database asks for the same transaction once more, because nothing of it has happened."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import Unavailable

T = TypeVar("T")

UNABLE = ("53", "58030", "25006")
"""PostgreSQL's codes: out of disk space or memory, I/O error, read-only server."""
UNABLE_CODES = frozenset({7, 8, 10, 13})
"""SQLite's: out of memory, read-only, I/O error, full."""

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


def is_unable(error: BaseException) -> bool:
    """Whether the error says that the database cannot write now. It also looks into errors that wrap the driver's."""
    return any(
        (getattr(each, "sqlstate", None) or "").startswith(UNABLE) or int(getattr(each, "sqlite_errorcode", 0) or 0) & 0xFF in UNABLE_CODES
        for each in causes(error))


def unable(error: BaseException) -> Unavailable:
    """The `Unavailable` that callers and workers get for such an error."""
    told = str(error).strip()
    return Unavailable(
        f"The database cannot write now ({told}); nothing was stored. Check its disk space, or if it is read-only.")


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and those behind it, as far as they are told."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
