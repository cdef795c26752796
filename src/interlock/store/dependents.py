"""Unblocks, holds or cancels jobs whose dependencies have ended, for both stores.

A transaction that ends a job with dependents, or stores a job that waits for others, adds a check: a row that says
which job to look at. The same process carries out the check after that transaction has committed. Only then does one of
two jobs that end at the same time see the end of the other. If the process dies before that, another worker carries out
the check.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.blocked_jobs import Blocked
from ..core.job import Job

CHECKS = 1000
"""The most checks in one transaction."""
ROUNDS = 1000
"""The most transactions in one call. The next call carries out the remaining checks."""
AGAIN_AFTER = 1.0
"""Seconds after which a job that was locked is checked again."""
ACTOR = "dependencies"
"""The actor in the audit of a job that waited for others."""


@dataclass(frozen=True, slots=True)
class EndedDependency:
    """A dependency that has an outcome, which may not be stored yet."""

    job_id: str
    needs: str
    is_batch: bool
    outcome: str
    """`succeeded`, `failed`, or `redriven` if the job waits for the new one instead."""


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

    def follow(self, ids: Sequence[str]) -> list[str]:
        """Move dependencies of these jobs from redriven jobs to the new ones. Return the jobs that had some."""
        ...

    def outcomes(self, ended: Sequence[str], arrived: Sequence[str]) -> list[EndedDependency]:
        """Return dependencies with an outcome: those on jobs that have ended, and those of new jobs."""
        ...

    def lock_edges(self, edges: Sequence[EndedDependency]) -> list[str]:
        """Keep redrives from changing these dependencies. Return the waiting jobs for which this was not possible."""
        ...

    def mark(self, edges: Sequence[EndedDependency]) -> None:
        """Store the outcomes of these dependencies."""
        ...

    def lock(self, ids: Sequence[str]) -> list[str]:
        """Lock these jobs. Return those that another transaction has locked."""
        ...

    def blocked(self, ids: Sequence[str]) -> list[Blocked]:
        """Return those of the jobs that wait for others."""
        ...

    def apply(self, blocked: Sequence[Blocked]) -> None:
        """Unblock, hold or cancel these jobs, as decided."""
        ...


def resolve_some(db: FlowQueries) -> bool:
    """Carry out checks in one transaction. Returns whether there may be more."""
    taken = db.take(CHECKS)
    steps: dict[str, list[str]] = {"ended": [], "arrived": [], "changed": []}
    for step, id in dict.fromkeys(taken):
        steps[step].append(id)
    _await_needs(db, steps["arrived"])
    marked = _store_outcomes(db, steps["ended"], steps["arrived"])
    _decide(db, steps["changed"])
    return marked or len(taken) == CHECKS


def _await_needs(db: FlowQueries, arrived: Sequence[str]) -> None:
    """Mark the jobs that these jobs wait for. If one was redriven, wait for the new job, which may have ended, too."""
    asked = list(arrived)
    while asked:
        if locked := db.await_needs(asked):
            db.add("arrived", locked, AGAIN_AFTER)
        asked = db.follow(asked)


def _store_outcomes(db: FlowQueries, ended: Sequence[str], arrived: Sequence[str]) -> bool:
    """Store outcomes of dependencies, and add checks of the jobs that wait. Returns whether there are such jobs."""
    edges = db.outcomes(ended, arrived) if ended or arrived else []
    if moved := sorted({each.job_id for each in edges if each.outcome == "redriven"}):
        db.add("arrived", moved, 0.0)
    edges = [each for each in edges if each.outcome != "redriven"]
    if edges and (locked := set(db.lock_edges(edges))):
        db.add("arrived", sorted(locked), AGAIN_AFTER)
        edges = [each for each in edges if each.job_id not in locked]
    if edges:
        db.mark(edges)
        # Even if another process has stored the outcome: that one cannot decide while this one has the job locked.
        db.add("changed", sorted({each.job_id for each in edges}), 0.0)
    return bool(moved or edges)


def _decide(db: FlowQueries, changed: Sequence[str]) -> None:
    """Decide about these jobs, and carry it out. Most of them still wait, and are not locked."""
    decided = _decided(db, changed)
    if not decided:
        return
    ids = [each.job_id for each in decided]
    if locked := set(db.lock(ids)):
        db.add("changed", sorted(locked), AGAIN_AFTER)
    if now := _decided(db, [id for id in ids if id not in locked]):
        db.apply(now)


def _decided(db: FlowQueries, ids: Sequence[str]) -> list[Blocked]:
    return [each for each in db.blocked(ids) if each.decision != "wait"] if ids else []


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
