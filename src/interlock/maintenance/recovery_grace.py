"""Delays recovery after an outage, so that live workers can renew their leases first."""

from ..engine.context import WorkerContext
from ..store.types import MaintenanceDue

LONGEST = 10.0
"""The longest heartbeat interval of a worker, in seconds."""
RECONNECT = 4.0
"""Seconds that a live worker needs to notice that the database is reachable again."""
LATE = 3.0
"""Seconds between two checks that mean that this process was frozen. It normally checks every second."""


class RecoveryGrace:
    """Decides when expired leases may be recovered. After an outage or a freeze, workers get time to renew first."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.heartbeat = min(max((kind.lease for kind in context.kinds.values()), default=0.0) / 3, LONGEST)
        """Seconds within which every live worker renews once."""
        self._until = 0.0
        self._checked_at: float | None = None
        self._waited_once = False
        self.due: MaintenanceDue | None = None
        """What the last `ask_due` found; None if it failed."""

    def note_unreachable(self) -> None:
        """Give live workers time to reconnect and renew after an outage. Thread-safe."""
        self._wait_until(self._now() + max(self.heartbeat, RECONNECT))

    @property
    def is_over(self) -> bool:
        """Whether expired leases may be recovered now."""
        return self._now() >= self._until

    def ask_due(self) -> MaintenanceDue:
        """Ask the database what is due. A frozen database answers late, so this also notices a freeze."""
        if self._context.database_down.is_set():
            self.note_unreachable()
        self.due = None
        asked = self._now()
        due = self.due = self._context.store.inspect.maintenance_due(sorted(self._context.kinds))
        up = self._context.store.inspect.uptime() if due.leases else None
        now = self._now()
        late = now - (asked if self._checked_at is None else self._checked_at) > LATE
        self._checked_at = now
        # Wait only once until the next sweep, so that a machine that is always late recovers leases too.
        if late and not self._waited_once:
            self._waited_once = True
            self._wait_until(now + self.heartbeat)
        # If the clock was set back, ignore a start time in the future.
        if up is not None and 0 <= up < self.heartbeat:
            self._wait_until(now + self.heartbeat - up)
        return due

    def swept(self) -> None:
        """Note that a sweep ran, so that the next freeze delays recovery again."""
        self._waited_once = False

    def _wait_until(self, moment: float) -> None:
        self._until = max(self._until, moment)

    def _now(self) -> float:
        return self._context.sleeper.monotonic()
