"""The change feed: one poll of the database serves all event streams of the process (server-sent events)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from apps.common.formatting import to_json

from ..gallery import Gallery
from ..users import Credential, Users
from .job_watch import Event, JobWatch
from .responses import DATABASE_ERRORS, log_database_error

POLL_SECONDS = 0.5
"""Seconds between two polls of the database."""
PAUSE_FACTOR = 4
"""The pause lasts at least this many times as long as the last poll, which limits the load of the feed."""
KEEPALIVE_SECONDS = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""
MAX_STREAMS = 10
"""The most streams of one user at once."""
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
# A browser that loses the connection reconnects after this many milliseconds.
RETRY = "retry: 1000\n\n"
KEEPALIVE = ": nothing new\n\n"


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    """Wait for this long, or until `stop` is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


class Subscriber:
    """One stream: the events to send next, and whether it ends after them."""

    def __init__(self, watch: JobWatch, credential: Credential) -> None:
        self.watch, self.credential = watch, credential
        self.pending: list[Event] = []
        self.ended = False
        self._wakeup = asyncio.Event()

    def publish(self, news: list[Event] | None) -> None:
        """Add events to send; None ends the stream."""
        self.pending += news or []
        self.ended = self.ended or news is None
        self._wakeup.set()

    async def receive(self) -> list[Event]:
        """Wait for events and return them; an empty list if there are none for a while."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), KEEPALIVE_SECONDS)
        self._wakeup.clear()
        news, self.pending = self.pending, []
        return news


class EventFeed:
    """Polls the database for all streams of this process, while there are any, until `stop`."""

    def __init__(
        self,
        gallery: Gallery,
        users: Users,
        stop: asyncio.Event,
        now: Callable[[], datetime],
        pause: Pause = wait_or_stop,
    ) -> None:
        self._gallery, self._users, self._stop, self._now, self._pause = gallery, users, stop, now, pause
        self._subscribers: set[Subscriber] = set()
        self._streams: Counter[int] = Counter()
        self._task: asyncio.Task[None] | None = None

    def is_full(self, user_id: int) -> bool:
        """Whether a user has reached the limit of streams."""
        return self._streams[user_id] >= MAX_STREAMS

    async def stream(self, watch: JobWatch, credential: Credential) -> AsyncGenerator[str]:
        """Send recent jobs, then changes, until `stop` or until this credential expires.

        While the database is unreachable, it sends nothing; no change is lost.
        """
        if self.is_full(watch.user_id):
            return
        subscriber = Subscriber(watch, credential)
        self._streams[watch.user_id] += 1
        try:
            yield RETRY
            for event in await self._initial_events(watch):
                yield _format_event(event)
            self._subscribe(subscriber)
            while not subscriber.ended:
                news = await subscriber.receive()
                for event in news:
                    yield _format_event(event)
                if not news and not subscriber.ended:
                    yield KEEPALIVE
        finally:
            self._subscribers.discard(subscriber)
            self._streams[watch.user_id] -= 1
            self._streams += Counter()

    async def _initial_events(self, watch: JobWatch) -> list[Event]:
        try:
            return await run_in_threadpool(watch.poll)
        except DATABASE_ERRORS as error:
            log_database_error(error)
            return []

    # ------------------------------------------------------------ the shared poll
    def _subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.add(subscriber)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        lost, clock = False, asyncio.get_running_loop().time
        try:
            while self._subscribers and not self._stop.is_set():
                began = clock()
                # A stream that has not sent its last events yet gets the next ones later, together.
                results, error = await run_in_threadpool(
                    self._poll, [each for each in self._subscribers if not each.pending]
                )
                for subscriber, news in results:
                    subscriber.publish(news)
                if error is not None and not lost:
                    log_database_error(error)
                lost = error is not None
                await self._pause(self._stop, max(POLL_SECONDS, PAUSE_FACTOR * (clock() - began)))
        finally:
            # If the poll fails, browsers reconnect, and the next stream starts it again.
            for subscriber in self._subscribers:
                subscriber.publish(None)

    def _poll(
        self, subscribers: Collection[Subscriber]
    ) -> tuple[list[tuple[Subscriber, list[Event] | None]], Exception | None]:
        """The events for each stream, and the error if the database could not be queried for the others."""
        results: list[tuple[Subscriber, list[Event] | None]] = []
        try:
            known = self._users.valid_credentials({each.credential for each in subscribers}, self._now())
            results += [(each, None) for each in subscribers if each.credential not in known]
            balance_versions = self._users.balance_versions({each.watch.user_id for each in subscribers})
            changes = self._gallery.changes_of_jobs(set[str]().union(*(each.watch.open_jobs for each in subscribers)))
            for each in subscribers:
                if each.credential in known and each.watch.is_stale(balance_versions[each.watch.user_id], changes):
                    results.append((each, each.watch.poll()))
        except DATABASE_ERRORS as error:
            return results, error
        return results, None


def _format_event(event: Event) -> str:
    name, data = event
    return f"event: {name}\ndata: {to_json(data)}\n\n"
