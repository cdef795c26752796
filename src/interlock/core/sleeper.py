"""Sleepers. Code that waits takes a `Sleeper`, so that tests need not wait."""

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol


class Sleeper(Protocol):
    """Waits, and measures elapsed time."""

    def monotonic(self) -> float:
        """Seconds since a fixed, unknown moment. They never decrease."""
        ...

    def sleep(self, seconds: float, /) -> None: ...

    async def asleep(self, seconds: float, /) -> None: ...


class SystemSleeper:
    """A sleeper that really waits."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    async def asleep(self, seconds: float, /) -> None:
        await asyncio.sleep(seconds)


def pauses(sleeper: Sleeper, timeout: float, *, first: float = 0.01, longest: float = 0.5) -> Iterator[float]:
    """Yield growing pauses between polls. They end with the timeout, so that the last poll happens at its end."""
    end = sleeper.monotonic() + timeout
    pause = first
    while (left := end - sleeper.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, longest)
