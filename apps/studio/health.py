"""Whether images are made, for monitors and whoever else asks: however many do, the database is asked once, and seldom."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from .answers import Told
from .jobs import Studio

FRESH = 2.0
"""Seconds for which an answer serves whoever asks."""
LATE = 120.0
"""Seconds for which a job may be due while none runs, before somebody should look."""


@dataclass(frozen=True)
class State:
    """How the studio stands. No name is in it."""

    ok: bool
    worker: bool
    moves: bool
    due: int
    running: int


class Health:
    """Tells anybody how the studio stands, from what it knew a moment ago."""

    def __init__(self, studio: Studio, now: Callable[[], datetime]) -> None:
        self._app, self._kind, self._now = studio.app, studio.image.name, now
        self._known: tuple[datetime, State] | None = None
        self._asking: asyncio.Task[State] | None = None

    async def health(self, _: Request) -> Response:
        """503 if no images are made, since monitors look no further."""
        state = self._fresh()
        if state is None:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            # It is everybody's who waits: it goes on if one of them leaves.
            state = await asyncio.shield(self._asking)
        return Told(state, 200 if state.ok else 503)

    def _fresh(self) -> State | None:
        if self._known is None:
            return None
        at, state = self._known
        # A clock that was set back must not make an answer last.
        return state if abs((self._now() - at).total_seconds()) <= FRESH else None

    async def _ask(self) -> State:
        try:
            at, state = self._now(), await run_in_threadpool(self._state)
            self._known = at, state
            return state
        finally:
            self._asking = None

    def _state(self) -> State:
        status = self._app.status()
        worker = any(self._kind in seen.facts.kinds and seen.alive for seen in status.workers)
        depths = [depth for depth in status.depths if depth.kind == self._kind]
        idle = any(depth.oldest > LATE for depth in depths) and not any(depth.running for depth in depths)
        moves = not idle and not any(each.kind == self._kind for each in status.stuck)
        return State(worker and moves, worker, moves, sum(depth.due for depth in depths), sum(depth.running for depth in depths))
