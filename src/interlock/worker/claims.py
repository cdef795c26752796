"""Claims jobs for the free slots, and short ones in advance."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from ..engine.context import WorkerContext
from ..store.types import ClaimRule
from ..telemetry import events
from .recycle import Recycling
from .slots import Slots
from .worker_parts import ClaimCapacity

MOST_PER_CLAIM = 500
"""The most jobs that one statement claims. With more, the worker would wait longer for the first of them."""


class Claims:
    """Claims jobs in the claim thread and passes them to the slots. Use it in the event loop only."""

    def __init__(  # noqa: PLR0917 - the parts of the worker
        self,
        context: WorkerContext,
        slots: Slots,
        capacity: ClaimCapacity,
        recycling: Recycling,
        queues: Sequence[str],
        claimer: Executor,
    ) -> None:
        self._context = context
        self._slots = slots
        self._capacity = capacity
        self._recycling = recycling
        self._queues = queues
        self._claimer = claimer

    async def claim(self, claim_rules: Sequence[ClaimRule], in_advance: Callable[[], bool]) -> tuple[int, bool] | None:
        """Claim jobs. Returns how many, and whether more may be due; None if no kind has room.

        A statement that found fewer jobs than it asked for took all that were due.
        """
        count, may_be_more, begun = 0, False, self._context.sleeper.monotonic()
        if not (groups := self._capacity.split(claim_rules, in_advance=in_advance())):
            return None
        for group in groups:
            room = min(self._capacity.room(group, in_advance=in_advance()), MOST_PER_CLAIM)
            limit = self._recycling.most_to_claim(room)
            if limit > 0:
                claimed = await self._claim_by(group, limit)
                count, may_be_more = count + claimed, may_be_more or claimed == limit
        self._context.events.emit(events.Claimed(self._context.owner, count, self._context.sleeper.monotonic() - begun))
        self._recycling.check()
        return count, may_be_more

    async def _claim_by(self, claim_rules: Sequence[ClaimRule], limit: int) -> int:
        asked_at, (suspects, alone) = self._context.sleeper.monotonic(), self._capacity.suspects(limit)
        owner, claim = self._context.owner, self._context.store.queue.claim
        call = partial(claim, owner, claim_rules, self._queues, limit, suspects=suspects, alone=alone)
        self._slots.reserved = limit
        try:
            leases = await asyncio.get_running_loop().run_in_executor(self._claimer, call)
        finally:
            self._slots.reserved = 0
        for lease in leases:
            lifecycle = self._context.kinds[lease.job.kind].lifecycle
            self._slots.add(lease, lifecycle, asked_at, separate_process=self._capacity.needs_child(lease))
        self._slots.begin_queued()
        self._slots.return_endangered()
        return len(leases)
