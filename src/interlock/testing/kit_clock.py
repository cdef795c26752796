"""Time that stands still until a test moves it on."""

from collections.abc import Callable
from datetime import datetime, timedelta

from ..clock import Seconds, SystemClock, seconds
from ..waits import SystemWaits


class KitClock:
    """A clock for tests: leases, backoff and due times follow it. `on_change` tells a database that keeps its own."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or SystemClock().now().replace(microsecond=0)
        self._now = self._start
        self.on_change: Callable[[datetime], None] | None = None

    def now(self) -> datetime:
        return self._now

    def advance(self, by: Seconds) -> datetime:
        """Let so much time pass at once: seconds, or a timedelta. A worker that runs meanwhile stood still for as long."""
        self._now += timedelta(seconds=seconds(by, "by"))
        if self.on_change is not None:
            self.on_change(self._now)
        return self._now

    @property
    def passed(self) -> float:
        """Seconds since the test began, by this clock."""
        return (self._now - self._start).total_seconds()


class KitWaits:
    """Waiting that takes no time, and a monotonic clock that follows the test's."""

    def __init__(self, clock: KitClock) -> None:
        self._clock = clock
        self._real = SystemWaits()

    def monotonic(self) -> float:
        return self._clock.passed

    def sleep(self, seconds: float, /) -> None:
        """No time passes."""

    async def asleep(self, seconds: float, /) -> None:
        """No time passes, but the others have their turn."""
        del seconds
        await self._real.asleep(0)
