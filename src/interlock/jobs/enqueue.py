"""Enqueueing: requests become jobs in one transaction, in which the `admit` function of their kind may refuse them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..core.error_policy import headline
from ..core.ids import uuid7
from ..core.payload import encode
from ..errors import NotFound, Refused, UsageError
from ..store import OpenStore
from ..store.flow_types import NewBatch
from ..store.open_transactions import handle_here, open_transactions
from ..store.types import Enqueued, KindFacts, NewJob
from .request import JobRequest, new_jobs

Transaction = Callable[[], AbstractContextManager[Any]]
Requests = Sequence[JobRequest[Any]]


def enqueue(store: OpenStore, requests: Requests, *, conn: Any, transaction: Transaction | None) -> list[Enqueued]:
    """Store the job of each request, or find the job that has its key. The results are in the order of the requests.

    Without a `conn`, code that runs inside a transaction of the app enqueues in that transaction. If the app has its
    own `transaction`, `admit` receives its handle: the caller's `conn`, or one opened here.
    """
    return enqueue_jobs(store, requests, new_jobs(store, requests), conn=conn, transaction=transaction)


def enqueue_jobs(
    store: OpenStore,
    requests: Requests,
    jobs: Sequence[NewJob],
    *,
    conn: Any,
    transaction: Transaction | None,
    batches: Sequence[NewBatch] = (),
) -> list[Enqueued]:
    """`enqueue` for jobs that were made from these requests, and batches."""
    conn = handle_here(store) if conn is None else conn
    admit = admission(requests, jobs)
    if admit is None or transaction is None or conn is not None:
        return store.queue.enqueue(jobs, conn=conn, admit=admit, batches=batches)
    with transaction() as handle:
        return store.queue.enqueue(jobs, conn=handle, admit=admit, batches=batches)


def current_connection(find_store: Callable[[], OpenStore]) -> Any | None:
    """Return the connection of the open transaction that this code runs in; None without one on this database."""
    return handle_here(find_store()) if open_transactions() else None


def enqueue_foreign(store: OpenStore, kind: str, payload: Mapping[str, Any]) -> Enqueued:
    """Store a job of a kind that another program declares, as that program last migrated it."""
    job = foreign_job(store, kind, payload, store.registry.kind(kind))
    return store.queue.enqueue([job], conn=handle_here(store))[0]


def foreign_job(store: OpenStore, kind: str, payload: Mapping[str, Any], facts: KindFacts | None) -> NewJob:
    """Build a job of a kind that another program declares, from the facts that this program last migrated."""
    if facts is None or facts.lifecycle_version is None:
        raise NotFound(
            f"This database knows no kind {kind!r}: import the module that declares it, "
            "or run its migration (interlock migrate -A module:app)."
        )
    if facts.admits:
        raise UsageError(
            f"{kind} has an admit function, which this process does not have: "
            "enqueue the job in the program that declares it."
        )
    lifecycle = store.registry.lifecycle(facts.lifecycle, facts.lifecycle_version)
    return NewJob(
        uuid7(),
        kind,
        lifecycle.name,
        facts.lifecycle_version,
        lifecycle.initial,
        encode(payload),
        facts.tries,
        queue=facts.queue,
        resting=tuple(sorted(lifecycle.resting)),
    )


async def aenqueue(store: OpenStore, requests: Requests, conn: Any) -> list[Enqueued]:
    """`enqueue` inside the caller's transaction. An async connection is used in its own thread and event loop."""
    jobs = new_jobs(store, requests)
    return await store.queue.aenqueue(jobs, conn=conn, admit=admission(requests, jobs))


def admission(requests: Requests, jobs: Sequence[NewJob]) -> Callable[[Any, NewJob], None] | None:
    """Return a function that calls `admit` for each new job; None if no kind has one."""
    admitted = {job.id: request for request, job in zip(requests, jobs, strict=True) if request.spec.admit}
    return (lambda tx, job: _call_admit(admitted.get(job.id), tx, Enqueued(job.id, True))) if admitted else None


def _call_admit(request: JobRequest[Any] | None, tx: Any, job: Enqueued) -> None:
    if request is None or request.spec.admit is None:
        return
    args, kwargs = request.spec.signature.spread(request.arguments)
    try:
        request.spec.admit(tx, job, *args, **kwargs)
    except Refused:
        raise
    except Exception as error:
        raise Refused(_reason(error)) from error


def _reason(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - an error whose text raises refuses the job, too
        return headline(error)
