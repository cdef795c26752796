"""Reports in natural batches: what finished while the last batch was being written forms the next."""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from ..outcome import Outcome
from ..taxonomy import headline
from ..user_code import caught, protected
from .grip import Grip
from .settle import Item, Settler

_log = logging.getLogger("interlock")
MOST = 1000
"""How many moves one batch has at most."""


class Reporter:
    """Takes outcomes in the event loop, and has them settled in threads: batches in one, moves that run code of their own in others."""

    def __init__(self, settler: Settler, together: Executor, alone: Executor) -> None:
        self._settler = settler
        self._together = together
        self._alone = alone
        self._waiting: list[Item] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing = False
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Try no hook again that raised: its job is left to whoever adopts it. In the event loop."""
        self._hurried.set()

    @property
    def idle(self) -> bool:
        return not self._tasks

    def post(self, grip: Grip, outcome: Outcome, done: Callable[[Item], None], value: Any = None) -> None:
        """Have an outcome stored; `done` is called in the loop when that is settled."""
        item = Item(grip, outcome, done, value)
        grip.settling = not item.goes_on
        if grip.declaration.alone:
            self._begin(self._settle_alone(item))
            return
        self._waiting.append(item)
        if not self._flushing:
            self._flushing = True
            self._begin(self._flush())

    async def send(self, grip: Grip, outcome: Outcome) -> None:
        """Have an outcome stored that goes on. Raises `LeaseLost` or `TransitionRefused` where it is not."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(item: Item) -> None:
            if settled.done():
                return
            if item.error is None:
                settled.set_result(None)
            else:
                settled.set_exception(item.error)

        self.post(grip, outcome, done)
        await settled

    async def settled(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Any) -> None:
        task = protected(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, threads: Executor, items: Sequence[Item], work: Callable[[], None]) -> None:
        """Settle items in a thread. If that fails, each item gets the error, so that every slot becomes free."""
        try:
            _, error = await asyncio.get_running_loop().run_in_executor(threads, caught, work)
        except Exception as refused:  # noqa: BLE001 - the threads have ended
            error = refused
        if error is not None:
            fault = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else RuntimeError(f"settling raised {headline(error)}")
            for item in items:
                item.error = item.error or fault

    async def _settle_alone(self, item: Item) -> None:
        desk, work = self._settler.desk, functools.partial(self._settler.alone, item)
        await self._settle(self._alone, [item], work)
        while item.again is not None and item.grip.stop != "lost" and not desk.over.is_set():
            await self._rest(item.again)
            if self._hurried.is_set():
                break
            item.again = item.error = None
            await self._settle(self._alone, [item], work)
        self._tell(item)

    async def _rest(self, seconds: float) -> None:
        waiting = [asyncio.ensure_future(self._hurried.wait()), asyncio.ensure_future(self._settler.desk.waits.asleep(seconds))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _flush(self) -> None:
        try:
            await asyncio.sleep(0)  # what finishes in this same turn of the loop joins the batch
            while self._waiting:
                batch = self._next()
                await self._settle(self._together, batch, functools.partial(self._settler.together, batch))
                for item in batch:
                    self._tell(item)
        finally:
            self._flushing = False

    @staticmethod
    def _tell(item: Item) -> None:
        try:
            item.done(item)
        except Exception:  # noqa: BLE001 - logged
            # The others of its batch must hear of theirs.
            _log.exception("job %s: what was settled could not be told", item.grip.job.id)

    def _next(self) -> list[Item]:
        """The next batch: each job once, in the order they came."""
        batch: dict[str, Item] = {}
        later: list[Item] = []
        for item in self._waiting:
            if len(batch) >= MOST or item.grip.job.id in batch:
                later.append(item)
            else:
                batch[item.grip.job.id] = item
        self._waiting = later
        return list(batch.values())
