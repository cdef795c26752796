"""What changes, as it happens: one user's jobs and credits as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from apps.common.telling import as_json

from .answers import AWAY, Wrong, away, camel
from .gallery import Changes, Gallery, Job
from .ledger import Balance
from .people import People

EVERY = 0.5
"""Seconds between two looks at the database."""
QUIET = 15.0
"""Seconds without a word after which a comment shows that the line still stands."""
RECENT = 100
"""Of a user's jobs, the newest so many are followed, and all that have not ended."""
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
Event = tuple[str, object]


class Watch:
    """One user's jobs and credits: each look tells what is new since the one before, and the first tells all. It blocks."""

    def __init__(self, gallery: Gallery, people: People, user_id: int, told: Callable[[Job], object]) -> None:
        self._gallery, self._people, self._user_id, self._told = gallery, people, user_id, told
        self._changes: Changes = {}
        """Of those that are followed, as they were told."""
        self._unended: set[str] = set()
        self._grants: int | None = None
        self._balance: Balance | None = None

    def look(self) -> list[Event]:
        """The oldest job first, the credits last. A look that fails has told nothing, and the next one tells it all."""
        newest = self._gallery.changes(self._user_id, RECENT)
        found = self._followed(newest)
        jobs = self._gallery.these(self._user_id, [id for id, at in found.items() if self._changes.get(id) != at])
        grants = self._people.grants(self._user_id)
        # Other entries come only with a job that changes. The newest id would not do: an older one may be seen later.
        balance = self._people.balance(self._user_id) if jobs or grants != self._grants else self._balance
        events: list[Event] = [("job", self._told(job)) for job in jobs]
        if balance is not None and balance != self._balance:
            events.append(("credits", camel(balance)))

        unended = self._unended.difference(job.id for job in jobs).union(job.id for job in jobs if job.finished_at is None)
        # As they were read, and not as they were found: a job that moved between the two is told once.
        changes = {**self._changes, **{job.id: job.updated_at for job in jobs}}
        self._changes = {id: at for id, at in changes.items() if id in newest or id in unended}
        self._unended, self._grants, self._balance = unended, grants, balance
        return events

    def _followed(self, newest: Changes) -> Changes:
        """The newest, and whatever else has not ended or was told so."""
        found = newest
        # The first look, or so many new ones at once that some may stand behind the newest.
        if newest.keys().isdisjoint(self._changes):
            found = found | self._gallery.changes_of_unended(self._user_id)
        return found | self._gallery.changes_of(self._user_id, self._unended.difference(found))


async def paused(stop: asyncio.Event, seconds: float) -> None:
    """Wait for so long, or until it is to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def stream(look: Callable[[], list[Event]], stop: asyncio.Event, pause: Pause = paused) -> AsyncGenerator[str]:
    """What each look tells, until `stop`, or until whoever looks may no more. While the database is away nothing is told, and nothing is lost."""
    quiet, lost = 0.0, False
    # A browser that loses the line comes back after so many milliseconds.
    yield "retry: 1000\n\n"
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
