"""Retries work that stored nothing, and recognises the errors of a database that cannot write."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import Unavailable

T = TypeVar("T")

CANNOT_WRITE_STATES = ("53", "58030", "25006")
"""PostgreSQL's codes: out of disk space or memory, I/O error, read-only server."""
CANNOT_WRITE_CODES = frozenset({7, 8, 10, 13})
"""SQLite's codes: out of memory, read-only, I/O error, full."""

COMMIT_TRIES = 3
"""How often a commit is tried in all, together with its function."""


def retry(
    work: Callable[[], T],
    should_retry: Callable[[Exception], bool],
    *,
    tries: int | None = None,
    pause: Callable[[int], object] | None = None,
) -> T:
    """Call `work` until it succeeds, at most `tries` times; an error that `should_retry` refuses propagates at once.

    `pause` is called with the number of failures before each retry.
    """
    wait = pause or _short_pause
    failures = 0
    while True:
        try:
            return work()
        except Exception as error:
            failures += 1
            if failures == tries or not should_retry(error):
                raise
        wait(failures)


def _short_pause(failures: int) -> None:
    time.sleep(random.uniform(0, 0.02 * 2**failures))


def jitter() -> float:
    """A random number in [0, 1), so that clients that lost the same server do not all reconnect at once."""
    return random.uniform(0, 1)


def cannot_write(error: BaseException) -> bool:
    """Whether the error, or one that it wraps, says that the database cannot write now."""
    return any(
        (getattr(each, "sqlstate", None) or "").startswith(CANNOT_WRITE_STATES)
        or int(getattr(each, "sqlite_errorcode", 0) or 0) & 0xFF in CANNOT_WRITE_CODES
        for each in causes(error)
    )


def write_unavailable(error: BaseException) -> Unavailable:
    """The `Unavailable` that callers and workers get for such an error."""
    detail = str(error).strip()
    return Unavailable(
        f"The database cannot write now ({detail}); nothing was stored. Check its disk space, and that it is not "
        "read-only."
    )


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and the errors behind it."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
