"""Sends outcomes to the settler in batches. Outcomes that arrive while a batch is stored form the next batch."""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from ..core.error_policy import headline
from ..core.outcome import Outcome
from ..jobs.user_code import context_of, protected, try_call
from .commit_groups import CommitGroups
from .held_execution import HeldExecution
from .settle_group import GroupSettler, LeftOut
from .settlement import OnSettled, Settlement, take_batch

_log = logging.getLogger("interlock")
MOST_PER_BATCH = 1000
"""The most moves in one batch."""


class Reporter:
    """Accepts outcomes in the event loop and settles them in threads.

    One thread settles batches. Other threads settle kinds with hooks or a commit function: commits in groups, and
    everything else one job at a time.
    """

    def __init__(self, settler: GroupSettler, batch_thread: Executor, single_threads: Executor) -> None:
        self._settler = settler
        self._batch_thread = batch_thread
        self._single_threads = single_threads
        self._own = context_of(None)
        """The context of the worker's own code. A handler may post an outcome from a context that it has changed."""
        self._waiting: deque[Settlement] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing = False
        self._hooks_stopped = asyncio.Event()
        self.on_hook_raised: Callable[[HeldExecution], None] = lambda _: None
        """Called in the event loop when the hook of an outcome has raised, before each retry."""
        self._groups = CommitGroups(self._begin, self._settle_commit, self._settle_group)

    def stop_retrying_hooks(self) -> None:
        """Stop retrying hooks that raised; the worker that adopts the job retries them. Call it in the event loop."""
        self._hooks_stopped.set()

    def post(self, execution: HeldExecution, outcome: Outcome, on_settled: OnSettled, value: Any = None) -> None:
        """Store an outcome. `on_settled` is called in the event loop afterwards, once for a batch."""
        settlement = Settlement(execution, outcome, on_settled, value)
        execution.settling = not settlement.keeps_running
        if execution.spec.settles_alone:
            if self._settler.accepts(settlement):
                self._groups.add(settlement)
            else:
                self._begin(self._settle_one(settlement))
            return
        self._waiting.append(settlement)
        if not self._flushing:
            self._flushing = True
            self._begin(self._flush())

    async def send(self, execution: HeldExecution, outcome: Outcome) -> None:
        """Store an outcome after which the handler continues. Raises `LeaseLost` or `TransitionRefused`."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_settled(settlements: Sequence[Settlement]) -> None:
            (settlement,) = settlements
            if settled.done():
                return
            if settlement.error is None:
                settled.set_result(None)
            else:
                settled.set_exception(settlement.error)

        self.post(execution, outcome, on_settled)
        await settled

    async def drain(self) -> None:
        """Wait until every outcome is stored."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Any) -> None:
        task = protected(work, context=self._own.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, threads: Executor, settlements: Sequence[Settlement], work: Callable[[], None]) -> None:
        """Settle in a thread. If that fails, store the error in each settlement, so that every slot becomes free."""
        try:
            _, error = await asyncio.get_running_loop().run_in_executor(threads, try_call, work)
        except Exception as refused:  # noqa: BLE001 - the thread pool is shut down
            error = refused
        if error is not None:
            fault = (
                error
                if isinstance(error, Exception) and not isinstance(error, StopIteration)
                else RuntimeError(f"settling raised {headline(error)}")
            )
            for settlement in settlements:
                settlement.error = settlement.error or fault

    async def _settle_one(self, settlement: Settlement) -> None:
        await self._try_one(settlement)
        await self._retry_hooks(settlement)

    async def _settle_commit(self, settlement: Settlement) -> None:
        """Settle one commit that has no group. Retries of its hooks do not delay the next group."""
        await self._try_one(settlement)
        self._begin(self._retry_hooks(settlement))

    async def _settle_group(self, settlements: Sequence[Settlement]) -> LeftOut:
        left_out = LeftOut()

        def work() -> None:
            nonlocal left_out
            left_out = self._settler.settle_group(settlements)

        await self._settle(self._single_threads, settlements, work)
        not_stored = {id(settlement) for settlement in (*left_out.alone, *left_out.late)}
        stored = [settlement for settlement in settlements if id(settlement) not in not_stored]
        self._notify_soon(stored)
        for settlement in left_out.alone:
            self._begin(self._settle_one(settlement))
        return left_out

    async def _try_one(self, settlement: Settlement) -> None:
        work = functools.partial(self._settler.settle_one, settlement)
        await self._settle(self._single_threads, [settlement], work)

    async def _retry_hooks(self, settlement: Settlement) -> None:
        """Settle again for as long as a hook raises, then notify the slot."""
        context = self._settler.context
        while settlement.retry_in is not None and settlement.execution.stop != "lost" and not context.stopped.is_set():
            self.on_hook_raised(settlement.execution)
            await self._wait(settlement.retry_in)
            if self._hooks_stopped.is_set():
                break
            settlement.retry_in = settlement.error = None
            await self._try_one(settlement)
        self._notify([settlement])

    async def _wait(self, seconds: float) -> None:
        waiting = [
            asyncio.ensure_future(self._hooks_stopped.wait()),
            asyncio.ensure_future(self._settler.context.sleeper.asleep(seconds)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _flush(self) -> None:
        try:
            await asyncio.sleep(0)  # outcomes of the same loop iteration join the batch
            while self._waiting:
                batch = take_batch(self._waiting, MOST_PER_BATCH)
                await self._settle(self._batch_thread, batch, functools.partial(self._settler.settle_batch, batch))
                self._notify_soon(batch)
        finally:
            self._flushing = False

    def _notify_soon(self, batch: Sequence[Settlement]) -> None:
        """Notify after the caller has begun the next batch, so that the database stores it meanwhile."""
        asyncio.get_running_loop().call_soon(self._notify, batch)

    @staticmethod
    def _notify(batch: Sequence[Settlement]) -> None:
        """Call each callback once, with its part of the batch."""
        parts: dict[OnSettled, list[Settlement]] = {}
        for settlement in batch:
            if settlement.on_settled is not None:
                parts.setdefault(settlement.on_settled, []).append(settlement)
        for on_settled, settlements in parts.items():
            try:
                on_settled(settlements)
            except Exception:  # noqa: BLE001 - logged
                # The rest of the batch must still be notified.
                _log.exception("%d jobs are settled, but the callback of their slots raised.", len(settlements))
