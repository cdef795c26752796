"""Enqueueing: calls become jobs in one transaction, and each kind's `admit` may refuse there."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .call import Call
from .errors import NotFound, Refused, UsageError
from .ids import uuid7
from .payload import encode
from .records import Enqueued, NewJob
from .stores import OpenStore
from .stores.inside import handle_here, open_transactions
from .taxonomy import headline

Transaction = Callable[[], AbstractContextManager[Any]]


def enqueue(store: OpenStore, calls: Sequence[Call], *, conn: Any, transaction: Transaction | None) -> list[Enqueued]:
    """Store each call's job, or find the holder of its key; answers stand in the order of the calls.

    Without a `conn`, code that runs inside a transaction of the app enqueues in that transaction.
    Where the app has its own `transaction`, `admit` gets a handle of that kind: the caller's `conn`, or one opened here.
    """
    conn = handle_here(store) if conn is None else conn
    jobs = [call.job(store) for call in calls]
    admit = _admission(calls, jobs)
    if admit is None or transaction is None or conn is not None:
        return store.enqueue(jobs, conn=conn, admit=admit)
    with transaction() as handle:
        return store.enqueue(jobs, conn=handle, admit=admit)


def handle_of(find_store: Callable[[], OpenStore]) -> Any | None:
    """The handle of the open transaction that this code runs in; None if there is none on this database."""
    return handle_here(find_store()) if open_transactions() else None


def enqueue_job(store: OpenStore, job: NewJob, call: Call | None, *, transaction: Transaction | None) -> Enqueued:
    """Store one job that was made by hand of a call, or, without one, of a kind whose code is elsewhere; its kind's `admit` is asked."""
    admit = None if call is None else _admission([call], [job])
    if admit is None or transaction is None:
        return store.enqueue([job], admit=admit)[0]
    with transaction() as handle:
        return store.enqueue([job], conn=handle, admit=admit)[0]


def enqueue_foreign(store: OpenStore, kind: str, payload: Mapping[str, Any]) -> Enqueued:
    """Store a job of a kind whose code is elsewhere, as that code was last migrated."""
    return store.enqueue([foreign_job(store, kind, payload)], conn=handle_here(store))[0]


def foreign_job(store: OpenStore, kind: str, payload: Mapping[str, Any]) -> NewJob:
    """A job of a kind whose code is elsewhere, as that code was last migrated."""
    facts = store.kind(kind)
    if facts is None or facts.lifecycle_version is None:
        raise NotFound(f"Nobody has declared a kind {kind!r} here: import the module that declares it, or run its migration (interlock migrate -A module:app).")
    if facts.admits:
        raise UsageError(f"{kind} judges every new job by a function of its own, which this process does not have: enqueue it where it is declared.")
    lifecycle = store.lifecycle(facts.lifecycle, facts.lifecycle_version)
    return NewJob(
        uuid7(), kind, lifecycle.name, facts.lifecycle_version, lifecycle.initial, encode(payload), facts.tries, queue=facts.queue,
        resting=tuple(sorted(lifecycle.resting)))


async def aenqueue(store: OpenStore, calls: Sequence[Call], conn: Any) -> list[Enqueued]:
    """The same inside the caller's own transaction, whose connection, being async, is used in its own thread and loop."""
    jobs = [call.job(store) for call in calls]
    return await store.aenqueue(jobs, conn=conn, admit=_admission(calls, jobs))


def _admission(calls: Sequence[Call], jobs: Sequence[NewJob]) -> Callable[[Any, NewJob], None] | None:
    asked = {job.id: call for call, job in zip(calls, jobs, strict=True) if call.declaration.admit}
    return (lambda tx, job: _ask(asked.get(job.id), tx, Enqueued(job.id, True))) if asked else None


def _ask(call: Call | None, tx: Any, job: Enqueued) -> None:
    if call is None or call.declaration.admit is None:
        return
    args, kwargs = call.declaration.signature.spread(call.arguments)
    try:
        call.declaration.admit(tx, job, *args, **kwargs)
    except Refused:
        raise
    except Exception as error:
        raise Refused(_reason(error)) from error


def _reason(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - an error without a readable text refuses, too
        return headline(error)
