"""Runs one attempt, from a claimed execution to its outcome. Every error of the user's code becomes an outcome."""

import asyncio
import functools
import inspect
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from ..core.error_policy import headline
from ..core.outcome import Advanced, Errored, FailedFinally, Outcome, Rejected, Snoozed, Started
from ..core.payload import clean
from ..engine.classify import outcome_of, outcome_of_stop, outcome_of_value
from ..engine.context import WorkerContext, call_soon
from ..engine.failpoints import Failpoint
from ..engine.held_execution import HeldExecution
from ..engine.ledger import StoreLedger
from ..engine.live_run import LiveRun, LiveSyncRun
from ..engine.reporter import Reporter
from ..engine.settle import Settler
from ..errors import LeaseLost, PayloadError
from ..jobs.user_code import (
    Around,
    CallScope,
    ProtectedTask,
    Result,
    acall_within,
    atry_call,
    call_within,
    context_of,
    enter_scope,
    in_thread,
    protected,
)
from ..telemetry.events import Measured
from ..telemetry.tracing import is_traced, span
from .forked_handlers import call_unless_forked, exit_if_forked
from .subprocess.children import RaisedInChild


class ChildProcesses(Protocol):
    """Child processes that run handlers."""

    async def prepare(self, execution: HeldExecution, ledger: StoreLedger) -> tuple[Outcome, Any]:
        """Run the handler in a child process. Returns its outcome and the value for the commit function."""
        ...

    async def finish(self, execution: HeldExecution, ledger: StoreLedger) -> None:
        """Run the finish function in a child process. Raises its error."""
        ...


