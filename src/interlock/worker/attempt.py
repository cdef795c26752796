"""One attempt: from a claimed execution to what became of it. An error becomes an outcome; nothing that a handler does goes further."""

import asyncio
import functools
import inspect
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from ..errors import LeaseLost, PayloadError
from ..outcome import Advanced, Errored, Failed, Outcome, Rejected, Snoozed, Started
from ..payload import clean
from ..taxonomy import headline
from ..telemetry.tracing import span
from ..user_code import Around, Result, Scope, acaught, asurround, context_of, in_thread, protected, surround
from .children import RaisedThere
from .desk import Desk
from .desk import soon as call_soon
from .forks import stay, stayed
from .grip import Grip
from .points import Point
from .report import Reporter
from .runs import LiveRun, LiveSyncRun, StoreLedger
from .settle import Settler
from .verdict import outcome_of, returned, stopped


class Children(Protocol):
    """Processes in which handlers run alone."""

    async def prepare(self, grip: Grip, ledger: StoreLedger) -> tuple[Outcome, Any]:
        """Run the handler of a started execution in a child; the value is as the handler returned it."""
        ...

    async def finish(self, grip: Grip, ledger: StoreLedger) -> None:
        """Run what follows the commit in a child; raises what it raised."""
        ...


class Attempts:
    """Runs handlers: coroutines in the loop, functions in threads, suspects and heavy ones in children."""

    def __init__(self, desk: Desk, settler: Settler, reporter: Reporter, *, threads: Executor, writers: Executor, children: Children) -> None:
        self._desk = desk
        self._settler = settler
        self._reporter = reporter
        self._threads = threads
        self._writers = writers
        self._children = children

    # ------------------------------------------------------------ prepare
    async def prepare(self, grip: Grip) -> tuple[Outcome | None, Any]:
        """What became of the handler, and what it returned. None where the execution is no longer ours before it began."""
        if grip.stop is not None:
            # It was told to stop while it waited for a slot, or until it is alone: a `def` handler would run all the same.
            return stopped(grip), None
        self._desk.points(Point.AFTER_CLAIM, grip.job)
        try:
            arguments = grip.declaration.signature.check(grip.job.payload)
        except PayloadError as error:
            # It was good when it was stored: the code has changed since.
            return Failed(clean(f"the stored payload no longer fits: {error}")), None
        except BaseException as error:  # noqa: BLE001 - a validator of the user's own
            return outcome_of(error, grip, self._desk.now), None
        if grip.status == "LEASED":
            outcome = await self._guarded(grip, arguments)
            if outcome is not None:
                return outcome, None
            try:
                # Where the work goes on elsewhere, it begins when the reconciler says so.
                await self._reporter.send(grip, Started(walks=grip.declaration.reconcile is None))
            except LeaseLost:
                return None, None
        with span(grip.job.kind, grip.job.trace, {"interlock.job_id": grip.job.id, "interlock.attempt": grip.job.attempt}) as traced:
            outcome, value = await self._prepared(grip, arguments)
            if isinstance(outcome, Errored | Failed):
                traced.fail(outcome.error if isinstance(outcome, Errored) else outcome.reason)
            return outcome, value

    async def _guarded(self, grip: Grip, arguments: dict[str, Any]) -> Outcome | None:
        guard = grip.declaration.guard
        if guard is None:
            return None
        args, kwargs = grip.declaration.signature.spread(arguments)
        call = functools.partial(guard, grip.job, *args, **kwargs)
        _, error = await self._called(grip, call, is_async=inspect.iscoroutinefunction(guard))
        if error is None:
            return None
        outcome = outcome_of(error, grip, self._desk.now)
        if isinstance(outcome, Rejected | Failed | Snoozed) or grip.stop is not None:
            return outcome
        # If the guard fails, the job is not to blame: it runs later and keeps its tries.
        backoff = grip.declaration.backoff.delay(max(grip.job.attempt, 1), self._desk.draw())
        return Snoozed(outcome.pause(backoff) if isinstance(outcome, Errored) else backoff, clean(f"its guard raised {headline(error)}"))

    async def _prepared(self, grip: Grip, arguments: dict[str, Any]) -> tuple[Outcome, Any]:
        grip.began = self._desk.waits.monotonic()
        try:
            self._desk.points(Point.IN_PREPARE, grip.job)
            if grip.apart:
                return self._apart(grip, *await self._children.prepare(grip, self.ledger(grip)))
            signature = grip.declaration.signature
            call = signature.bound(self._run(grip, is_async=signature.is_async), arguments)
            value, error = await self._called(grip, call, is_async=signature.is_async)
            if error is None:
                return returned(grip, value)
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # noqa: BLE001 - every error becomes an outcome
            error = fault
        return outcome_of(error, grip, self._desk.now), None

    @staticmethod
    def _apart(grip: Grip, outcome: Outcome, value: Any) -> tuple[Outcome, Any]:
        """Replace an exception that stayed in the child with one of ours that carries its text."""
        if isinstance(outcome, Errored):
            grip.raised = RaisedThere(outcome.error)
        return outcome, value

    # ------------------------------------------------------------ finish
    async def finish(self, grip: Grip) -> BaseException | None:
        """Run what follows the commit, once; answers what it raised."""
        try:
            return await self._finished(grip)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - answered, not raised
            return error

    async def pause(self, grip: Grip, seconds: float) -> None:
        """Let time pass, unless the grip is told to stop."""
        await self._called(grip, lambda: self._desk.waits.asleep(seconds), is_async=True, around=())

    async def _finished(self, grip: Grip) -> BaseException | None:
        declaration, grip.began = grip.declaration, self._desk.waits.monotonic()
        self._desk.points(Point.IN_FINISH, grip.job)
        if declaration.finish is None:
            return None
        if grip.apart:
            await self._children.finish(grip, self.ledger(grip))
            return None
        value = declaration.signature.load_value(json.loads(grip.value or "null"))
        is_async = inspect.iscoroutinefunction(declaration.finish)
        _, error = await self._called(grip, functools.partial(declaration.finish, self._run(grip, is_async=is_async), value), is_async=is_async)
        return error

    # ------------------------------------------------------------ running
    def ledger(self, grip: Grip) -> StoreLedger:
        return StoreLedger(self._desk, self._settler, grip)

    def _run(self, grip: Grip, *, is_async: bool) -> LiveRun | LiveSyncRun:
        ledger, measured = self.ledger(grip), self._desk.events.emit
        if not is_async:
            return LiveSyncRun(grip, ledger, measured)
        around = grip.declaration.around

        def hop(call: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
            return in_thread(functools.partial(surround, around, call))

        return LiveRun(grip, ledger, measured, hop=hop, write=self._written, advance=lambda stage: self._reporter.send(grip, Advanced(stage)))

    async def _written(self, work: Callable[[], Any]) -> Any:
        """By threads of its own: what a handler's own functions do must not keep the ledger waiting."""
        if self._desk.over.is_set():
            raise LeaseLost("The worker of this run has ended: nothing was written.")
        return await asyncio.get_running_loop().run_in_executor(self._writers, work)

    async def _called(self, grip: Grip, call: Callable[[], Any], *, is_async: bool, around: Sequence[Around] | None = None) -> Result:
        """Call a user's function so that it can be stopped: a coroutine by cancelling its task, a thread by its run.

        Raises only if the slot's own task is cancelled, because the event loop closes.
        """
        job, pid, loop = grip.job, os.getpid(), asyncio.get_running_loop()
        owner, around = Scope(job.kind, job.id, job.attempt), grip.declaration.around if around is None else around
        if not is_async:
            grip.on_halt(None)
            context = context_of(owner)
            return await loop.run_in_executor(self._threads, lambda: context.run(stayed, pid, functools.partial(surround, around, call)))
        task, slot = protected(acaught(functools.partial(asurround, around, call)), owner), asyncio.current_task()
        grip.on_halt(lambda: call_soon(loop, task.cancel))
        try:
            result = await task
        except asyncio.CancelledError as error:
            result = None, error
        finally:
            stay(pid)
            grip.on_halt(None)
        if slot is not None and slot.cancelling():
            raise asyncio.CancelledError
        return result
