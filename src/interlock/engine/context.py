"""What every part of a worker shares: the store, the kinds it knows, whom to tell, and how to wait for a database that is away."""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from ..declaration import Declaration
from ..enqueue import Transaction
from ..errors import Unavailable
from ..events import Events, Trouble
from ..stores import OpenStore
from ..waits import SystemWaits, Waits
from .points import Points, pass_by

T = TypeVar("T")
LONGEST = 2.0
"""About the longest pause between two tries while the database is unreachable. Late reports delay retries of jobs."""


def soon(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *args: object) -> None:
    """Have an event loop do something, from any thread. One that is closed has nothing left to do."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *args)


@dataclass(eq=False)
class Desk:
    """One worker's own things."""

    owner: str
    """`name#boot`: no two workers ever have the same."""
    find_store: Callable[[], OpenStore]
    kinds: Mapping[str, Declaration]
    transaction: Transaction | None = None
    events: Events = field(default_factory=Events)
    waits: Waits = field(default_factory=SystemWaits)
    points: Points = pass_by
    draw: Callable[[], float] = random.random
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the worker ends now: nobody waits for the database any more."""
    unwell: threading.Event = field(default_factory=threading.Event)
    """Set when someone could not reach the database; the loop clears it when it has."""

    @property
    def store(self) -> OpenStore:
        return self.find_store()

    def now(self) -> datetime:
        """By the clock that decides about leases."""
        return self.store.now()

    def persistently(self, work: Callable[[], T], where: str) -> T:
        """`work`, again and again while the database is away: what is fenced may be sent again, and settles what became of it."""
        pause = 0.05
        while True:
            try:
                return work()
            except Unavailable as error:
                self.unwell.set()
                if self.over.is_set():
                    raise
                self.events.emit(Trouble(self.owner, where, error))
                self.over.wait(pause * (0.5 + self.draw()))
                pause = min(pause * 2, LONGEST)
