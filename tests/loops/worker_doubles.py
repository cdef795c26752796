"""Test doubles for a worker: an event recorder, a store that tests intercept, and a sleeper that never waits."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from interlock.errors import Unavailable
from interlock.store import OpenStore
from interlock.store.contract import PARTS
from interlock.telemetry.events import Event, Events, SlotStateChanged, WorkerStateChanged

E = TypeVar("E", bound=Event)
TIME_LIMIT = 30.0


class EventRecorder:
    """Records every event and lets a test wait for one."""

    def __init__(self, events: Events) -> None:
        self.seen: list[Event] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.seen.append(event)
        self._loop.call_soon_threadsafe(self._news.set)

    async def until(self, kind: type[E], fits: Callable[[E], bool] = lambda _: True, *, after: int = 0) -> E:
        """Return the first event of this type that fits; wait for it if necessary."""
        async with asyncio.timeout(TIME_LIMIT):
            while True:
                self._news.clear()
                for event in self.seen[after:]:
                    if isinstance(event, kind) and fits(event):
                        return event
                await self._news.wait()

    async def moved(self, source: str, target: str) -> None:
        """Wait until the worker or one of its slots has made this transition."""
        async with asyncio.timeout(TIME_LIMIT):
            while (source, target) not in self.arrows():
                self._news.clear()
                if (source, target) not in self.arrows():
                    await self._news.wait()

    def arrows(self) -> set[tuple[str, str]]:
        return {
            (event.source, event.target)
            for event in self.seen
            if isinstance(event, WorkerStateChanged | SlotStateChanged)
        }


class _Part:
    """A part of an intercepted store."""

    def __init__(self, intercepted: "InterceptedStore", part: object) -> None:
        self._intercepted, self._part = intercepted, part

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._part, name)
        return self._intercepted.intercept(name, verb) if callable(verb) else verb


class InterceptedStore:
    """A store whose calls a test intercepts: `before` maps a method name to a function that runs before it."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store
        self.before: dict[str, Callable[[], None]] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.store, name)
        if name in PARTS:
            # Stored, so that a test can replace a method of the part.
            part = self.__dict__[name] = _Part(self, value)
            return part
        return self.intercept(name, value) if callable(value) else value

    def intercept(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def intercepted_call(*args: Any, **kwargs: Any) -> Any:
            if meddle := self.before.get(name):
                meddle()
            return verb(*args, **kwargs)

        return intercepted_call


def once(error: Exception) -> Callable[[], None]:
    """Return a function that raises `error` on its first call only."""
    left = [error]

    def meddle() -> None:
        if left:
            raise left.pop()

    return meddle


def away() -> Unavailable:
    return Unavailable("the server is unreachable")


class InstantSleeper:
    """A sleeper whose waits return at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)

    async def asleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
