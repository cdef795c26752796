"""The child processes of a worker: a pool for kinds with `process=True`, and a quarantine for suspects."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from ...core.outcome import Errored, FailedFinally, Outcome, Requeued, Returned, Snoozed
from ...core.payload import clean
from ...engine.classify import outcome_of_stop
from ...engine.context import WorkerContext, call_soon
from ...engine.held_execution import WHY, HeldExecution
from ...engine.ledger import StoreLedger
from ...errors import PayloadError
from ...jobs.user_code import protected
from ...telemetry import logs
from ...telemetry.events import WorkerError
from ..capacity import is_suspect, must_run_alone
from ..recycle import RecycleLimits
from .child_process import CannotStart, Child, ChildCall, Died, What
from .messages import Message, decode_outcome
from .quarantine import IDLE, Groups, IdleChildren

FEWEST, MOST = 4, 8
"""The limits for the number of groups, and of children for single suspects, which is otherwise the CPU count."""
NO_LIMITS = RecycleLimits()
MAX_STARTS = 3
"""How many children are tried for one job, because an idle child may have died."""


class StoppedWaiting(Exception):
    """The execution was stopped while it waited for a child."""


class RaisedInChild(Exception):
    """An exception of a function in a child process. Its message is the last line; the traceback there is a note."""

    def __init__(self, text: str) -> None:
        super().__init__(text.rpartition("\n")[2])
        self.add_note(f"In the child process:\n{text}")


class ProcessPool:
    """A limited number of children with one job each. They are started on demand, reused, and replaced if they died."""

    def __init__(self, most: int, idle_children: IdleChildren) -> None:
        self.most = most
        self.busy = 0
        self._idle_children = idle_children
        self._permits = asyncio.Semaphore(most)

    async def take(self) -> Child:
        await self._permits.acquire()
        self.busy += 1
        try:
            return await self._idle_children.take()
        except BaseException:
            self._leave()
            raise

    def give(self, child: Child) -> None:
        self._idle_children.give(child)
        self._leave()

    def _leave(self) -> None:
        self.busy -= 1
        self._permits.release()


class Children:
    """The child processes of one worker. If a child dies, only its own jobs are affected."""

    def __init__(
        self,
        context: WorkerContext,
        target: str | None,
        *,
        most: int | None = None,
        limits: RecycleLimits = NO_LIMITS,
        database: str | None = None,
        child_started: Callable[[], None] | None = None,
    ) -> None:
        """`target` is `module:app`, or None if the app cannot be imported by name. `most` is the number of children for
        kinds with process=True; None means one for each core. `database` is the URL that the app uses in a child.

        `child_started` is called when a quarantine child has started, so that more suspects can be claimed.
        """
        self._context = context
        self._target = target
        self._database = database
        self._pool = ProcessPool(most or os.cpu_count() or 1, IdleChildren(self._start, limits, idle=None))
        places = min(max(os.cpu_count() or 1, FEWEST), MOST)
        self._quarantine = IdleChildren(self._start, limits, idle=IDLE, started=child_started)
        self._alone, self._groups = ProcessPool(places, self._quarantine), Groups(places, self._quarantine)
        self._living: set[Child] = set()
        self._closed = False

    @property
    def importable(self) -> bool:
        return self._target is not None

    @property
    def most(self) -> int:
        """How many executions of kinds with process=True may run at once."""
        return self._pool.most if self.importable else 0

    @property
    def busy(self) -> int:
        """How many executions of kinds with process=True run now."""
        return self._pool.busy

    @property
    def warm(self) -> bool:
        """Whether a quarantine child is running."""
        return self._quarantine.warm

    @property
    def most_alone(self) -> int:
        """How many suspects may run alone at once, each in its own child."""
        return self._alone.most

    @property
    def quarantined(self) -> int:
        """How many suspects run in quarantine now."""
        return self._alone.busy + self._groups.busy

    # ------------------------------------------------------------ running
    async def prepare(self, execution: HeldExecution, ledger: StoreLedger) -> tuple[Outcome, Any]:
        """Run the handler in a child. Returns its outcome and the value for the commit function."""
        try:
            reply = await self._run_in_child(execution, ledger, "prepare")
        except StoppedWaiting:
            return outcome_of_stop(execution), None
        except CannotStart as error:
            return self._handle_cannot_start(execution, error), None
        except Died as error:
            return self._outcome_of(error, execution), None
        outcome = decode_outcome(reply["outcome"])
        if not isinstance(outcome, Returned):
            return outcome, None
        try:
            return outcome, execution.spec.signature.load_value(json.loads(outcome.value))
        except PayloadError as error:
            return FailedFinally(clean(str(error))), None

    @staticmethod
    def _outcome_of(death: Died, execution: HeldExecution) -> Outcome:
        if execution.stop is not None:
            return outcome_of_stop(execution)
        if death.ended:
            return Requeued("the worker ended its process because of another job")
        return Errored(clean(str(death)), retryable=True, crashed=True, shared=death.shared)

    async def finish(self, execution: HeldExecution, ledger: StoreLedger) -> None:
        """Run the finish function in a child.

        Raises `RaisedInChild` if the function raised, `Died` if the process died, and `CannotStart`.
        """
        try:
            reply = await self._run_in_child(execution, ledger, "finish")
        except (StoppedWaiting, Died):
            execution.check()
            raise
        except CannotStart as error:
            self._handle_cannot_start(execution, error)
            raise
        if reply["type"] == "raised":
            execution.check()
            raise RaisedInChild(reply["text"])

    async def _run_in_child(self, execution: HeldExecution, ledger: StoreLedger, what: What) -> Message:
        pool = self._pool_of(execution)
        for last in (*[False] * (MAX_STARTS - 1), True):
            child = await self._unless_halted(execution, pool.take())
            try:
                reply = await child.run(ChildCall(self._context, what, execution, ledger))
            except Died as error:
                if error.began or last or execution.stop is not None:
                    raise
                continue
            finally:
                pool.give(child)
            if reply["type"] == "broken":
                raise CannotStart(reply["why"])
            return reply
        raise AssertionError("the last round returns or raises")

    def _pool_of(self, execution: HeldExecution) -> ProcessPool | Groups:
        """Return the pool for this execution. Kinds with process=True have their own; suspects run grouped or alone."""
        if execution.spec.process or not is_suspect(execution.job.lease_losses, execution.crashes):
            return self._pool
        return self._alone if must_run_alone(execution) else self._groups

    def _handle_cannot_start(self, execution: HeldExecution, error: CannotStart) -> Outcome:
        """Report the error. Returns an outcome that keeps the job's tries and runs it again after its backoff."""
        sentence = f"the child process could not be started: {error}"
        self._context.events.emit(WorkerError(self._context.owner, "child", sentence))
        if self._closed:
            return Requeued(WHY["shutdown"])
        return Snoozed(
            execution.spec.backoff.delay(max(execution.job.attempt, 1), self._context.random()), clean(sentence)
        )

    # ------------------------------------------------------------ starting and stopping
    async def _unless_halted(self, execution: HeldExecution, taking: Coroutine[Any, Any, Child]) -> Child:
        """Wait for a child. Raises `StoppedWaiting` if the execution is stopped meanwhile."""
        task, loop = protected(taking), asyncio.get_running_loop()
        execution.on_halt(lambda: call_soon(loop, task.cancel))
        try:
            return await task
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if execution.stop is None or (waiter is not None and waiter.cancelling()):
                raise
            raise StoppedWaiting from None
        finally:
            execution.on_halt(None)

    async def _start(self) -> Child:
        if self._target is None:
            raise CannotStart("the app cannot be imported by name; start the worker with -A MODULE:APP")
        if self._closed:
            raise CannotStart("the worker is ending")
        try:
            child = await Child.spawn(self._target)
        except OSError as error:
            raise CannotStart(str(error)) from None
        self._living = {each for each in self._living if each.alive} | {child}
        await child.wait_until_ready(
            {"type": "hello", "path": sys.path, "database": self._database, "logs": logs.chosen()}
        )
        return child

    async def close(self) -> None:
        """End all children. Idle ones leave the app's lifespan first; busy ones are killed."""
        self._closed = True
        await asyncio.gather(*(child.close() for child in self._living))
