"""The health of a worker: a sentence for each problem, for a probe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..engine.context import WorkerContext
from .heartbeat import LeaseRenewer

HEALTH = "health"
"""The question of a supervisor to its workers."""
UNRESPONSIVE = 10.0
"""Seconds without a response of the event loop after which a worker is not healthy."""


@dataclass(frozen=True, slots=True)
class Health:
    """The problems of a worker. Without problems, it is healthy, or ready to run jobs."""

    unhealthy: list[str]
    """Why its process should be replaced."""
    unready: list[str]
    """Why it claims no jobs now."""


class WorkerStatus(Protocol):
    """What a worker's loop does now."""

    @property
    def state(self) -> str: ...

    @property
    def connected(self) -> bool:
        """Whether the database has answered, and is migrated, since the worker started or had an error."""
        ...

    @property
    def stopping(self) -> bool: ...

    @property
    def retiring(self) -> bool: ...


class HealthCheck:
    """Reads the health of a worker, from any thread. It never calls the database and never waits."""

    def __init__(
        self, context: WorkerContext, worker: WorkerStatus, leases: LeaseRenewer, last_pulse: Callable[[], float]
    ) -> None:
        """`last_pulse` returns when the event loop last responded."""
        self._context = context
        self._worker = worker
        self._leases = leases
        self._last_pulse = last_pulse

    def __call__(self) -> Health:
        now = self._context.sleeper.monotonic()
        unhealthy: list[str] = []
        if (silent := now - self._last_pulse()) > UNRESPONSIVE:
            unhealthy.append(f"The event loop has not responded for {silent:.0f} s: a handler blocks it.")
        return Health(unhealthy, [*unhealthy, *self._why_idle(now)])

    def _why_idle(self, now: float) -> list[str]:
        """Return why the worker claims nothing."""
        found: list[str] = []
        if self._worker.stopping:
            found.append("The worker is stopping and claims no more jobs.")
        elif self._worker.retiring:
            found.append("The worker is being recycled and claims no more jobs.")
        if self._worker.state == "ErrorWait":
            found.append("The worker waits after an error (ErrorWait), and then connects again.")
        elif not self._worker.connected:
            found.append(
                f"The worker is not connected to its database, or has not checked its schema ({self._worker.state})."
            )
        if self._context.database_down.is_set():
            found.append("The database is unreachable.")
        if (since := self._leases.failing_since) is not None:
            found.append(f"The worker has not renewed its leases for {now - since:.0f} s, because its heartbeat fails.")
        return found
