"""The reconciler: checks jobs that run in an external system, in batches, and moves them.

It leases the executions that are due, checks all of them with one call, and ends each lease in the move that stores
the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from ..core.error_policy import headline
from ..core.lifecycle import Lifecycle
from ..core.outcome import CancelRequested, FailedFinally, GoneExternally, Looked, Outcome, Returned, Unrecorded
from ..core.payload import clean
from ..engine.classify import outcome_of_value
from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution
from ..engine.periodic import Periodic
from ..engine.settle import Settler
from ..engine.settle_events import add_note
from ..engine.settlement import Settlement
from ..errors import LeaseLost, Unavailable, UsageError
from ..jobs.question import is_question
from ..jobs.results import Completed, Failed, Gone, InProgress
from ..jobs.spec import KindSpec, Reconcile
from ..jobs.user_code import CallScope, acall_within, atry_call, protected
from ..store.types import Heartbeat, Lease
from ..telemetry import events
from .deadline import check_questions

T = TypeVar("T")
MISSING = "missing_external_job"
"""The error of a job that the external system did not know for longer than the grace period."""
TICK = 1.0
"""The longest time between two checks for cancel requests, in seconds."""
LONGEST = 300.0
"""The longest pause, in seconds, while the external system is unreachable."""
TRUSTED = 0.8
"""The fraction of a lease within which the external system must answer. The rest is for storing the answer."""
Finish = Callable[[Lease, Lifecycle, float], None]
"""Runs the finish function of a committed execution. The last argument is when its lease was requested."""
Leased = tuple[HeldExecution, Lease]


class Reconciler:
    """Checks the executions of one kind. Several workers may do so; leases give each execution to one at a time."""

    def __init__(  # noqa: PLR0917
        self,
        context: WorkerContext,
        settler: Settler,
        spec: KindSpec,
        reconcile: Reconcile,
        threads: Executor,
        finish: Finish,
    ) -> None:
        self.owner = f"{context.owner}/reconciler"
        """Differs from the worker's name, so that the worker does not mistake these leases for lost claims."""
        self._context = context
        self._settler = settler
        self._kind = spec
        self._reconcile = reconcile
        self._threads = threads
        self._finish = finish
        self._stopped = asyncio.Event()
        self._asking: asyncio.Task[object] | None = None
        self._next = float("-inf")
        self._failures = 0
        self._cancel_failed: set[str] = set()

    # ------------------------------------------------------------ the loop
    async def run(self) -> None:
        """Check a batch at every interval, and cancel requests every second, until the reconciler is stopped."""
        periodic = Periodic(
            self._context, f"reconciler: {self._kind.name}", lambda: min(TICK, self._reconcile.every), jitter=True
        )
        await periodic.run_in_loop(self._round, self._stopped, self._context.sleeper.asleep)

    async def _round(self) -> None:
        await self._attempt(self.cancel_requested)
        if self._context.sleeper.monotonic() >= self._next:
            await self._attempt(self.check_due)

    def stop(self) -> None:
        """Stop checking. A running check is cancelled, and its executions are due again at once."""
        self._stopped.set()
        if self._asking is not None:
            self._asking.cancel()

    async def run_once(self) -> int:
        """Check everything that is due now. Returns how many executions were checked."""
        return await self._attempt(self.cancel_requested) + await self._attempt(self.check_due)

    async def _attempt(self, part: Callable[[], Awaitable[int]]) -> int:
        try:
            return await part()
        except Exception as error:  # noqa: BLE001 - reported; the next round tries again
            if isinstance(error, Unavailable):
                self._context.database_down.set()
            self._context.events.emit(events.WorkerError(self._context.owner, f"reconciler: {self._kind.name}", error))
            return 0

    # ------------------------------------------------------------ cancel requests
    async def cancel_requested(self) -> int:
        """Cancel the jobs with a cancel request, without waiting for their next check. Returns how many there are."""
        kind, asked_at = self._kind, self._context.sleeper.monotonic()
        executions = await self._lease(
            lambda: self._context.store.leases.recall(self.owner, [kind.name], kind.lease, self._reconcile.batch),
            asked_at,
        )
        await self._postpone([execution for execution, _ in await self._cancel(executions)])
        return len(executions)

    async def _cancel(self, executions: Sequence[Leased]) -> list[Leased]:
        """Call `on_cancel` for these jobs, then cancel them. Returns those whose `on_cancel` raised; they continue."""
        cancelled = await asyncio.gather(
            *(protected(self._call_on_cancel(execution, lease)) for execution, lease in executions)
        )
        await self._settle(
            [
                Settlement(execution, CancelRequested(None, self.owner), retry_hooks=False)
                for (execution, _), done in zip(executions, cancelled, strict=True)
                if done
            ]
        )
        return [pair for pair, done in zip(executions, cancelled, strict=True) if not done]

    async def _call_on_cancel(self, execution: HeldExecution, lease: Lease) -> bool:
        if self._kind.on_cancel is None or is_question(lease):
            return True
        try:
            await self._call_user(partial(self._kind.on_cancel, lease.external_id or ""), execution)
        except Exception as error:  # noqa: BLE001 - an error of the user's function; it is retried
            self._context.events.emit(events.WorkerError(self.owner, f"on_cancel of {self._kind.name}", error))
            if execution.job.id not in self._cancel_failed:
                self._cancel_failed.add(execution.job.id)
                why = f"on_cancel raised {headline(error)}; the reconciler retries it and still checks the job"
                await self._add_note(execution, "cancel_failed", why)
            return False
        self._cancel_failed.discard(execution.job.id)
        return True

    # ------------------------------------------------------------ checks
    async def check_due(self) -> int:
        """Check one batch with one call, oldest check first. Returns how many executions were checked."""
        kind, begun = self._kind, self._context.sleeper.monotonic()
        self._next = begun + self._reconcile.every
        executions = await self._lease(
            lambda: self._context.store.leases.adopt(
                self.owner, [kind.name], kind.lease, self._reconcile.batch, external=True
            ),
            begun,
        )
        stops, asked = (
            [pair for pair in executions if pair[0].must_cancel],
            [pair for pair in executions if not pair[0].must_cancel],
        )
        asked += await self._cancel(stops)
        if questions := [pair for pair in asked if is_question(pair[1])]:
            await self._settle(await self._in_thread(lambda: check_questions(self._context, questions)))
        if work := [pair for pair in asked if not is_question(pair[1])]:
            await self._ask(work, begun)
        return len(executions)

    async def _ask(self, executions: Sequence[Leased], begun: float) -> None:
        ids = list(dict.fromkeys(lease.external_id or "" for _, lease in executions))
        try:
            answers = await self._ask_external(ids)
        except asyncio.CancelledError:
            await self._settle([Settlement(execution, Looked(0.0, seen=None)) for execution, _ in executions])
            if not self._stopped.is_set():
                raise
            return
        except Exception as error:  # noqa: BLE001 - a failed check does not change the jobs
            await self._handle_unreachable(executions, begun, error)
            return
        await self._handle_reachable(len(ids), begun)
        # These executions are due again when the next batch begins.
        check_in = max(self._reconcile.every - (self._context.sleeper.monotonic() - begun), 0.0)
        await self._settle(
            [
                self._settlement(execution, lease, answers.get(lease.external_id or ""), check_in)
                for execution, lease in executions
            ]
        )

    async def _ask_external(self, ids: Sequence[str]) -> Mapping[str, object]:
        if self._stopped.is_set():
            raise asyncio.CancelledError
        self._asking = task = protected(self._call_user(partial(self._reconcile.ask, ids)))
        try:
            answers: object = await task
        finally:
            self._asking = None
        if not isinstance(answers, Mapping):
            message = f"The reconcile function of {self._kind.name} returned {str(answers)[:100]!r}"
            raise UsageError(f"{message}. Return a mapping from each known id to its state.")
        return cast("Mapping[str, object]", answers)

    async def _call_user(self, call: Callable[[], Awaitable[T]], execution: HeldExecution | None = None) -> T:
        """Call the user's function with a timeout below its lease. A `BaseException` becomes a `RuntimeError`."""
        owner = (
            CallScope(self._kind.name)
            if execution is None
            else CallScope(self._kind.name, execution.job.id, execution.job.attempt)
        )
        task, deadline = (
            protected(atry_call(partial(acall_within, self._kind.around, call)), owner),
            asyncio.timeout(self._kind.lease * TRUSTED),
        )
        value, error = None, None
        try:
            async with deadline:
                value, error = await task
        except (TimeoutError, asyncio.CancelledError) as stopped:
            error = stopped
        if (me := asyncio.current_task()) is not None and me.cancelling():
            raise asyncio.CancelledError
        if deadline.expired():
            raise TimeoutError(
                f"no answer within {self._kind.lease * TRUSTED:g} s, the limit for a lease of {self._kind.lease:g} s"
            ) from error
        if error is None:
            return cast("T", value)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise error
        raise RuntimeError(f"the function raised {type(error).__name__}") from error

    def _settlement(self, execution: HeldExecution, lease: Lease, answer: object, check_in: float) -> Settlement:
        try:
            outcome, value = self._outcome(execution, lease, answer, check_in)
        except Exception as error:  # noqa: BLE001 - a bad answer for one job does not stop the others
            self._context.events.emit(events.WorkerError(self.owner, f"reconciling job {execution.job.id}", error))
            outcome, value = Looked(check_in, seen=True), None
        return Settlement(execution, outcome, value=value, retry_hooks=False)

    def _outcome(self, execution: HeldExecution, lease: Lease, answer: object, check_in: float) -> tuple[Outcome, Any]:
        match answer:
            case Completed(value=value):  # pyright: ignore[reportUnknownVariableType] - the type of the kind
                outcome, value = outcome_of_value(execution, value)
                return (replace(outcome, begins=True) if isinstance(outcome, Returned) else outcome), value
            case Failed(reason=reason):
                return FailedFinally(clean(reason), seen=True), None
            case Gone(reason=reason):
                return GoneExternally(clean(reason) or "cancelled in the external system"), None
            case InProgress(done=done, total=total, note=note):
                if done is not None:
                    execution.progress(done, total, note)
                return Looked(check_in, seen=True, begun=done is not None), None
            case None:
                expired = lease.missing_for is not None and lease.missing_for >= self._reconcile.grace
                return (FailedFinally(MISSING) if expired else Looked(check_in, seen=False)), None
            case _:
                answered = f"{str(answer)[:100]!r} for {lease.external_id!r}"
                raise UsageError(
                    f"The reconcile function of {self._kind.name} returned {answered}. Return InProgress, Completed, "
                    "Failed or Gone, and leave out ids that the external system does not know."
                )

    # ------------------------------------------------------------ the external system
    async def _handle_reachable(self, ids: int, begun: float) -> None:
        self._failures = 0
        await self._in_thread(lambda: self._context.store.external.report_check(self._kind.name, None))
        self._context.events.emit(
            events.ExternalCheckSucceeded(self._kind.name, ids, self._context.sleeper.monotonic() - begun)
        )

    async def _handle_unreachable(self, executions: Sequence[Leased], begun: float, error: Exception) -> None:
        """Leave the jobs unchanged, and check again after a growing pause."""
        self._failures += 1
        pause = min(self._reconcile.every * 2.0 ** min(self._failures, 30), max(LONGEST, self._reconcile.every))
        self._next = begun + pause
        self._context.events.emit(events.ExternalCheckFailed(self._kind.name, self._failures, pause, error))
        await self._in_thread(
            lambda: self._context.store.external.report_check(self._kind.name, clean(headline(error), 500))
        )
        await self._settle([Settlement(execution, Looked(pause, seen=None)) for execution, _ in executions])

    # ------------------------------------------------------------ storing
    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        """Store the outcomes. A job that another process has moved meanwhile is skipped."""
        if not settlements:
            return
        # The commit renews the lease, so the lease counts from here.
        asked_at = self._context.sleeper.monotonic()
        await self._in_thread(lambda: self._settler.settle_all(settlements))
        await self._postpone(
            [
                settlement.execution
                for settlement in settlements
                if settlement.error is not None and not isinstance(settlement.error, LeaseLost)
            ]
        )
        for settlement in settlements:
            execution = settlement.execution
            if isinstance(settlement.error, Unavailable):
                raise settlement.error
            if settlement.error is not None and not isinstance(settlement.error, LeaseLost):
                self._context.events.emit(
                    events.WorkerError(self.owner, f"reconciling job {execution.job.id}", settlement.error)
                )
            elif settlement.error is None and isinstance(settlement.outcome, Unrecorded):
                await self._add_note(execution, "commit_failed", settlement.outcome.error.strip().rpartition("\n")[2])
            elif settlement.error is None and execution.status == "COMMITTED" and not execution.ended:
                self._finish(
                    Lease(
                        execution.job,
                        execution.holder,
                        execution.status,
                        execution.owner,
                        execution.seconds,
                        result=execution.value,
                    ),
                    execution.lifecycle,
                    asked_at,
                )

    async def _postpone(self, executions: Sequence[HeldExecution]) -> None:
        """Extend the leases until the next check, which tries again."""
        if executions:
            await self._in_thread(
                lambda: self._context.store.leases.renew(
                    [Heartbeat(execution.fence, self._reconcile.every) for execution in executions]
                )
            )

    async def _lease(self, adopt: Callable[[], list[Lease]], asked_at: float) -> list[Leased]:
        return await self._in_thread(
            lambda: [(self._context.execution_of(lease, asked_at), lease) for lease in adopt()]
        )

    async def _add_note(self, execution: HeldExecution, event: str, reason: str) -> None:
        job, actor = execution.job, execution.owner
        await self._in_thread(partial(add_note, self._context, job, event, reason, actor=actor, attempt=job.attempt))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Call the database in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
