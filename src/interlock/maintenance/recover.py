"""Recovery: takes over executions whose lease has expired, and settles them."""

from collections.abc import Callable, Sequence

from ..core.outcome import Finished, Lost, Outcome
from ..core.transition import Move
from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution
from ..engine.settle import Settler
from ..engine.settlement import Settlement
from ..errors import LeaseLost, Unavailable
from ..jobs.spec import KindSpec
from ..store.types import Heartbeat, Lease
from ..telemetry import events
from .recovery_grace import RecoveryGrace

LIMIT = 100
Finish = Callable[[Lease, float], None]
"""Starts the finish function of a committed execution. The second argument is when its lease was requested."""
FreeSlots = Callable[[], int]
"""Returns how many committed executions can start now."""
SOONEST = 1.0
"""The shortest time, in seconds, until a move whose hook raised is retried."""


class Recovery:
    """Takes over expired executions. A running one is lost and costs a try; a committed one is only finished."""

    def __init__(  # noqa: PLR0917 - the maintenance loop passes its own parts
        self, context: WorkerContext, settler: Settler, owner: str, lease: float, finish: Finish, free_slots: FreeSlots
    ) -> None:
        self._context = context
        self._settler = settler
        self._owner = owner
        self._lease = lease
        self._finish = finish
        self._free_slots = free_slots
        self._finishing = sorted(name for name, kind in context.kinds.items() if kind.finish is not None)
        self._others = sorted(set(context.kinds) - set(self._finishing))
        self.has_more = False
        """Whether executions may be left because no slot was free."""

    def sweep(self, grace: RecoveryGrace) -> int:
        """Adopt and settle batches until no lease is expired. Returns how many executions were settled or finished."""
        done, kinds = 0, sorted(self._context.kinds)
        while True:
            due = grace.ask_due()
            if not grace.is_over or self._context.stopped.is_set():
                return done
            if not due.leases:
                grace.swept()
                self.has_more = False
                return done
            free = self._free_slots() if self._finishing else LIMIT
            found, settled = self._adopt(kinds, LIMIT, None if free >= LIMIT else self._others)
            grace.swept()
            done += settled
            self.has_more = False
            if found < LIMIT:
                return done + (self._adopt_committed(free) if free < LIMIT else 0)

    def _adopt_committed(self, free: int) -> int:
        """Take over one committed execution for each free slot. A later sweep takes the rest."""
        found, done = self._adopt(self._finishing, free, None)
        self.has_more = found >= free
        return done

    # ------------------------------------------------------------ one batch
    def _adopt(self, kinds: Sequence[str], limit: int, committed: Sequence[str] | None) -> tuple[int, int]:
        """Adopt and settle one batch. Returns how many executions were adopted, and how many were settled."""
        if limit < 1:
            return 0, 0
        asked_at = self._context.sleeper.monotonic()
        leases = self._context.store.leases.adopt(self._owner, kinds, self._lease, limit, committed=committed)
        return len(leases), self._take_over(leases, asked_at)

    def _take_over(self, leases: Sequence[Lease], asked_at: float) -> int:
        handed, settlements = 0, list[Settlement]()
        for lease in leases:
            try:
                settlement = self._settlement(lease, asked_at)
                if settlement is None:
                    self._finish(lease, asked_at)
                    handed += 1
                    self._context.events.emit(events.Recovered(self._owner, lease.job.kind, lease.job.id, "finish"))
                else:
                    settlements.append(settlement)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - reported; the new lease expires, and the others continue
                self._report_error(lease.job.id, error)
        return handed + self._settle(settlements)

    def _settlement(self, lease: Lease, asked_at: float) -> Settlement | None:
        """Return how to settle this execution; None if its finish function must run first."""
        spec = self._context.kinds[lease.job.kind]
        outcome = self._outcome(lease, spec)
        if outcome is None:
            return None
        execution = self._context.execution_of(lease, asked_at)
        # Each adoption after the first means that a hook raised, or that a maintenance loop crashed during recovery.
        execution.failures = max(lease.holder - 2, 0)
        return Settlement(execution, outcome, retry_hooks=False)

    def _outcome(self, lease: Lease, spec: KindSpec) -> Outcome | None:
        if lease.status != "COMMITTED":
            return Lost()
        if spec.finish is None:
            return Finished()
        # `crashes` includes this adoption, so that the finish function runs once even if the kind has one try.
        crashes = lease.crashes
        if crashes <= spec.tries:
            return None
        why = f"the finish function crashed {crashes} times and is not retried"
        self._context.events.emit(events.FinishFailed(lease.job.id, lease.job.kind, crashes, why))
        return Finished(why)

    def _settle(self, settlements: Sequence[Settlement]) -> int:
        self._settler.settle_all(settlements)
        for settlement in settlements:
            if settlement.error is not None and not isinstance(settlement.error, LeaseLost | Unavailable):
                self._postpone(settlement.execution)
        return sum(self._report(settlement) for settlement in settlements)

    def _postpone(self, execution: HeldExecution) -> None:
        """Extend the lease after a hook raised, longer each time. The worker that adopts it next tries again."""
        delay = max(execution.spec.backoff.delay(execution.failures, self._context.random()), SOONEST)
        self._context.store.leases.renew([Heartbeat(execution.fence, delay)])

    # ------------------------------------------------------------ events
    def _report(self, settlement: Settlement) -> bool:
        job, move, error = settlement.execution.job, settlement.move, settlement.error
        if error is None and move is not None:
            self._context.events.emit(events.Recovered(self._owner, job.kind, job.id, _how(move)))
            return True
        if isinstance(error, Unavailable):
            raise error
        if error is not None and not isinstance(error, LeaseLost):
            self._report_error(job.id, error)
        return False

    def _report_error(self, job_id: str, error: Exception) -> None:
        self._context.events.emit(events.WorkerError(self._owner, f"recovering job {job_id}", error))


def _how(move: Move) -> str:
    return "hold" if move.held_reason is not None else move.ended_by or ""
