"""Slots: each runs one execution at a time, from its lease until its end is stored."""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable

from ..core.error_policy import describe
from ..core.lifecycle import Lifecycle
from ..core.outcome import Finished, Handed, Outcome, Returned
from ..core.payload import clean
from ..engine.context import WorkerContext, call_soon
from ..engine.held_execution import HeldExecution
from ..engine.reporter import Reporter
from ..engine.settle import Settlement
from ..errors import LeaseLost, TransitionRefused, Unavailable
from ..jobs.user_code import protected
from ..store.types import Fence, Lease
from ..telemetry import events
from .attempt import Attempts
from .capacity import must_run_alone
from .states import check
from .subprocess.child_process import CannotStart, Died

OnError = Callable[[BaseException], None]
RENEWAL_CHECK = 0.25
"""Seconds between two checks whether a lease was renewed."""


class Slots:
    """The executions of a worker, each in a slot with its own state. Use it in the event loop only."""

    def __init__(
        self, context: WorkerContext, attempts: Attempts, reporter: Reporter, size: int, on_error: OnError
    ) -> None:
        self.size = size
        self.executions: dict[int, HeldExecution] = {}
        """The executions by `id()`. A lost execution may still run here together with the next one of its job."""
        self.abandoned: dict[Fence, None] = {}
        """Executions whose slot failed. They wait for their lease to expire and leave when another worker takes them.
        """
        self.reserved = 0
        """The number of slots that a running claim may fill."""
        self.adopted: deque[Lease] = deque()
        """Leases that the maintenance thread has adopted and the event loop has not taken yet."""
        self._stopped = False
        self._waiting: set[int] = set()
        """Executions that wait until no other execution runs."""
        self._queued: deque[HeldExecution] = deque()
        """Executions that wait for a slot while the worker renews their leases."""
        self.slot_freed = asyncio.Event()
        self.done = 0
        """How many attempts have ended here."""
        self._context = context
        self._attempts = attempts
        self._reporter = reporter
        self._on_error = on_error
        self._numbers = list(range(size))
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------ free slots
    @property
    def busy(self) -> int:
        return len(self.executions)

    @property
    def free(self) -> int:
        """How many slots are free and not reserved for a claim or an adopted execution. Thread-safe."""
        return max(self.size - len(self.executions) - self.reserved - len(self.adopted), 0)

    def running(self, chosen: Callable[[HeldExecution], bool]) -> int:
        """Return how many executions of this worker match. Thread-safe."""
        return sum(1 for execution in list(self.executions.values()) if chosen(execution))

    def report_missed_claim(self) -> None:
        """Report that a job was due, but another worker claimed it first."""
        number = self._numbers[0] if self._numbers else 0
        self._moved(number, None, "Polling", "Claiming", "a job is due")
        self._moved(number, None, "Claiming", "Polling", "another worker was faster")

    # ------------------------------------------------------------ one execution
    def take(self, lease: Lease, lifecycle: Lifecycle, asked_at: float, *, separate_process: bool) -> None:
        """Run an execution that was claimed, or finish one that was adopted after its commit.

        Without a free slot it waits for one, and the worker renews its lease meanwhile.
        """
        execution = HeldExecution(
            lease,
            self._context.kinds[lease.job.kind],
            lifecycle,
            asked_at=asked_at,
            slot=self.size,
            separate_process=separate_process,
        )
        self.executions[id(execution)] = execution
        self._queued.append(execution)
        self._begin_queued()

    def _begin_queued(self) -> None:
        while self._queued and self._numbers:
            execution = self._queued.popleft()
            execution.slot = heapq.heappop(self._numbers)
            self._go(execution, "Claiming", "a job is due")
            self._go(execution, "Processing", "the worker owns the lease")
            self._begin(execution)

    def _begin(self, execution: HeldExecution) -> None:
        # The execution keeps a reference to its task, because the event loop keeps only a weak one.
        execution.task = protected(self._execute(execution))

    async def _execute(self, execution: HeldExecution) -> None:
        try:
            if not execution.separate_process and must_run_alone(execution):
                await self._wait_until_alone(execution)
            if execution.status == "COMMITTED":
                await self._finish(execution)
                return
            outcome, value = await self._attempts.prepare(execution)
            if outcome is None:
                self._give_up(execution, "the lease was lost before the handler started")
                return
            self._reporting(execution, outcome)
            self._reporter.post(execution, outcome, self._settled, value)
        except asyncio.CancelledError:
            self._give_up(execution, "the event loop is closing")
            raise
        except BaseException as error:  # noqa: BLE001 - reported, so that no slot ends unnoticed
            self._abandon(execution, error)

    async def _wait_until_alone(self, execution: HeldExecution) -> None:
        """Wait until no other execution runs here. The worker claims nothing meanwhile."""
        self._waiting.add(id(execution))
        execution.on_halt(lambda: call_soon(self._loop, self.slot_freed.set))
        execution.began = math.inf
        try:
            while execution.stop is None and len(self.executions) > len(self._waiting) + len(self._queued):
                self.slot_freed.clear()
                await self.slot_freed.wait()
        finally:
            self._waiting.discard(id(execution))
            execution.on_halt(None)
            execution.began = self._context.sleeper.monotonic()

    async def _finish(self, execution: HeldExecution) -> None:
        """Run the finish function until it succeeds or has used all tries of its kind. It never fails the job."""
        outcome = Finished()
        while execution.stop is None:
            error = await self._attempts.finish(execution)
            if error is None or execution.stop is not None:
                break
            if isinstance(error, Died) and error.others:
                # Any job in the process may have crashed it. The next run is alone and shows whether this job did.
                execution.shared_crash = execution.shared_crash or error.shared
                continue
            if not isinstance(error, CannotStart):
                execution.failures += 2 if isinstance(error, Died) and execution.shared_crash else 1
                self._context.events.emit(
                    events.FinishFailed(execution.job.id, execution.job.kind, execution.failures, error)
                )
            if execution.failures >= execution.spec.tries:
                outcome = Finished(clean(describe(error)))
                break
            await self._attempts.pause(
                execution, execution.spec.backoff.delay(max(execution.failures, 1), self._context.random())
            )
        if execution.stop is not None and await self._wait_for_renewal(execution):
            await self._finish(execution)
            return
        if execution.stop is not None:
            self._give_up(execution, "another worker will finish it")
            return
        self._reporting(execution, outcome)
        self._reporter.post(execution, outcome, self._settled)

    async def _wait_for_renewal(self, execution: HeldExecution) -> bool:
        """Wait until a doubtful lease is renewed. Returns False if the lease is lost or the worker stops."""
        while execution.lease_doubtful and not self._stopped and not self._context.stopped.is_set():
            if self._context.sleeper.monotonic() < execution.trusted_until():
                execution.resume_after_renewal()
                return True
            await self._context.sleeper.asleep(RENEWAL_CHECK)
        return False

    # ------------------------------------------------------------ its end
    def _reporting(self, execution: HeldExecution, outcome: Outcome) -> None:
        if execution.state == "Processing":
            good = isinstance(outcome, Returned | Handed) or (isinstance(outcome, Finished) and outcome.error is None)
            self._go(execution, "ReportingSuccess" if good else "ReportingFailure", type(outcome).__name__)

    def _settled(self, item: Settlement) -> None:
        """Free the slot after the store has answered, or run the finish function of a committed execution."""
        execution, error = item.execution, item.error
        execution.settling = False
        if error is not None and (
            item.retry_in is not None or isinstance(error, LeaseLost | TransitionRefused | Unavailable)
        ):
            self._give_up(execution, str(error))
        elif error is not None:
            self._abandon(execution, error)
        elif execution.ended:
            self._free(execution, "stored")
        else:
            # The execution is committed. The same slot runs its finish function.
            self._begin(execution)

    def _give_up(self, execution: HeldExecution, why: str) -> None:
        """Free the slot of an execution that this worker lost or could not return. Another worker adopts it."""
        execution.renews = False
        if execution.state == "Processing":
            self._go(execution, "ReportingFailure", why)
        self._free(execution, why)

    def _abandon(self, execution: HeldExecution, error: BaseException) -> None:
        """Free the slot after an internal error. The job waits until its lease expires, and the worker pauses."""
        execution.renews = False
        self.abandoned[execution.fence] = None
        self._go(execution, "ErrorWait", type(error).__name__)
        self._context.events.emit(events.WorkerError(self._context.owner, f"job {execution.job.id}", error))
        self._go(execution, "Connecting", "the slot was reset")
        self._drop(execution)
        self._on_error(error)

    def _free(self, execution: HeldExecution, why: str) -> None:
        self._go(execution, "Polling", why)
        self._drop(execution)

    def _drop(self, execution: HeldExecution) -> None:
        del self.executions[id(execution)]
        if execution.slot < self.size:
            heapq.heappush(self._numbers, execution.slot)
        self.done += 1
        self.slot_freed.set()
        self._begin_queued()

    def _go(self, execution: HeldExecution, target: str, why: str) -> None:
        source, execution.state = execution.state, target
        self._moved(execution.slot, execution.job.id, source, target, why)

    def _moved(self, number: int, job_id: str | None, source: str, target: str, why: str) -> None:
        check(source, target)
        if self._context.events.wants(events.SlotStateChanged):
            self._context.events.emit(events.SlotStateChanged(self._context.owner, number, source, target, why, job_id))

    # ------------------------------------------------------------ stopping
    def stop(self) -> None:
        """Stop every handler and return its job to the queue."""
        self._stopped = True
        self._reporter.stop_retrying_hooks()
        for execution in list(self.executions.values()):
            if not execution.settling:
                execution.halt("shutdown")

    async def wait_until_empty(self, timeout: float) -> bool:  # noqa: ASYNC109 - the timeout decides the result
        """Wait until every slot is free. Returns False after the timeout."""
        end = self._context.sleeper.monotonic() + timeout
        while self.executions and (left := end - self._context.sleeper.monotonic()) > 0:
            self.slot_freed.clear()
            try:
                async with asyncio.timeout(left):
                    await self.slot_freed.wait()
            except TimeoutError:
                break
        return not self.executions
