"""A short cache for health checks: however many clients ask, the database is queried at most every two seconds."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
FRESH = 2.0
"""Seconds for which an answer is cached."""


class Recent(Generic[T]):
    """The recent result of `ask`, which blocks and so runs in a thread."""

    def __init__(self, ask: Callable[[], T], now: Callable[[], datetime]) -> None:
        self._ask, self._now = ask, now
        self._known: tuple[datetime, T] | None = None
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer, at most `FRESH` seconds old. All current callers get an error of `ask`; errors are not cached."""
        if self._known is not None:
            at, answer = self._known
            # A clock that was set back must not extend the cache.
            if abs((self._now() - at).total_seconds()) <= FRESH:
                return answer
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked())
        # All callers share the query: it continues if one of them leaves.
        return await asyncio.shield(self._asking)

    async def _asked(self) -> T:
        try:
            at, answer = self._now(), await run_in_threadpool(self._ask)
            self._known = at, answer
            return answer
        finally:
            self._asking = None
