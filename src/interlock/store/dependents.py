"""Finds out which jobs wait no longer, for both stores.

A transaction that ends a job with dependents, or stores a job that waits for others, adds a check. The check is carried
out after that transaction has committed: only then is it certain that of two jobs that end at the same time, one sees
the end of the other. A worker that dies in between leaves the check to the next one.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..core.blocked_jobs import Blocked
from ..core.job import Job

CHECKS = 1000
"""The most checks in one transaction."""
ROUNDS = 1000
"""The most transactions in one call. What is left is found by the next one."""
AGAIN_AFTER = 1.0
"""Seconds after which a locked job is looked at again."""
ACTOR = "dependencies"
"""The actor in the audit of a job that waited for others."""


class FlowQueries(Protocol):
    """The statements that resolve dependencies, in one transaction."""

    def take(self, limit: int) -> list[tuple[str, str]]:
        """Delete up to `limit` due checks, and return their steps and jobs."""
        ...

    def add(self, step: str, ids: Sequence[str], wait: float) -> None:
        """Add checks that are due after this many seconds."""
        ...

    def await_needs(self, ids: Sequence[str]) -> list[str]:
        """Mark the jobs that these jobs wait for. Return those of `ids` for which this was not possible now."""
        ...

    def mark(self, ended: Sequence[str], arrived: Sequence[str]) -> bool:
        """Store the outcome of dependencies, and add a check for each job whose dependency has one now.

        Return whether there is such a job.
        """
        ...

    def lock(self, ids: Sequence[str]) -> list[str]:
        """Lock these jobs. Return those that another transaction has locked."""
        ...

    def blocked(self, ids: Sequence[str]) -> list[Blocked]:
        """Return those of the jobs that wait for others."""
        ...

    def apply(self, blocked: Sequence[Blocked]) -> None:
        """Carry out what was decided about these jobs."""
        ...


def resolve_some(db: FlowQueries) -> bool:
    """Carry out checks in one transaction. Returns whether there may be more."""
    taken, marked = db.take(CHECKS), False
    steps: dict[str, list[str]] = {"ended": [], "arrived": [], "changed": []}
    for step, id in dict.fromkeys(taken):
        steps[step].append(id)
    arrived = steps["arrived"]
    if arrived and (locked := db.await_needs(arrived)):
        db.add("arrived", locked, AGAIN_AFTER)
    if steps["ended"] or arrived:
        marked = db.mark(steps["ended"], arrived)
    if changed := steps["changed"]:
        if locked := db.lock(changed):
            db.add("changed", locked, AGAIN_AFTER)
        free = sorted(set(changed) - set(locked))
        decided = [each for each in db.blocked(free) if each.decision != "wait"]
        if decided:
            db.apply(decided)
    return marked or len(taken) == CHECKS


class Ended:
    """Whether a method has ended a job that others may wait for."""

    def __init__(self) -> None:
        self.awaited = False

    def note(self, awaited: bool | None) -> None:
        self.awaited = self.awaited or bool(awaited)

    def watch(self, body: Callable[[Any, Job], None]) -> Callable[[Any, Job], None]:
        """Return a commit function that also notes whether others may wait for its job, whose row is locked."""

        def watched(tx: Any, job: Job) -> None:
            self.note(job.awaited or job.batch is not None)
            body(tx, job)

        return watched

    def watch_group(self, body: Callable[[Any, Sequence[Job]], None]) -> Callable[[Any, Sequence[Job]], None]:
        """`watch` for a commit function of several jobs."""

        def watched(tx: Any, jobs: Sequence[Job]) -> None:
            self.note(any(job.awaited or job.batch is not None for job in jobs))
            body(tx, jobs)

        return watched


@contextmanager
def resolving(resolve: Callable[[], None]) -> Generator[Ended]:
    """Resolve dependencies after the block, if it has ended a job that others may wait for."""
    ended = Ended()
    yield ended
    if ended.awaited:
        resolve()
