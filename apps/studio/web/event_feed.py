"""The change feed: one poll of the database serves all event streams of the process (server-sent events)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from apps.common.telling import as_json

from .answers import AWAY, away
from .events import Event, Watch
from .gallery import Gallery
from .people import Credential, People

EVERY = 0.5
"""Seconds between two polls of the database."""
REST = 4
"""The pause lasts at least this many times as long as the last poll, which limits the load of the feed."""
QUIET = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""
STREAMS = 10
"""The most streams of one user at once."""
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
# A browser that loses the connection reconnects after this many milliseconds.
RETRY = "retry: 1000\n\n"
ALIVE = ": nothing new\n\n"


async def paused(stop: asyncio.Event, seconds: float) -> None:
    """Wait for this long, or until `stop` is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


class Follower:
    """One stream: the events to send next, and whether it ends after them."""

    def __init__(self, watch: Watch, credential: Credential) -> None:
        self.watch, self.credential = watch, credential
        self.news: list[Event] = []
        self.ended = False
        self._heard = asyncio.Event()

    def tell(self, news: list[Event] | None) -> None:
        """Add events to send; None ends the stream."""
        self.news += news or []
        self.ended = self.ended or news is None
        self._heard.set()

    async def taken(self) -> list[Event]:
        """Wait for events and return them; an empty list if there are none for a while."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), QUIET)
        self._heard.clear()
        news, self.news = self.news, []
        return news


class Feed:
    """Polls the database for all streams of this process, while there are any, until `stop`."""

    def __init__(self, gallery: Gallery, people: People, stop: asyncio.Event, now: Callable[[], datetime], pause: Pause = paused) -> None:
        self._gallery, self._people, self._stop, self._now, self._pause = gallery, people, stop, now, pause
        self._followers: set[Follower] = set()
        self._streams: Counter[int] = Counter()
        self._task: asyncio.Task[None] | None = None

    def full(self, user_id: int) -> bool:
        """Whether a user has reached the limit of streams."""
        return self._streams[user_id] >= STREAMS

    async def stream(self, watch: Watch, credential: Credential) -> AsyncGenerator[str]:
        """Send recent jobs, then changes, until `stop` or until this credential expires.

        While the database is unreachable, it sends nothing; no change is lost.
        """
        if self.full(watch.user_id):
            return
        follower = Follower(watch, credential)
        self._streams[watch.user_id] += 1
        try:
            yield RETRY
            for event in await self._first(watch):
                yield _line(event)
            self._follow(follower)
            while not follower.ended:
                news = await follower.taken()
                for event in news:
                    yield _line(event)
                if not news and not follower.ended:
                    yield ALIVE
        finally:
            self._followers.discard(follower)
            self._streams[watch.user_id] -= 1
            self._streams += Counter()

    async def _first(self, watch: Watch) -> list[Event]:
        try:
            return await run_in_threadpool(watch.look)
        except AWAY as error:
            away(error)
            return []

    # ------------------------------------------------------------ the shared poll
    def _follow(self, follower: Follower) -> None:
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        lost, clock = False, asyncio.get_running_loop().time
        try:
            while self._followers and not self._stop.is_set():
                began = clock()
                # A stream that has not sent its last events yet gets the next ones later, together.
                told, error = await run_in_threadpool(self._look, [each for each in self._followers if not each.news])
                for follower, news in told:
                    follower.tell(news)
                if error is not None and not lost:
                    away(error)
                lost = error is not None
                await self._pause(self._stop, max(EVERY, REST * (clock() - began)))
        finally:
            # If the poll fails, browsers reconnect, and the next stream starts it again.
            for follower in self._followers:
                follower.tell(None)

    def _look(self, followers: Collection[Follower]) -> tuple[list[tuple[Follower, list[Event] | None]], Exception | None]:
        """The events for each stream, and the error if the database could not be queried for the others."""
        told: list[tuple[Follower, list[Event] | None]] = []
        try:
            known = self._people.known({each.credential for each in followers}, self._now())
            told += [(each, None) for each in followers if each.credential not in known]
            standing = self._people.standing({each.watch.user_id for each in followers})
            changes = self._gallery.changed(set[str]().union(*(each.watch.unended for each in followers)))
            for each in followers:
                if each.credential in known and each.watch.stale(standing[each.watch.user_id], changes):
                    told.append((each, each.watch.look()))
        except AWAY as error:
            return told, error
        return told, None


def _line(event: Event) -> str:
    name, data = event
    return f"event: {name}\ndata: {as_json(data)}\n\n"
