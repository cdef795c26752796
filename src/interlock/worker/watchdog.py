"""The watchdog: a thread that stops handlers after their lease or their `max_runtime`, without calling the database."""

from collections.abc import Callable, Mapping
from typing import Protocol

from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution
from ..engine.periodic import Periodic
from .heartbeat import LeaseRenewer

WATCH_INTERVAL = 0.1


class OnHang(Protocol):
    """Called if the event loop has not responded for `hang_timeout` seconds."""

    def __call__(self, seconds: float, /) -> None: ...


class Watchdog:
    """Stops handlers whose lease has ended or that run too long, and reports an event loop that does not respond."""

    def __init__(
        self,
        context: WorkerContext,
        executions: Mapping[int, HeldExecution],
        leases: LeaseRenewer,
        *,
        last_pulse: Callable[[], float],
        hang_timeout: float,
        on_hang: OnHang,
    ) -> None:
        self._context = context
        self._executions = executions
        self._leases = leases
        self._last_pulse = last_pulse
        self._hang_timeout = hang_timeout
        self._on_hang = on_hang

    def run(self) -> None:
        """Check until the worker ends. This is the body of the watchdog thread."""
        Periodic(self._context, "watchdog", lambda: WATCH_INTERVAL).run_in_thread(self.check)

    def check(self) -> None:
        """Check every execution and the event loop once."""
        now = self._context.sleeper.monotonic()
        silent = now - self._last_pulse()
        if silent > self._hang_timeout:
            for execution in list(self._executions.values()):
                execution.renews = False
            self._on_hang(silent)
        for execution in list(self._executions.values()):
            if execution.settling or execution.ended:
                continue
            if now >= execution.trusted_until():
                execution.lease_doubtful = execution.lease_doubtful or execution.stop != "lost"
                self._leases.stop_handler(execution, "lost")
            limit = execution.spec.max_runtime
            if limit is not None and now - execution.began > limit and execution.renews:
                # Stop renewing the lease, so that it expires even if the handler does not stop.
                execution.renews = False
                self._leases.stop_handler(execution, "runtime")
