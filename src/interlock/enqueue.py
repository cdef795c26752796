"""Enqueueing: calls become jobs in one transaction, and each kind's `admit` may refuse there."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .call import Call
from .errors import Refused
from .store import Enqueued, NewJob
from .stores import OpenStore

Transaction = Callable[[], AbstractContextManager[Any]]


def enqueue(store: OpenStore, calls: Sequence[Call], *, conn: Any, transaction: Transaction | None) -> list[Enqueued]:
    """Store each call's job, or find the holder of its key; answers stand in the order of the calls.

    Where the app has its own `transaction`, `admit` gets a handle of that kind: the caller's `conn`, or one opened here.
    """
    jobs = [call.job(store) for call in calls]
    admit = _admission(calls, jobs)
    if admit is None or transaction is None or conn is not None:
        return store.enqueue(jobs, conn=conn, admit=admit)
    with transaction() as handle:
        return store.enqueue(jobs, conn=handle, admit=admit)


async def aenqueue(store: OpenStore, calls: Sequence[Call], conn: Any) -> list[Enqueued]:
    """The same inside the caller's own transaction, whose connection, being async, is used in its own thread and loop."""
    jobs = [call.job(store) for call in calls]
    return await store.aenqueue(jobs, conn=conn, admit=_admission(calls, jobs))


def _admission(calls: Sequence[Call], jobs: Sequence[NewJob]) -> Callable[[Any, NewJob], None] | None:
    asked = {job.id: call for call, job in zip(calls, jobs, strict=True) if call.declaration.admit}
    return (lambda tx, job: _ask(asked.get(job.id), tx)) if asked else None


def _ask(call: Call | None, tx: Any) -> None:
    if call is None or call.declaration.admit is None:
        return
    args, kwargs = call.declaration.signature.spread(call.arguments)
    try:
        call.declaration.admit(tx, *args, **kwargs)
    except Refused:
        raise
    except Exception as error:
        raise Refused(str(error) or type(error).__name__) from error
