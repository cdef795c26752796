"""Redrive for both dialects and every kind of connection, as a generator of statements without I/O.

The old jobs are locked first, and the new jobs and the notes about them are stored in the same transaction. So the note
in an old job's audit proves that the job was redriven, and of two transactions that redrive it at the same time, the
second one finds the note of the first.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence

from ..core.blocked_jobs import OnFailed
from .enqueue_plan import Dialect, Rows, Statement, enqueueing
from .flow_types import Dependency
from .selection import Redriven
from .types import NewJob

ID_LENGTH = 36


def redriving(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    admit: Callable[[NewJob], None] | None,
    *,
    again: bool,
    reason: str | None,
) -> Generator[Statement, Rows, list[Redriven]]:
    """Store each job whose `redrive_of` names a job that ended without success; the results are in the same order."""
    new = {job.redrive_of: job for job in jobs if job.redrive_of is not None}
    if len(new) < len(jobs):
        raise ValueError(
            "Each job of a redrive must name a job that it redrives, and no two of them the same: set redrive_of."
        )
    yield dialect.lock_jobs(list(new))
    # A separate statement: its snapshot is newer than the lock, so that it finds the note of a redrive that it waited
    # for.
    rows = yield dialect.redrivable(list(new))
    before, awaited, itself, waited = ({str(row[0]): bool(row[n]) for row in rows} for n in range(1, 5))
    allowed = {old: job for old, job in new.items() if old in before and (again or not before[old])}
    left_out = yield from _inherit_dependencies(dialect, {old: job for old, job in allowed.items() if waited[old]})
    for old, job in allowed.items():
        job.awaited = itself[old]
    enqueued = yield from enqueueing(dialect, list(allowed.values()), admit)
    results = {old: Redriven(old, "redriven_before" if old in before else "not_failed") for old in new}
    notes: dict[str, str] = {}
    for (old, job), found in zip(allowed.items(), enqueued, strict=True):
        results[old] = Redriven(old, "stored" if found.created else "key_taken", found.id, awaited[old])
        if found.created:
            notes[old] = ": ".join(part for part in (_successor(job.id, left_out[old]), reason) if part)
    if notes:
        yield dialect.note_redrives(notes, jobs[0].actor)
        yield from _reopen(dialect, {old: allowed[old].id for old in notes if awaited[old]})
    return list(results.values())


def _inherit_dependencies(dialect: Dialect, jobs: Mapping[str, NewJob]) -> Generator[Statement, Rows, Counter[str]]:
    """Give the new jobs the dependencies of the old ones. Dependencies that failed for good no longer stop them.

    Jobs and batches that were deleted since are left out. Returns how many, for each old job.
    """
    left_out: Counter[str] = Counter()
    for old, needs, is_batch, on_failed, outcome, deleted in (
        (yield dialect.dependencies_of(list(jobs))) if jobs else ()
    ):
        if deleted:
            left_out[old] += 1
            continue
        policy: OnFailed = "run" if outcome == "failed" else on_failed
        jobs[old].after += (Dependency(needs, bool(is_batch), policy),)
    return left_out


def redrive_in(note: str) -> str:
    """Return the id of the new job that a note `redrive` in an audit names."""
    return note.removeprefix("as ")[:ID_LENGTH]


def _successor(id: str, left_out: int) -> str:
    """Name the new job in the audit of the old one. `flow.follow` reads the id."""
    if not left_out:
        return f"as {id}"
    return f"as {id}, without {left_out} deleted {'dependency' if left_out == 1 else 'dependencies'}"


def _reopen(dialect: Dialect, repeated: Mapping[str, str]) -> Generator[Statement, Rows, None]:
    """Make the dependents of the old jobs wait for the new ones."""
    if not repeated:
        return
    yield dialect.lock_dependents(list(repeated))
    waiting = sorted({str(row[0]) for row in (yield dialect.reopen(repeated))})
    for statement in dialect.block(waiting) if waiting else ():  # noqa: UP028 - a list takes no answers
        yield statement
