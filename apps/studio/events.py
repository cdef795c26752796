"""The changes of one user's jobs and credits, for a stream of events."""

from collections.abc import Callable

from .answers import camel
from .gallery import Changes, Gallery, Job
from .ledger import Standing
from .people import People

RECENT = 100
"""Of a user's jobs, the newest so many are followed, and all that have not ended."""
Event = tuple[str, object]


class Watch:
    """One user's jobs and credits: each look tells what is new since the one before, and the first tells all. It blocks."""

    def __init__(self, gallery: Gallery, people: People, user_id: int, told: Callable[[Job], object]) -> None:
        self._gallery, self._people, self.user_id, self._told = gallery, people, user_id, told
        self._changes: Changes = {}
        """Of those that are followed, as they were told."""
        self.unended: set[str] = set()
        """Jobs that were reported and may change without an entry in the ledger."""
        self._standing: Standing | None = None

    def stale(self, standing: Standing, changes: Changes) -> bool:
        """Whether a query would find changes: a new ledger entry (order, end or grant), or a changed open job."""
        return standing != self._standing or any(changes.get(id) != self._changes[id] for id in self.unended)

    def look(self) -> list[Event]:
        """The oldest job first, the credits last. A look that fails has told nothing, and the next one tells it all."""
        # First of all: of what is written after this, the next look hears by another mark.
        standing = self._people.standing([self.user_id])[self.user_id]
        newest = self._gallery.changes(self.user_id, RECENT)
        found = self._followed(newest)
        jobs = self._gallery.these(self.user_id, [id for id, at in found.items() if self._changes.get(id) != at])
        events: list[Event] = [("job", self._told(job)) for job in jobs]
        if self._standing is None or standing.balance != self._standing.balance:
            events.append(("credits", camel(standing.balance)))

        unended = self.unended.difference(job.id for job in jobs).union(job.id for job in jobs if job.finished_at is None)
        # As they were read, and not as they were found: a job that moved between the two is told once.
        changes = {**self._changes, **{job.id: job.updated_at for job in jobs}}
        self._changes = {id: at for id, at in changes.items() if id in newest or id in unended}
        self.unended, self._standing = unended, standing
        return events

    def _followed(self, newest: Changes) -> Changes:
        """The newest, and whatever else has not ended or was told so."""
        found = newest
        # The first look, or so many new ones at once that some may stand behind the newest.
        if newest.keys().isdisjoint(self._changes):
            found = found | self._gallery.changes_of_unended(self.user_id)
        return found | self._gallery.changes_of(self.user_id, self.unended.difference(found))
