"""Completes jobs when an external system calls back, before the reconciler asks."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from ..core.outcome import Returned
from ..core.payload import check_external_id
from ..core.sleeper import pauses
from ..engine.context import SettleContext
from ..engine.settle import Settler
from ..engine.settlement import Settlement
from ..errors import UsageError
from ..jobs.spec import KindSpec
from ..store.types import Lease

LEASE = 5.0
"""Seconds for which a job is leased to store its value. If the kind has a finish function, a worker runs it later."""
LIMIT = 1000


def complete(context: SettleContext, kind: KindSpec, external_id: str, value: Any) -> bool:
    """Complete every job with this external id. Returns False if no job waits for it.

    If a reconciler has leased such a job, the call waits for the reconciler. If the commit function raises, the error
    propagates and the reconciler checks that job again.
    """
    if kind.reconcile is None:
        raise UsageError(
            f"{kind.name} has no reconcile function, so its jobs never wait for an external system. "
            f"Add @{kind.name}.reconcile."
        )
    outcome = Returned(kind.signature.dump_value(value), boundary=kind.finish is not None, begins=True)
    check_external_id(external_id)
    settler, done = Settler(context), False
    for lease in take_over(context, kind, external_id, "complete"):
        done = settler.settle_or_raise(Settlement(context.execution_of(lease), outcome, value=value)) or done
    return done


def take_over(context: SettleContext, kind: KindSpec, external_id: str, verb: str) -> Iterator[Lease]:
    """Yield each execution with this external id, leased. If a reconciler has leased one, wait for the reconciler.

    Raises `TimeoutError` if that takes too long; `verb` is the method to call again.
    """
    store = context.store
    for pause in chain(pauses(context.sleeper, kind.lease), [0.0]):
        yield from store.leases.recall(context.owner, [kind.name], LEASE, LIMIT, external_id=external_id)
        if not store.external.count(kind.name, external_id):
            return
        context.sleeper.sleep(pause)
    raise TimeoutError(
        f"A reconciler has leased {external_id!r} of {kind.name} for more than {kind.lease:g} s. Call {verb} again."
    )
