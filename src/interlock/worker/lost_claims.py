"""Returns jobs that this worker claimed without noticing, because the reply to its claim was lost."""

import logging
from collections.abc import Sequence

from ..core.outcome import Requeued
from ..engine.context import WorkerContext
from ..engine.settle import Settler
from ..engine.settlement import Settlement
from ..store.types import Fence, Lease

_log = logging.getLogger("interlock")


def return_lost_claims(context: WorkerContext, owned: Sequence[Fence], abandoned: dict[Fence, None]) -> int:
    """Return the jobs of lost claims to the queue. They keep their tries and their place. Returns how many there were.

    A job that cannot be returned waits until its lease expires. So do `abandoned` jobs, whose slot failed. They are
    removed from `abandoned` when another worker has taken them.
    """
    returned, settler = 0, Settler(context)
    found = context.store.leases.lost_claims(context.owner, owned)
    for fence in set(abandoned).difference(found):
        del abandoned[fence]
    for fence in found:
        if fence in abandoned:
            continue
        job = context.store.inspect.get(fence.job_id)
        execution = context.store.inspect.executions(fence.job_id)[-1]
        spec = context.kinds.get(job.kind)
        if spec is None or execution.attempt != fence.attempt or not execution.live:
            continue
        lease = Lease(job, execution.holder, execution.status, context.owner, spec.lease)
        outcome = Requeued("the reply to its claim was lost", started=False)
        settlement = Settlement(context.execution_of(lease), outcome)
        settlement.execution.ran_elsewhere = True  # no handler ran, so the attempt has no run time
        try:
            returned += settler.settle_or_raise(settlement)
        except Exception as error:  # noqa: BLE001 - logged; the lease expires
            _log.warning(
                "Job %s was claimed, but the reply was lost. It runs again when its lease expires: %s", job.id, error
            )
    return returned
