"""Waits for the running jobs of a worker that stops."""

import asyncio

from ..core.sleeper import Sleeper
from .slots import Slots


async def wait_until_empty(slots: Slots, sleeper: Sleeper, seconds: float) -> bool:
    """Wait until every slot is free, for at most this many seconds. Returns False if some are not."""
    end = sleeper.monotonic() + seconds
    while slots.executions and (left := end - sleeper.monotonic()) > 0:
        slots.slot_freed.clear()
        try:
            async with asyncio.timeout(left):
                await slots.slot_freed.wait()
        except TimeoutError:
            break
    return not slots.executions
