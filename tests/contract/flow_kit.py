"""Helpers for tests of batches and dependencies: store graphs, run them, and read how they ended."""

from collections.abc import Sequence
from typing import Any

from interlock.core.blocked_jobs import OnFailed
from interlock.core.ids import uuid7
from interlock.core.job import Job
from interlock.core.outcome import FailedFinally, Returned
from interlock.store.contract import Store
from interlock.store.flow_types import Dependency, NewBatch
from interlock.store.types import NewJob
from tests.contract.kit import claim_rules, decided, make, taken

KIND = "mail"


def node(after: Sequence[NewJob | NewBatch] = (), on_failed: OnFailed = "cancel", **fields: Any) -> NewJob:
    """Return a job that waits for these jobs and batches."""
    needs = tuple(Dependency(each.id, isinstance(each, NewBatch), on_failed) for each in after)
    return make(KIND, after=needs, **fields)


def batch(name: str, parent: NewBatch | None = None) -> NewBatch:
    return NewBatch(uuid7(), name, None if parent is None else parent.id)


def put(store: Store, jobs: Sequence[NewJob], *batches: NewBatch) -> None:
    """Store a graph in one call."""
    needed = {each.needs for job in jobs for each in job.after}
    for job in jobs:
        job.awaited = job.id in needed
    assert all(each.created for each in store.queue.enqueue(jobs, batches=batches))


def run(store: Store, *, fails: Sequence[NewJob] = (), limit: int = 1000, kinds: Sequence[str] = (KIND,)) -> list[str]:
    """Claim what is due and end it. Returns the ids of the jobs that ran."""
    bad = {job.id for job in fails}
    leases = store.queue.claim("ann", claim_rules(*kinds), ["default"], limit)
    for lease in leases:
        outcome = FailedFinally("bad") if lease.job.id in bad else Returned('"v"', boundary=False)
        assert store.transitions.move([decided(lease, outcome)]) == []
    return [lease.job.id for lease in leases]


def cancel_requested(store: Store, *kinds: str) -> list[str]:
    """Do what maintenance does with waiting jobs that have a cancel request. Returns their ids."""
    found: list[str] = []
    while jobs := store.flow.to_cancel(kinds or (KIND,), 100):
        assert (
            store.transitions.take([taken(job, actor="dependencies", reason=job.cancel_reason) for job in jobs]) == []
        )
        found += [job.id for job in jobs]
    return found


def run_all(store: Store, *, fails: Sequence[NewJob] = ()) -> list[str]:
    """Run and cancel until nothing is left to do. Returns the ids of the jobs that ran, in order."""
    ran: list[str] = []
    while (more := run(store, fails=fails)) or cancel_requested(store):
        ran += more
    return ran


def get(store: Store, job: NewJob) -> Job:
    return store.inspect.get(job.id)


def events(store: Store, job: NewJob) -> list[tuple[str, str | None]]:
    """Return the events of a job's history after its enqueue, with their reasons."""
    return [(entry.event, entry.reason) for entry in store.inspect.history(job.id)[1:]]
