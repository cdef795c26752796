"""Watching a real worker from outside: what it emits, awaited without sleeping."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from interlock.errors import Unavailable
from interlock.events import Event, Events, SlotMoved, WorkerMoved
from interlock.stores import OpenStore

E = TypeVar("E", bound=Event)
PATIENCE = 30.0


class Witness:
    """Remembers every event, and lets a test wait for one."""

    def __init__(self, events: Events) -> None:
        self.seen: list[Event] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.seen.append(event)
        self._loop.call_soon_threadsafe(self._news.set)

    async def until(self, kind: type[E], fits: Callable[[E], bool] = lambda _: True, *, after: int = 0) -> E:
        """The first event of this kind that fits, now or when it comes."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self._news.clear()
                for event in self.seen[after:]:
                    if isinstance(event, kind) and fits(event):
                        return event
                await self._news.wait()

    async def moved(self, source: str, target: str) -> None:
        """The worker, or one of its slots, has taken this arrow."""
        async with asyncio.timeout(PATIENCE):
            while (source, target) not in self.arrows():
                self._news.clear()
                if (source, target) not in self.arrows():
                    await self._news.wait()

    def arrows(self) -> set[tuple[str, str]]:
        return {(event.source, event.target) for event in self.seen if isinstance(event, WorkerMoved | SlotMoved)}


class Meddler:
    """A store with someone at the wire: `before` may do something, or raise, before a verb reaches it."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store
        self.before: dict[str, Callable[[], None]] = {}

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not callable(verb):
            return verb

        def meddled(*args: Any, **kwargs: Any) -> Any:
            if meddle := self.before.get(name):
                meddle()
            return verb(*args, **kwargs)

        return meddled


def once(error: Exception) -> Callable[[], None]:
    """Raises the first time, and never again."""
    left = [error]

    def meddle() -> None:
        if left:
            raise left.pop()

    return meddle


def away() -> Unavailable:
    return Unavailable("the server is away")


class Hurry:
    """Waits that take no time: a test need not wait for an error's five seconds."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)

    async def asleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
