"""Executions that are ours without our knowing: the claim was stored, and its reply was lost."""

import logging
from collections.abc import Sequence

from ..errors import InterlockError
from ..move import decide
from ..outcome import Released
from ..records import Fence
from .desk import Desk

_log = logging.getLogger("interlock")


def release_strays(desk: Desk, held: Sequence[Fence]) -> int:
    """Give back what a lost reply left to us; no try is spent. What cannot be given back is left to its lease."""
    released = 0
    for fence in desk.store.strays(desk.owner, held):
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
