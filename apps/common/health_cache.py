"""A short cache for health checks: the database is queried at most every two seconds, for any number of clients."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
CACHE_SECONDS = 2.0
"""Seconds for which a result is cached."""


class HealthCache(Generic[T]):
    """Caches the result of `ask`, a blocking function that runs in a thread."""

    def __init__(self, ask: Callable[[], T], now: Callable[[], datetime]) -> None:
        self._ask, self._now = ask, now
        self._known: tuple[datetime, T] | None = None
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The result, at most `CACHE_SECONDS` old. Errors are raised to all current callers and are not cached."""
        if self._known is not None:
            at, answer = self._known
            # `abs`: a clock that is set back must not extend the cache.
            if abs((self._now() - at).total_seconds()) <= CACHE_SECONDS:
                return answer
        if self._task is None:
            self._task = asyncio.create_task(self._query())
        # All callers share the query: it continues if one of them leaves.
        return await asyncio.shield(self._task)

    async def _query(self) -> T:
        try:
            at, answer = self._now(), await run_in_threadpool(self._ask)
            self._known = at, answer
            return answer
        finally:
            self._task = None
