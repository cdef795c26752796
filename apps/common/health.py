"""An answer about the state of things that serves many for a moment: however many ask, the database is asked once, and seldom."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
FRESH = 2.0
"""Seconds for which an answer serves whoever asks."""


class Recent(Generic[T]):
    """What `ask` said a moment ago. It blocks, so it runs in a thread."""

    def __init__(self, ask: Callable[[], T], now: Callable[[], datetime]) -> None:
        self._ask, self._now = ask, now
        self._known: tuple[datetime, T] | None = None
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer, at most `FRESH` seconds old. What `ask` raises is raised to everybody who waits, and kept for nobody else."""
        if self._known is not None:
            at, answer = self._known
            # A clock that was set back must not make an answer last.
            if abs((self._now() - at).total_seconds()) <= FRESH:
                return answer
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked())
        # It is everybody's who waits: it goes on if one of them leaves.
        return await asyncio.shield(self._asking)

    async def _asked(self) -> T:
        try:
            at, answer = self._now(), await run_in_threadpool(self._ask)
            self._known = at, answer
            return answer
        finally:
            self._asking = None
