"""Enqueue for both dialects and every kind of connection, as a generator of statements without I/O.

If two transactions enqueue the same key, the database decides: it does not insert a job whose key is taken, and a
*separate* statement reads the jobs that have the keys. If such a job has freed its key in between, the enqueue tries
again.
"""

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol

from ..errors import InterlockError, KeyReused, NotFound, UsageError
from .flow_types import Dependency, NewBatch
from .types import Enqueued, NewJob

ROUNDS = 5
CHUNK = 1000
"""The most jobs in one statement."""
_shared_values = attrgetter(*sorted(set(NewJob.__slots__) - {"id", "payload"}))


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with `:name` parameters. With `many` it runs once for each parameter set and returns no rows."""

    sql: str
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    many: bool = False
    answers: bool = True


Row = Any
"""A tuple from the driver, with the columns of its query."""
Rows = Sequence[Row]

SAVE = Statement("SAVEPOINT interlock_round", {}, answers=False)
UNDO = Statement("ROLLBACK TO SAVEPOINT interlock_round", {}, answers=False)
KEEP = Statement("RELEASE SAVEPOINT interlock_round", {}, answers=False)
Plan = Generator[Statement, Rows, list[Enqueued]]


class Dialect(Protocol):
    """The statements that enqueue and redrive need, in one database's SQL."""

    def insert(self, jobs: Sequence[NewJob]) -> Iterable[Statement]:
        """Store the jobs whose keys are free. The last statement returns the ids that were stored.

        A statement that never stores only some of the jobs may return one row with NULL instead.
        """
        ...

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        """Find the jobs that have these keys.

        Each row is (index in `jobs`, job with the idempotency key, its payload, its state, job with the unique key).
        `tried` marks the jobs whose insert was refused just before.
        """
        ...

    def replaceable(self, ids: Sequence[str]) -> Statement:
        """Lock those of these jobs that may take another payload, and return their ids."""
        ...

    def replace(self, jobs: Mapping[str, NewJob]) -> Iterable[Statement]:
        """Give stored jobs the payloads of new jobs, and their due times to debounce them, where that is allowed.

        `jobs` has the new job for the id of each stored one. The last statement returns the ids of the changed jobs.
        """
        ...

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        """Make the jobs due now that rest in one of these states after a failure."""
        ...

    def add_batches(self, batches: Sequence[NewBatch]) -> Statement: ...

    def add_dependencies(self, edges: Sequence[tuple[str, Dependency]], arrived: Sequence[str]) -> Iterable[Statement]:
        """Store what jobs wait for. The last statement returns the id of a dependency that does not exist.

        `arrived` are jobs with existing dependencies, which may have ended already: they need a check.
        """
        ...

    def copy_receipts(self, redrives: Mapping[str, str]) -> Statement:
        """Copy the receipts of old jobs to new ones. `redrives` has the old id for each new id."""
        ...

    def lock_jobs(self, ids: Sequence[str]) -> Statement:
        """Lock these jobs until the transaction ends, in the order of their ids."""
        ...

    def redrivable(self, ids: Sequence[str]) -> Statement:
        """Find those of these jobs that ended without success.

        Each row is (id, was it redriven before, may a job wait for it or for its batch, may one wait for it itself, did
        it wait for others).
        """
        ...

    def dependencies_of(self, ids: Sequence[str]) -> Statement:
        """Find what these jobs waited for.

        Each row is (id, what it needs, is it a batch, policy, outcome, was it deleted since).
        """
        ...

    def lock_dependents(self, ids: Sequence[str]) -> Statement:
        """Lock the jobs that wait for these jobs, or for a batch or flow of them."""
        ...

    def reopen(self, repeated: Mapping[str, str]) -> Statement:
        """Move dependencies from old jobs to the new ones. Returns the ids of the dependents."""
        ...

    def block(self, ids: Sequence[str]) -> Iterable[Statement]:
        """Block jobs again that a failed dependency holds or is about to cancel."""
        ...

    def note_redrives(self, reasons: Mapping[str, str], actor: str) -> Statement:
        """Add a note `redrive` to the audit of each of these old jobs, which are locked."""
        ...


def has_key(job: NewJob) -> bool:
    return job.idempotency_key is not None or job.unique_key is not None


