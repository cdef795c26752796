"""Whether images are made, for monitors and whoever else asks: however many do, the database is asked once, and seldom."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from apps.common.health import Recent

from .answers import Told
from .jobs import Studio

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
        self._app, self._kind, self._recent = studio.app, studio.image.name, Recent(self._state, now)

    async def health(self, _: Request) -> Response:
        """503 if no images are made, since monitors look no further."""
        state = await self._recent.get()
        return Told(state, 200 if state.ok else 503)

    def _state(self) -> State:
        status = self._app.status()
        worker = any(self._kind in seen.facts.kinds and seen.alive for seen in status.workers)
        depths = [depth for depth in status.depths if depth.kind == self._kind]
        idle = any(depth.oldest > LATE for depth in depths) and not any(depth.running for depth in depths)
        moves = not idle and not any(each.kind == self._kind for each in status.stuck)
        return State(worker and moves, worker, moves, sum(depth.due for depth in depths), sum(depth.running for depth in depths))