class Attempts:
    """Runs handlers: async ones in the event loop, sync ones in threads, others in child processes."""

    def __init__(
        self,
        context: WorkerContext,
        settler: Settler,
        reporter: Reporter,
        *,
        threads: Executor,
        writers: Executor,
        children: ChildProcesses,
    ) -> None:
        self._context = context
        self._settler = settler
        self._reporter = reporter
        self._threads = threads
        self._writers = writers
        self._children = children
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()

    # ------------------------------------------------------------ prepare
    async def prepare(self, execution: HeldExecution) -> tuple[Outcome | None, Any]:
        """Run the guard and the handler. Returns the outcome and the handler's value.

        The outcome is None if the lease was lost before the handler started.
        """
        arguments, outcome = self._begin(execution)
        if outcome is not None:
            return outcome, None
        if execution.status == "LEASED":
            outcome = await self._run_guard(execution, arguments)
            if outcome is not None:
                return outcome, None
            try:
                # If an external system does the work, the job starts when the reconciler sees it start.
                await self._reporter.send(execution, Started(walks=execution.spec.reconcile is None))
            except LeaseLost:
                return None, None
        with span(
            execution.job.kind,
            execution.job.trace,
            {"interlock.job_id": execution.job.id, "interlock.attempt": execution.job.attempt},
        ) as traced:
            outcome, value = await self._run_handler(execution, arguments)
            if isinstance(outcome, Errored | FailedFinally):
                traced.fail(outcome.error if isinstance(outcome, Errored) else outcome.reason)
            return outcome, value

    def _begin(self, execution: HeldExecution) -> tuple[dict[str, Any], Outcome | None]:
        """Return the arguments of the handler, or the outcome if it must not run."""
        if execution.stop is not None:
            # The execution was stopped while it waited to start. Return now, because a sync handler would still run.
            return {}, outcome_of_stop(execution, started=False)
        self._context.failpoints(Failpoint.AFTER_CLAIM, execution.job)
        try:
            return execution.spec.signature.check(execution.job.payload), None
        except PayloadError as error:
            # The payload was valid when it was stored, so the code has changed since then.
            return {}, FailedFinally(clean(f"the stored payload no longer fits: {error}"))
        except BaseException as error:  # noqa: BLE001 - the user's own validator may raise anything
            return {}, outcome_of(error, execution, self._context.now)

    # ------------------------------------------------------------ prepare in one task
    @staticmethod
    def is_plain(execution: HeldExecution) -> bool:
        """Whether a started attempt is only a coroutine in this event loop, so that its slot needs no other task."""
        spec = execution.spec
        return spec.signature.is_async and not execution.separate_process and not spec.around and not is_traced()

    async def prepare_plain(self, execution: HeldExecution, task: ProtectedTask[None]) -> tuple[Outcome, Any]:
        """`prepare` for a plain attempt, in the task that runs the handler. `task` is that task.

        From here on the task runs in the scope of the job, so the caller must not call the worker's own code in it.
        """
        job = execution.job
        task.owner = owner = CallScope(job.kind, job.id, job.attempt)
        enter_scope(owner)
        arguments, outcome = self._begin(execution)
        if outcome is not None:
            return outcome, None
        execution.began = self._context.sleeper.monotonic()
        return self._outcome_of_result(execution, await self._call_plain(execution, arguments, task))

    async def _call_plain(
        self, execution: HeldExecution, arguments: dict[str, Any], task: ProtectedTask[None]
    ) -> Result:
        """Call the handler in this task. Raises only `CancelledError`, if the event loop closes."""
        result: Result
        execution.handler_task = task
        try:
            # `halt` sets `stop` and then reads `handler_task`; this does the reverse, so one always sees the other.
            if execution.stop is not None:
                raise asyncio.CancelledError  # noqa: TRY301 - as if the handler had been cancelled at its start
            if os.getpid() != self._pid:
                # Another handler has forked, and goes on in this process. Only the original process calls this one.
                await self._loop.create_future()
            self._context.failpoints(Failpoint.IN_PREPARE, execution.job)
            signature = execution.spec.signature
            result = await signature.call(LiveRun(execution, self) if signature.takes_run else None, arguments), None
        except BaseException as error:  # noqa: BLE001 - the caller decides
            result = None, error
        finally:
            exit_if_forked(self._pid)
        if task.cancelling():
            # The handler may have cancelled itself and not waited since then.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                result = None, error
        execution.handler_task = None
        if isinstance(result[1], asyncio.CancelledError) and self._context.is_closing and execution.stop is None:
            raise result[1]
        return result

    async def _run_guard(self, execution: HeldExecution, arguments: dict[str, Any]) -> Outcome | None:
        guard = execution.spec.guard
        if guard is None:
            return None
        args, kwargs = execution.spec.signature.spread(arguments)
        call = functools.partial(guard, execution.job, *args, **kwargs)
        _, error = await self._call(execution, call, is_async=inspect.iscoroutinefunction(guard))
        if error is None:
            return None
        outcome = outcome_of(error, execution, self._context.now)
        if isinstance(outcome, Rejected | FailedFinally | Snoozed) or execution.stop is not None:
            return outcome
        # A guard that raises does not cost a try. The job runs later.
        backoff = execution.spec.backoff.delay(max(execution.job.attempt, 1), self._context.random())
        return Snoozed(
            outcome.pause(backoff) if isinstance(outcome, Errored) else backoff,
            clean(f"its guard raised {headline(error)}"),
        )

    async def _run_handler(self, execution: HeldExecution, arguments: dict[str, Any]) -> tuple[Outcome, Any]:
        execution.began = self._context.sleeper.monotonic()
        try:
            self._context.failpoints(Failpoint.IN_PREPARE, execution.job)
            if execution.separate_process:
                return self._from_child(
                    execution, *await self._children.prepare(execution, self.open_ledger(execution))
                )
            signature = execution.spec.signature
            call = signature.bound(self._run(execution, is_async=signature.is_async), arguments)
            result = await self._call(execution, call, is_async=signature.is_async)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - every error becomes an outcome
            result = None, error
        return self._outcome_of_result(execution, result)

    def _outcome_of_result(self, execution: HeldExecution, result: Result) -> tuple[Outcome, Any]:
        """Return the outcome of a handler, and the value for the commit function."""
        value, error = result
        try:
            if error is None:
                return outcome_of_value(execution, value)
        except BaseException as fault:  # noqa: BLE001 - every error becomes an outcome
            error = fault
        return outcome_of(error, execution, self._context.now), None

    @staticmethod
    def _from_child(execution: HeldExecution, outcome: Outcome, value: Any) -> tuple[Outcome, Any]:
        """Set `last_exception` to an exception with the text of the one in the child, which cannot be sent."""
        if isinstance(outcome, Errored):
            execution.last_exception = RaisedInChild(outcome.error)
        return outcome, value

    # ------------------------------------------------------------ finish
    async def finish(self, execution: HeldExecution) -> BaseException | None:
        """Run the finish function once. Returns its error, or None."""
        try:
            return await self._run_finish(execution)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - returned to the caller
            return error

    async def pause(self, execution: HeldExecution, seconds: float) -> None:
        """Sleep, unless the execution is stopped."""
        await self._call(execution, lambda: self._context.sleeper.asleep(seconds), is_async=True, around=())

    async def _run_finish(self, execution: HeldExecution) -> BaseException | None:
        spec, execution.began = execution.spec, self._context.sleeper.monotonic()
        self._context.failpoints(Failpoint.IN_FINISH, execution.job)
        if spec.finish is None:
            return None
        if execution.separate_process:
            await self._children.finish(execution, self.open_ledger(execution))
            return None
        value = spec.signature.load_value(json.loads(execution.value or "null"))
        is_async = inspect.iscoroutinefunction(spec.finish)
        _, error = await self._call(
            execution, functools.partial(spec.finish, self._run(execution, is_async=is_async), value), is_async=is_async
        )
        return error

    # ------------------------------------------------------------ the host of runs
    def open_ledger(self, execution: HeldExecution, /) -> StoreLedger:
        return StoreLedger(self._context, self._settler, execution)

    def measured(self, event: Measured, /) -> None:
        self._context.events.emit(event)

    async def in_thread(self, execution: HeldExecution, call: Callable[[], Any], /) -> Any:
        return await in_thread(functools.partial(call_within, execution.spec.around, call))

    async def advance(self, execution: HeldExecution, stage: str, /) -> None:
        await self._reporter.send(execution, Advanced(stage))

    async def write(self, work: Callable[[], Any], /) -> Any:
        """Write to the ledger in separate threads, so that the handler's own functions cannot delay it."""
        if self._context.stopped.is_set():
            raise LeaseLost("The worker of this run has ended. Nothing was stored.")
        return await asyncio.get_running_loop().run_in_executor(self._writers, work)

    # ------------------------------------------------------------ running
    def _run(self, execution: HeldExecution, *, is_async: bool) -> LiveRun | LiveSyncRun:
        return LiveRun(execution, self) if is_async else LiveSyncRun(execution, self)

    async def _call(
        self,
        execution: HeldExecution,
        call: Callable[[], Any],
        *,
        is_async: bool,
        around: Sequence[Around] | None = None,
    ) -> Result:
        """Call a user's function and return its result or error.

        Halting the execution cancels an async function; a sync function must check its run. Raises only
        `CancelledError`, if the slot's own task is cancelled because the event loop closes.
        """
        job, pid, loop = execution.job, os.getpid(), asyncio.get_running_loop()
        owner, around = CallScope(job.kind, job.id, job.attempt), execution.spec.around if around is None else around
        if not is_async:
            execution.on_halt(None)
            context = context_of(owner)
            return await loop.run_in_executor(
                self._threads,
                lambda: context.run(call_unless_forked, pid, functools.partial(call_within, around, call)),
            )
        task, slot = protected(atry_call(functools.partial(acall_within, around, call)), owner), asyncio.current_task()
        execution.on_halt(lambda: call_soon(loop, task.cancel))
        try:
            result = await task
        except asyncio.CancelledError as error:
            result = None, error
        finally:
            exit_if_forked(pid)
            execution.on_halt(None)
        if slot is not None and slot.cancelling():
            raise asyncio.CancelledError
        return result