def are_alike(jobs: Sequence[NewJob]) -> bool:
    """Whether the jobs have no keys, and differ only in their ids and payloads."""
    if has_key(jobs[0]):
        return False
    shared = _shared_values(jobs[0])
    return all(_shared_values(job) == shared for job in jobs)


def enqueueing(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    admit: Callable[[NewJob], None] | None,
    batches: Sequence[NewBatch] = (),
) -> Plan:
    """Store the jobs, or find the jobs that have their keys; the results are in the order of `jobs`."""
    if batches:
        yield dialect.add_batches(batches)
    found, stored = yield from _store_or_find(dialect, jobs)
    if any(job.after for job in jobs):
        yield from _add_dependencies(dialect, jobs, found, stored, batches)
    redrives = {job.id: job.redrive_of for job in jobs if job.inherits and job.redrive_of and job.id in stored}
    if redrives:
        yield dialect.copy_receipts(redrives)
    for job in jobs:
        if admit is not None and job.id in stored:
            admit(job)
    return [found.get(n) or Enqueued(job.id, True) for n, job in enumerate(jobs)]


def _store_or_find(
    dialect: Dialect, jobs: Sequence[NewJob]
) -> Generator[Statement, Rows, tuple[dict[int, Enqueued], set[str]]]:
    """Store the jobs whose keys are free. Return those that were found by their keys, and the ids of the new ones."""
    found: dict[int, Enqueued] = {}
    stored: set[str] = set()
    with_keys = any(has_key(job) for job in jobs)
    with_savepoint = with_keys and len(jobs) > 1
    for _ in range(ROUNDS):
        if with_savepoint:
            yield SAVE
        asked = [n for n in range(len(jobs)) if n not in found]
        first = _first_of_each_key(jobs, asked) if with_keys else asked
        stored = yield from _insert(dialect, _in_order_of_keys([jobs[n] for n in first]) if with_keys else jobs)
        missing = [n for n in asked if jobs[n].id not in stored]
        if missing:
            found |= yield from _find(dialect, jobs, missing, frozenset(first))
        complete = all(n in found for n in missing)
        if with_savepoint and not complete:
            # A transaction that waits for one key while it owns others could deadlock, so each round starts empty.
            yield UNDO
            found.clear()
        if with_savepoint:
            yield KEEP
        if complete:
            return found, stored
    raise InterlockError(
        f"Other jobs took and freed a key {ROUNDS} times during this enqueue. Nothing was stored; try again."
    )


def _add_dependencies(
    dialect: Dialect,
    jobs: Sequence[NewJob],
    found: Mapping[int, Enqueued],
    stored: Container[str],
    batches: Sequence[NewBatch],
) -> Generator[Statement, Rows, None]:
    """Store the dependencies of the new jobs. A dependency may be an existing job that was found by its key.

    A job that was found is not in the new batch that asked for it: jobs that wait for the batch wait for it as well.
    """
    actual = {jobs[n].id: each.id for n, each in found.items()}
    beside = _found_beside(jobs, found, batches)
    filled = {job.batch for job in jobs if job.id in stored}
    filled |= {batch.parent for batch in batches if batch.id in filled}
    new_sets = {batch.id for batch in batches} & filled
    edges: list[tuple[str, Dependency]] = []
    arrived: dict[str, None] = {}
    for job in jobs:
        if job.id not in stored:
            continue
        more = [Dependency(id, False, each.on_failed) for each in job.after for id in beside.get(each.needs, ())]
        for each in (*job.after, *more):
            needs = actual.get(each.needs, each.needs)
            if needs == job.id:
                raise UsageError(
                    f"A new job of kind {job.kind} would wait for itself, because a job that it waits for has the same "
                    "key: give one of them another key."
                )
            edges.append((job.id, replace(each, needs=needs) if needs != each.needs else each))
            # A new job adds a check when it ends. An existing one may have ended already, so it needs a check now.
            if not (needs in new_sets if each.is_batch else needs in stored):
                arrived[job.id] = None
    rows: Rows = ()
    for statement in dialect.add_dependencies(edges, list(arrived)) if edges else ():
        rows = yield statement
    if rows:
        raise NotFound(f"The job or batch {rows[0][0]} does not exist, so no job can wait for it. Nothing was stored.")


