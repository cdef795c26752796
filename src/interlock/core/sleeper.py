"""Letting time pass, injected: what polls takes one of these, so that no test ever waits."""

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol


class Waits(Protocol):
    """Lets time pass, and measures how much did."""

    def monotonic(self) -> float:
        """Seconds from a fixed, unknown moment; never steps back."""
        ...

    def sleep(self, seconds: float, /) -> None: ...

    async def asleep(self, seconds: float, /) -> None: ...


class SystemWaits:
    """Real waiting."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    async def asleep(self, seconds: float, /) -> None:
        await asyncio.sleep(seconds)


def pauses(waits: Waits, timeout: float, *, first: float = 0.01, longest: float = 0.5) -> Iterator[float]:
    """How long to wait before each further look: ever longer, never past the timeout; one last look falls on it."""
    end = waits.monotonic() + timeout
    pause = first
    while (left := end - waits.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, longest)
