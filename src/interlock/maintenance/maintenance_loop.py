"""The maintenance loop: recovers, expires, schedules and prunes jobs. Every worker runs one; there is no leader."""

import threading
from collections.abc import Callable, Mapping

from ..core.job import Phase
from ..engine.context import WorkerContext
from ..engine.periodic import Periodic
from ..engine.settle import Settler
from ..errors import Unavailable
from ..jobs.schedule import Schedule
from ..telemetry import events
from .audit_retention import Archiving, AuditRetention, Partitioning
from .expire import Expiry
from .failed_dependencies import Dependents
from .prune import Pruning
from .recover import Finish, FreeSlots, Recovery
from .recovery_grace import RecoveryGrace
from .scheduler import Scheduler

EVERY = 1.0
"""Seconds between two rounds, jittered."""


class Maintenance:
    """Runs maintenance for the kinds of its worker. If several workers do so, each task is still done only once."""

    def __init__(  # noqa: PLR0917 - the parts, and what each needs
        self,
        context: WorkerContext,
        settler: Settler,
        schedules: Mapping[str, Schedule],
        retention: Mapping[Phase, float],
        lease: float,
        finish: Finish,
        free_slots: FreeSlots,
        audit_retention: AuditRetention | None = None,
    ) -> None:
        self._context = context
        self.owner = f"{context.owner}/maintenance"
        """Differs from the worker's name, so that the worker does not mistake these leases for lost claims."""
        self._grace = RecoveryGrace(context)
        self._recovery = Recovery(context, settler, self.owner, lease, finish, free_slots)
        self._expiry = Expiry(context, self.owner)
        self._waiting = Dependents(context, self.owner)
        self._scheduler = Scheduler(context, schedules, self.owner)
        # The sweep comes first: it asks what is due, in one statement.
        self._parts: dict[str, Callable[[], int]] = {
            "recover": self._sweep,
            "expire": self._expire,
            "dependents": self._dependents,
            "schedule": self._schedule,
            "prune": Pruning(context, retention).run,
            "partition": Partitioning(context).run,
        }
        self._archiving = Archiving(context, audit_retention)
        self._busy = threading.Lock()
        self._swept_at = float("-inf")

    def run(self) -> None:
        """Run about once a second until the worker ends. This is the body of the maintenance thread."""
        Periodic(self._context, "maintenance", lambda: EVERY, jitter=True).run_in_thread(self._run_parts)

    def archive(self) -> None:
        """Archive until the worker ends.

        It runs in its own thread, because an archive function may be slow and jobs must be recovered meanwhile.
        """
        Periodic(self._context, "archive", lambda: EVERY, jitter=True).run_in_thread(self._archive)

    def run_once(self) -> int:
        """Do everything that is due now. Returns the number of jobs. An error of one part does not stop the others."""
        return self._run_parts() + self._archive()

    def _run_parts(self) -> int:
        with self._busy:
            return sum(self._attempt(name, part) for name, part in self._parts.items())

    def _archive(self) -> int:
        return self._attempt("archive", self._archiving.run)

    def recover(self) -> int:
        """Recover expired leases now. Returns the number of jobs. Raises `Unavailable`.

        Does nothing while a round of maintenance runs, or if the last sweep ended less than a second ago and left
        nothing over.
        """
        if (self._context.sleeper.monotonic() - self._swept_at < EVERY and not self.has_more) or not self._busy.acquire(
            blocking=False
        ):
            return 0
        try:
            return self._attempt("recover", self._sweep, propagate=Unavailable)
        finally:
            self._busy.release()

    @property
    def has_more(self) -> bool:
        """Whether the last sweep may have left executions because no slot was free."""
        return self._recovery.has_more

    def note_unreachable(self) -> None:
        """Delay the next recovery after an outage, so that other workers can renew their leases first."""
        self._grace.note_unreachable()

    # ------------------------------------------------------------ the parts
    def _sweep(self) -> int:
        done = self._recovery.sweep(self._grace)
        self._swept_at = self._context.sleeper.monotonic()
        return done

    def _expire(self) -> int:
        due = self._grace.due
        return self._expiry.run() if due is None or due.jobs else 0

    def _dependents(self) -> int:
        due = self._grace.due
        return self._waiting.run() if due is None or due.flow else 0

    def _schedule(self) -> int:
        due = self._grace.due
        return self._scheduler.run(None if due is None else due.now)

    def _attempt(self, name: str, part: Callable[[], int], *, propagate: type[Exception] | tuple[()] = ()) -> int:
        try:
            return part()
        except propagate:
            self.note_unreachable()
            raise
        except Exception as error:  # noqa: BLE001 - reported; the other parts continue
            if isinstance(error, Unavailable):
                self.note_unreachable()
            self._context.events.emit(events.WorkerError(self._context.owner, f"maintenance: {name}", error))
            return 0
