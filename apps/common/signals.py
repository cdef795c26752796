"""Graceful shutdown of long-running processes."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

Say = Callable[[str], None]
STOPPING_MESSAGE = (
    "stopping: running jobs have 25 s to finish, then they return to the queue; "
    "a second signal exits at once and costs each running job a try"
)
"""A worker prints this at the first signal."""


@contextmanager
def stop_on_signal() -> Generator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets. A second signal ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop_once() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, stop_once)
    yield stop
