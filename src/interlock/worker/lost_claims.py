"""Executions that are ours without our knowing: the claim was stored, and its reply was lost."""

import logging
from collections.abc import Sequence

from ..errors import InterlockError
from ..move import decide
from ..outcome import Released
from ..records import Fence
from .desk import Desk

_log = logging.getLogger("interlock")


def release_strays(desk: Desk, held: Sequence[Fence], fallen: dict[Fence, None]) -> int:
    """Give back what a lost reply left to us; no try is spent. What cannot be given back is left to its lease.

    Jobs that broke here (`fallen`) are left to their leases too. They are forgotten once another worker has taken them.
    """
    released, found = 0, desk.store.strays(desk.owner, held)
    for fence in set(fallen).difference(found):
        del fallen[fence]
    for fence in found:
        if fence in fallen:
            continue
        job = desk.store.get(fence.job_id)
        execution = desk.store.executions(fence.job_id)[-1]
        declaration = desk.kinds.get(job.kind)
        if declaration is None or execution.attempt != fence.attempt or not execution.live:
            continue
        lifecycle = desk.store.lifecycle(job.lifecycle, job.lifecycle_version)
        try:
            move = decide(lifecycle, job, execution, Released("the reply to its claim was lost"), declaration.policy, desk.draw(), actor=desk.owner)
            released += not desk.store.move([move])
        except InterlockError as error:
            _log.warning("job %s, claimed by a lost reply, is left to its lease: %s", job.id, error)
    return released
