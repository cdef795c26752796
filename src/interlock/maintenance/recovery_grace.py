"""Letting the living renew before the dead are counted: after an absence, be it the database's or our own, one beat passes first."""

from ..worker.desk import Desk

LONGEST = 10.0
"""Seconds of a beat at most, whatever the leases are."""
RECONNECT = 4.0
"""Seconds within which every live worker notices that the database is back, however short the leases are."""
LATE = 3.0
"""Seconds between two looks after which something must have stood still: the keeper looks every second."""


class Patience:
    """Knows when leases may be swept. A holder that could not renew, because the database or the machine was away, gets the time to do it first."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.beat = min(max((kind.lease for kind in desk.kinds.values()), default=0.0) / 3, LONGEST)
        """Seconds within which every live worker has renewed once."""
        self._until = 0.0
        self._looked: float | None = None
        self._excused = False

    def was_away(self) -> None:
        """Note that the database was unreachable, so that live workers get time to reconnect and renew. Thread-safe."""
        self._wait_until(self._now() + max(self.beat, RECONNECT))

    def over(self) -> bool:
        """Whether leases may be swept now. Asks the database, so that one that stood still is noticed before it is told to take anything."""
        if self._desk.unwell.is_set():
            self.was_away()
        asked = self._now()
        up = self._desk.store.up_for()
        now = self._now()
        late = now - (asked if self._looked is None else self._looked) > LATE
        self._looked = now
        # Once until the next sweep: on a machine that is always late, leases must be recovered too.
        if late and not self._excused:
            self._excused = True
            self._wait_until(now + self.beat)
        # If the clock was set back, a start time in the future says nothing.
        if up is not None and 0 <= up < self.beat:
            self._wait_until(now + self.beat - up)
        return now >= self._until

    def swept(self) -> None:
        """Leases have been looked at since the last absence."""
        self._excused = False

    def _wait_until(self, moment: float) -> None:
        self._until = max(self._until, moment)

    def _now(self) -> float:
        return self._desk.waits.monotonic()
