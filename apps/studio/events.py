"""What changes, as it happens: one user's jobs and credits as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from apps.common.telling import as_json

from .answers import AWAY, Wrong, away, camel
from .gallery import Gallery, Job
from .ledger import Balance
from .people import People

EVERY = 0.5
"""Seconds between two looks at the database."""
QUIET = 15.0
"""Seconds without a word after which a comment shows that the line still stands."""
RECENT = 100
"""Of a user's jobs, the newest so many are followed."""
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
Event = tuple[str, object]


class Watch:
    """One user's jobs and credits: each look tells what is new since the one before, and the first tells all. It blocks."""

    def __init__(self, gallery: Gallery, people: People, user_id: int, told: Callable[[Job], object]) -> None:
        self._gallery, self._people, self._user_id, self._told = gallery, people, user_id, told
        self._versions: dict[str, int] = {}
        self._balance: Balance | None = None

    def look(self) -> list[Event]:
        """The oldest job first, the credits last."""
        events: list[Event] = []
        if self._gallery.versions(self._user_id, RECENT) != self._versions:
            jobs = self._gallery.jobs(self._user_id, limit=RECENT)
            events = [("job", self._told(job)) for job in reversed(jobs) if self._versions.get(job.id) != job.version]
            # As they were read, and not as they were counted: a job that moved between the two is told once.
            self._versions = {job.id: job.version for job in jobs}
        balance = self._people.balance(self._user_id)
        if balance != self._balance:
            self._balance = balance
            events.append(("credits", camel(balance)))
        return events


async def paused(stop: asyncio.Event, seconds: float) -> None:
    """Wait for so long, or until it is to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def stream(look: Callable[[], list[Event]], stop: asyncio.Event, pause: Pause = paused) -> AsyncGenerator[str]:
    """What each look tells, until `stop`, or until whoever looks may no more. While the database is away nothing is told, and nothing is lost."""
    quiet, lost = 0.0, False
    while not stop.is_set():
        events: list[Event] = []
        try:
            events, lost = await run_in_threadpool(look), False
        except Wrong:
            return
        except AWAY as error:
            if not lost:
                away(error)
            lost = True
        for event, data in events:
            yield f"event: {event}\ndata: {as_json(data)}\n\n"
        quiet = 0.0 if events else quiet + EVERY
        if quiet >= QUIET:
            quiet = 0.0
            yield ": nothing new\n\n"
        await pause(stop, EVERY)
