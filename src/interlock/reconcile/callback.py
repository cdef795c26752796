"""A provider that calls back: handed-over work is done, and says so itself instead of waiting to be asked."""

from collections.abc import Callable
from itertools import chain
from typing import Any

from .declaration import Declaration
from .enqueue import Transaction
from .errors import TransitionRefused, UsageError
from .ids import uuid7
from .move import decide
from .outcome import Returned
from .payload import check_external_id
from .records import Lease
from .stores import OpenStore
from .waits import Waits, pauses

SECONDS = 5.0
"""For how long a job is held to write its value down; what follows its commit is then taken up by a worker."""
MOST = 1000


def complete(find_store: Callable[[], OpenStore], kind: Declaration, external_id: str, value: Any, *, transaction: Transaction | None, waits: Waits) -> bool:
    """Complete every job that the outside knows by this id. False, and nothing changed, if none is waiting for it.

    One that a reconciler is just asking about is waited for. What the commit function raises goes through; that job is looked at again.
    """
    if kind.reconcile is None:
        raise UsageError(f"{kind.name} hands nothing over, so nobody calls back about it: give it a function with @{kind.name}.reconcile.")
    outcome = Returned(kind.signature.dump_value(value), boundary=kind.finish is not None, begins=True)
    check_external_id(external_id)
    store, owner, done = find_store(), f"callback#{uuid7()}", False
    for pause in chain(pauses(waits, kind.lease), [0.0]):
        for lease in store.recall(owner, [kind.name], SECONDS, MOST, external_id=external_id):
            done = _settle(store, kind, lease, outcome, value, transaction) or done
        if not store.handed(kind.name, external_id):
            return done
        waits.sleep(pause)
    raise TimeoutError(f"{external_id!r} of {kind.name} has been in a reconciler's hands for {kind.lease:g} s: call again.")


def _settle(store: OpenStore, kind: Declaration, lease: Lease, outcome: Returned, value: object, transaction: Transaction | None) -> bool:  # noqa: PLR0917
    lifecycle = store.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
    move = decide(lifecycle, lease.job, lease, outcome, kind.policy, 0.0, actor=lease.owner)
    if move.to_status == "ABORTED":
        raise TransitionRefused(move.error or f"Job {lease.job.id} cannot be completed from {lease.job.state}.")
    body = kind.moving(move, value, commits=True)
    if body is None:
        return not store.move([move])
    return store.commit(move, body, transaction=transaction, timeout=kind.commit_timeout) is None
