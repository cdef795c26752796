"""How a process that runs for long is told to end."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

Say = Callable[[str], None]
STOPPING = "stopping: what runs may finish for up to 25 s, and the rest is given back; a second signal ends it at once, at the price of a try"
"""What a worker says then."""


@contextmanager
def signals() -> Generator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT; from then on they do what they do to any program."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def heard() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, heard)
    yield stop
