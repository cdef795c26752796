"""Stores a flow: its jobs with their dependencies, and its batches, in one transaction."""

from collections.abc import Sequence
from typing import Any

from ..store import OpenStore
from ..store.flow_types import NewBatch
from ..store.types import Enqueued, NewJob
from .enqueue import Transaction, admission, enqueue_jobs
from .flow import Part
from .request import new_jobs


def enqueue_flow(
    store: OpenStore,
    parts: Sequence[Part],
    batches: Sequence[NewBatch],
    *,
    conn: Any,
    transaction: Transaction | None,
) -> list[Enqueued]:
    """Store the jobs and batches of a flow, or find the jobs that have the keys."""
    requests = [part.request for part in parts]
    jobs = _jobs(store, parts)
    return enqueue_jobs(store, requests, jobs, conn=conn, transaction=transaction, batches=batches)


async def aenqueue_flow(
    store: OpenStore, parts: Sequence[Part], batches: Sequence[NewBatch], conn: Any
) -> list[Enqueued]:
    """`enqueue_flow` inside the caller's transaction. An async connection is used in its own thread and event loop."""
    jobs = _jobs(store, parts)
    admit = admission([part.request for part in parts], jobs)
    return await store.queue.aenqueue(jobs, conn=conn, admit=admit, batches=batches)


def _jobs(store: OpenStore, parts: Sequence[Part]) -> list[NewJob]:
    """Make the jobs, with the ids of their handles, their batches and their dependencies."""
    jobs = new_jobs(store, [part.request for part in parts])
    needed = {each.needs for part in parts for each in part.after}
    for part, job in zip(parts, jobs, strict=True):
        job.id, job.batch, job.after = part.handle.id, part.batch, part.after
        job.awaited = job.id in needed
    return jobs