def _found_beside(
    jobs: Sequence[NewJob], found: Mapping[int, Enqueued], batches: Sequence[NewBatch]
) -> dict[str, list[str]]:
    """Return the jobs that were found by their keys, by the new batch that asked for them, and by its flow."""
    parents = {batch.id: batch.parent for batch in batches}
    beside: dict[str, list[str]] = {}
    for n, each in found.items():
        batch = jobs[n].batch
        if batch in parents:
            for id in {batch, parents[batch]} - {None}:
                beside.setdefault(str(id), []).append(each.id)
    return beside


def _first_of_each_key(jobs: Sequence[NewJob], places: Sequence[int]) -> list[int]:
    """Return the jobs to insert. A statement may name each key once; other jobs with that key find the one it names.

    This is the first job, or, if jobs replace the payload of the job with their unique key, the last one of these.
    """
    replacing = {(jobs[n].kind, jobs[n].unique_key): n for n in places if jobs[n].replaces}
    seen: set[tuple[str, str, str]] = set()
    first: list[int] = []
    for n in (*replacing.values(), *places):
        job = jobs[n]
        keys = {
            (job.kind, name, key)
            for name, key in (("i", job.idempotency_key), ("u", job.unique_key))
            if key is not None
        }
        # The jobs that replace come twice, and have a key: the second time it is in `seen`.
        if keys.isdisjoint(seen):
            first.append(n)
        seen |= keys
    return first


def _in_order_of_keys(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Every enqueue takes keys in the same order, even across the statements of a long list, to avoid deadlocks."""
    return sorted(jobs, key=lambda job: (job.kind, job.idempotency_key or "", job.unique_key or ""))


def _insert(dialect: Dialect, jobs: Sequence[NewJob]) -> Generator[Statement, Rows, set[str]]:
    stored: set[str] = set()
    for start in range(0, len(jobs), CHUNK):
        rows: Rows = ()
        chunk = jobs[start : start + CHUNK]
        for statement in dialect.insert(chunk):
            rows = yield statement
        if rows and rows[0][0] is None:
            stored.update(job.id for job in chunk)
        else:
            stored.update(str(row[0]) for row in rows)
    return stored


def _find(
    dialect: Dialect, jobs: Sequence[NewJob], missing: Sequence[int], tried: frozenset[int]
) -> Generator[Statement, Rows, dict[int, Enqueued]]:
    answers: dict[int, Enqueued] = {}
    rows = yield dialect.key_holders([jobs[n] for n in missing], [n in tried for n in missing])
    resting: dict[tuple[str, ...], list[str]] = {}
    replacing: dict[str, int] = {}
    for row in rows:
        n = missing[int(row[0])]
        job, holder = jobs[n], row[1] or row[4]
        if holder is None:
            continue
        if row[1] is not None and row[2] != job.payload:
            raise KeyReused(
                f"The idempotency key {job.idempotency_key!r} of {job.kind!r} belongs to job {row[1]} with another "
                "payload. Nothing was stored: use another key."
            )
        if row[1] is not None and row[3] in job.resting:
            resting.setdefault(job.resting, []).append(row[1])
        # A job that was not tried has lost its key to a later job of this call.
        if job.replaces and n in tried:
            replacing[str(holder)] = n
        answers[n] = Enqueued(str(holder), False)
    for states, ids in resting.items():
        yield dialect.make_due(ids, states)
    if replacing:
        for id in (yield from _replace(dialect, {id: jobs[n] for id, n in replacing.items()})):
            answers[replacing[id]] = Enqueued(id, False, replaced=True)
    return answers


def _replace(dialect: Dialect, jobs: Mapping[str, NewJob]) -> Generator[Statement, Rows, list[str]]:
    """Give the payloads of new jobs to the stored jobs that have their keys; return the ids of those that took them.

    Jobs that were started keep their payloads: the statements decide that, so that a claim at the same time either sees
    the new payload or prevents it.
    """
    waiting = yield dialect.replaceable(list(jobs))
    chosen = {str(row[0]): jobs[str(row[0])] for row in waiting}
    rows: Rows = ()
    for statement in dialect.replace(chosen) if chosen else ():
        rows = yield statement
    return [str(row[0]) for row in rows]
