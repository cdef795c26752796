"""The health check: whether a worker runs and jobs make progress. Results are cached for two seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from apps.common.health_cache import HealthCache

from ..jobs import Studio
from .responses import JsonResponse

LATE = 120.0
"""Seconds that a job may be due while no job runs, before the studio counts as unhealthy."""


@dataclass(frozen=True)
class State:
    """The health of the studio. It contains no user data."""

    ok: bool
    worker: bool
    moves: bool
    due: int
    running: int


class HealthCheck:
    """Serves the cached health state without authentication."""

    def __init__(self, studio: Studio, now: Callable[[], datetime]) -> None:
        self._app, self._kind, self._recent = studio.app, studio.image.name, HealthCache(self._state, now)

    async def health(self, _: Request) -> Response:
        """200 if images are made, else 503 for monitors."""
        state = await self._recent.get()
        return JsonResponse(state, 200 if state.ok else 503)

    def _state(self) -> State:
        status = self._app.status()
        worker = any(self._kind in seen.facts.kinds and seen.alive for seen in status.workers)
        depths = [depth for depth in status.depths if depth.kind == self._kind]
        idle = any(depth.oldest > LATE for depth in depths) and not any(depth.running for depth in depths)
        moves = not idle and not any(each.kind == self._kind for each in status.stuck)
        return State(
            worker and moves, worker, moves, sum(depth.due for depth in depths), sum(depth.running for depth in depths)
        )
