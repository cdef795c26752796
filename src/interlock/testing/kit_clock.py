"""A clock and a sleeper for tests. Time passes only when the test advances it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Lock

from ..core.clock import Seconds, SystemClock, seconds
from ..core.sleeper import SystemSleeper


class KitClock:
    """A clock for tests: leases, backoff and due times follow it. `on_change` updates a database with its own clock."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or SystemClock().now().replace(microsecond=0)
        self._now = self._start
        self.on_change: Callable[[datetime], None] | None = None

    def now(self) -> datetime:
        return self._now

    def advance(self, by: Seconds) -> datetime:
        """Move the time forward by seconds, or a timedelta.

        A running worker sees it as if its process had been paused for that long.
        """
        self._now += timedelta(seconds=seconds(by, "by"))
        if self.on_change is not None:
            self.on_change(self._now)
        return self._now

    @property
    def passed(self) -> float:
        """Seconds since the test began, by this clock."""
        return (self._now - self._start).total_seconds()


class KitSleeper:
    """A sleeper whose waits take no time. Its monotonic clock follows the test's clock."""

    def __init__(self, clock: KitClock) -> None:
        self._clock = clock
        self._real = SystemSleeper()
        self._suspended = 0.0
        self._suspending = Lock()

    def monotonic(self) -> float:
        with self._suspending:
            return self._clock.passed - self._suspended

    def suspend(self, seconds: float, /) -> None:
        """Move the test's clock forward as if the machine had been suspended.

        The worker does not notice it: its monotonic clock stands still, so a claim that is on its way stays trusted.
        """
        with self._suspending:
            self._suspended += seconds
            self._clock.advance(seconds)

    def sleep(self, seconds: float, /) -> None:
        """No time passes."""

    async def asleep(self, seconds: float, /) -> None:
        """No time passes, but other tasks run."""
        del seconds
        await self._real.asleep(0)
