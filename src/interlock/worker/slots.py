"""Slots: each runs one handler at a time.

An execution waits for a slot, runs in it, and leaves it when its handler ends, or after its finish function if it has
one. Its outcome is stored while the slot runs the next execution. The worker renews the lease from the claim until the
outcome is stored.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..core.lifecycle import Lifecycle
from ..core.outcome import Outcome, Returned
from ..engine.context import WorkerContext, call_soon
from ..engine.held_execution import WHY, HeldExecution
from ..engine.reporter import Reporter
from ..engine.settlement import Settlement
from ..jobs.user_code import ProtectedTask, context_of, protected
from ..store.types import Fence, Lease
from ..telemetry import events
from .attempt import Attempts
from .capacity import is_suspect, must_run_alone
from .finishing import finish
from .lanes import Lanes, Runner
from .prefetch import death_costs_only_a_try
from .slot_states import SlotStates
from .unstarted import UnstartedJobs
from .unstored import UnstoredOutcomes

Ended = tuple[HeldExecution, Outcome, Any]
"""An execution whose handler has ended, its outcome, and the value for the commit function."""


class Slots:
    """The executions of a worker, each in a slot with its own state. Use it in the event loop only."""

    def __init__(
        self,
        context: WorkerContext,
        attempts: Attempts,
        reporter: Reporter,
        on_error: Callable[[BaseException], None],
        *,
        size: int,
        threads: int,
    ) -> None:
        self.size = size
        self.executions: dict[int, HeldExecution] = {}
        """The executions by `id()`. A lost execution may still run here together with the next one of its job."""
        self.suspects: dict[int, HeldExecution] = {}
        """The executions among them that may have crashed a worker."""
        self.abandoned: dict[Fence, None] = {}
        """Executions whose slot failed. They wait until their lease expires and another worker takes them."""
        self.reserved = 0
        """The number of slots that a running claim may fill."""
        self.adopted: deque[Lease] = deque()
        """Leases that the maintenance thread has adopted and the event loop has not taken yet."""
        self._stopped = False
        self._waiting_alone: set[int] = set()
        """Executions that wait until no other execution runs."""
        self._running = 0
        """How many slots are taken."""
        self._ended: list[Ended] = []
        """Handlers that have ended in this iteration of the event loop."""
        self.slot_freed = asyncio.Event()
        """Set when a slot becomes free or an outcome was stored."""
        self.done = 0
        """How many attempts have ended here."""
        self._done_in_children = 0
        self._context = context
        self._attempts = attempts
        self._reporter = reporter
        self._on_error = on_error
        self.states = SlotStates(context)
        self._loop = asyncio.get_running_loop()
        self._own = context_of(None)
        """The context of the worker's own code. Handlers start from copies of it."""
        may_lose = death_costs_only_a_try(context.kinds.values())
        lease = min(kind.lease for kind in context.kinds.values())
        self._unstarted = UnstartedJobs(reporter, self._returned)
        self.lanes = Lanes(size, threads, lease, self._unstarted.return_late, self._own, prefetches=may_lose)
        self._unstored = UnstoredOutcomes(size, may_lose=may_lose)
        reporter.on_hook_raised = self._hook_raised

    # ------------------------------------------------------------ free slots
    @property
    def busy(self) -> int:
        """How many slots are taken, or needed by executions that wait to start or to be stored."""
        return min(len(self.executions), self.size)

    @property
    def attempts(self) -> int:
        """How many attempts this process runs or has run, without those of its child processes."""
        own = sum(not execution.separate_process for execution in self.executions.values())
        return self.done - self._done_in_children + own

    @property
    def free(self) -> int:
        """How many slots are free and not reserved for a claim or an adopted execution. Thread-safe."""
        return max(self.size - self._running - self.lanes.starting - self.reserved - len(self.adopted), 0)

    def room(self, runner: Runner, *, in_advance: bool) -> int:
        """Return how many jobs to claim for free slots and, `in_advance`, for those that will be free in a moment."""
        if not self._may_start:
            return 0
        # If a suspect kills the process, a job that waits beside it would lose a try.
        return self.lanes.room(runner, self.free, in_advance=in_advance and not self.suspects)

    @property
    def _may_start(self) -> bool:
        """Whether handlers may start, or too many outcomes wait to be stored."""
        return self._unstored.allow_start(len(self.executions) - self.lanes.waiting)

    def running(self, chosen: Callable[[HeldExecution], bool]) -> int:
        """Return how many executions of this worker match. Thread-safe."""
        return sum(1 for execution in list(self.executions.values()) if chosen(execution))

    def running_suspects(self, chosen: Callable[[HeldExecution], bool]) -> int:
        """`running` among those that may have crashed a worker, which are few. Thread-safe."""
        return sum(1 for execution in list(self.suspects.values()) if chosen(execution))

    # ------------------------------------------------------------ one execution
    def take(self, lease: Lease, lifecycle: Lifecycle, asked_at: float, *, separate_process: bool) -> None:
        """Run an execution that was claimed, or finish one that was adopted after its commit.

        Without a free slot it waits for one, and the worker renews its lease meanwhile.
        """
        self.add(lease, lifecycle, asked_at, separate_process=separate_process)
        self.begin_queued()
        self.return_endangered()

    def add(self, lease: Lease, lifecycle: Lifecycle, asked_at: float, *, separate_process: bool) -> None:
        """Let an execution wait for a slot until `begin_queued` is called."""
        spec = self._context.kinds[lease.job.kind]
        execution = HeldExecution(lease, spec, lifecycle, asked_at=asked_at, separate_process=separate_process)
        # A job that waits for a slot does not use up its `max_runtime`.
        execution.began = math.inf
        self.executions[id(execution)] = execution
        if is_suspect(lease.job.lease_losses, lease.crashes):
            self.suspects[id(execution)] = execution
        self.lanes.of(execution).queue.add(execution)

    def begin_queued(self) -> None:
        """Begin as many of the waiting executions as there are free slots."""
        now = self._context.sleeper.monotonic()
        while self._running < self.size and self._may_start and (execution := self.lanes.next()) is not None:
            self._running += 1
            self.lanes.of(execution).running += 1
            execution.in_slot, execution.began = True, now
            execution.slot = self.states.take_number()
            self.states.go(execution, "Claiming", "a job is due")
            self.states.go(execution, "Processing", "the worker owns the lease")
            self._begin(execution)
        for lane in self.lanes:
            lane.queue.watch()

    def _begin(self, execution: HeldExecution) -> None:
        plain = (
            execution.status == "IN_PROGRESS" and not must_run_alone(execution) and self._attempts.is_plain(execution)
        )
        # The execution keeps a reference to its task, because the event loop keeps only a weak one.
        execution.task = protected(
            self._execute_plain(execution) if plain else self._execute(execution), context=self._own.copy()
        )

    async def _execute_plain(self, execution: HeldExecution) -> None:
        """Run a plain attempt in this task, in the scope of its job, and leave the rest to the worker's own code."""
        try:
            outcome, value = await self._attempts.prepare_plain(execution, cast("ProtectedTask[None]", execution.task))
        except asyncio.CancelledError:
            self._own.copy().run(self._give_up, execution, "the event loop is closing")
            raise
        except BaseException as error:  # noqa: BLE001 - reported, so that no slot ends unnoticed
            self._own.copy().run(self._abandon, execution, error)
        else:
            self._handler_ended(execution, outcome, value)

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
            self._handler_ended(execution, outcome, value)
        except asyncio.CancelledError:
            self._give_up(execution, "the event loop is closing")
            raise
        except BaseException as error:  # noqa: BLE001 - reported, so that no slot ends unnoticed
            self._abandon(execution, error)

    async def _wait_until_alone(self, execution: HeldExecution) -> None:
        """Wait until no other execution runs here. The worker claims nothing meanwhile."""
        self.return_unstarted("a job that may crash the worker must run alone")
        self._waiting_alone.add(id(execution))
        execution.on_halt(lambda: call_soon(self._loop, self.slot_freed.set))
        execution.began = math.inf
        try:
            while execution.stop is None and len(self.executions) > len(self._waiting_alone) + self.lanes.waiting:
                self.slot_freed.clear()
                await self.slot_freed.wait()
        finally:
            self._waiting_alone.discard(id(execution))
            execution.on_halt(None)
            execution.began = self._context.sleeper.monotonic()

    async def _finish(self, execution: HeldExecution) -> None:
        """Run the finish function of a committed execution, and have its end stored."""
        outcome = await finish(self._context, self._attempts, execution, stopped=lambda: self._stopped)
        if outcome is None:
            self._give_up(execution, "another worker will finish it")
            return
        self.states.report_outcome(execution, outcome)
        self._leave(execution)
        self._reporter.post(execution, outcome, self._settled)
        self.slot_freed.set()
        self.begin_queued()

    # ------------------------------------------------------------ its end
    def _handler_ended(self, execution: HeldExecution, outcome: Outcome, value: Any) -> None:
        """Have the outcome stored, together with the others of this iteration of the event loop."""
        if not self._ended:
            self._loop.call_soon(self._post_ended, context=self._own.copy())
        self._ended.append((execution, outcome, value))

    def _post_ended(self) -> None:
        """Free the slots of handlers that have ended, and post their outcomes."""
        ended, self._ended = self._ended, []
        now = self._context.sleeper.monotonic()
        self.lanes.handlers_ended([execution for execution, _, _ in ended], now)
        for execution, outcome, value in ended:
            self.states.report_outcome(execution, outcome)
            if not (isinstance(outcome, Returned) and outcome.boundary):
                self._leave(execution)
            self._unstored.add(execution)
            self._reporter.post(execution, outcome, self._settled, value)
        self.slot_freed.set()
        self.begin_queued()

    def _leave(self, execution: HeldExecution) -> None:
        """Free the slot. The execution keeps its number until its outcome is stored."""
        if execution.in_slot:
            execution.in_slot = False
            self._running -= 1
            self.lanes.of(execution).running -= 1

    def _settled(self, items: Sequence[Settlement]) -> None:
        """Forget executions after the store has answered, or run the finish functions of committed ones."""
        for item in items:
            try:
                self._settled_one(item)
            except Exception as error:  # noqa: BLE001 - reported, so that the others of the batch free their slots
                self._abandon(item.execution, error)
        self.slot_freed.set()
        self.begin_queued()

    def _settled_one(self, item: Settlement) -> None:
        execution, error = item.execution, item.error
        execution.settling = False
        self._unstored.remove(execution)
        if error is not None and item.is_left_to_others:
            self._give_up(execution, str(error))
        elif error is not None:
            self._abandon(execution, error)
        elif execution.ended:
            self.states.go(execution, "Polling", "stored")
            self._forget(execution)
        else:
            # The execution is committed. The same slot runs its finish function.
            self._begin(execution)

    def _hook_raised(self, execution: HeldExecution) -> None:
        """Let other jobs start while the hook waits to be retried."""
        self._unstored.hook_raised(execution)
        self.slot_freed.set()
        self.begin_queued()

    def _give_up(self, execution: HeldExecution, why: str) -> None:
        """Free the slot of an execution that this worker lost or could not return. Another worker adopts it."""
        execution.renews = False
        if execution.state == "Processing":
            self.states.go(execution, "ReportingFailure", why)
        self.states.go(execution, "Polling", why)
        self._drop(execution)

    def _abandon(self, execution: HeldExecution, error: BaseException) -> None:
        """Free the slot after an internal error. The job waits until its lease expires, and the worker pauses."""
        execution.renews = False
        self.abandoned[execution.fence] = None
        self.states.go(execution, "ErrorWait", type(error).__name__)
        self._context.events.emit(events.WorkerError(self._context.owner, f"job {execution.job.id}", error))
        self.states.go(execution, "Connecting", "the slot was reset")
        self._drop(execution)
        self._on_error(error)

    def _drop(self, execution: HeldExecution) -> None:
        self._forget(execution)
        self.slot_freed.set()
        self.begin_queued()

    def _forget(self, execution: HeldExecution) -> None:
        del self.executions[id(execution)]
        self.suspects.pop(id(execution), None)
        self._unstored.remove(execution)
        self._leave(execution)
        if execution.slot >= 0:
            self.states.give_back(execution.slot)
            self.done += 1
            self._done_in_children += execution.separate_process

    # ------------------------------------------------------------ jobs that have not started
    def return_endangered(self) -> None:
        """Return the jobs that were claimed in advance if a suspect runs in this process and could end it."""
        if any(not execution.separate_process for execution in self.suspects.values()):
            self.return_unstarted("a job that may crash the worker runs in the same process")

    def return_unstarted(self, why: str) -> None:
        """Return the jobs that were claimed in advance to the queue. They keep their tries and their place."""
        self._unstarted.return_all(self.lanes, why)

    def _returned(self, items: Sequence[Settlement]) -> None:
        for item in items:
            item.execution.settling = item.execution.renews = False
            if item.error is None or item.is_left_to_others:
                self._forget(item.execution)
            else:
                self._abandon(item.execution, item.error)
        self.slot_freed.set()

    # ------------------------------------------------------------ stopping
    def stop(self) -> None:
        """Stop every handler and return its job to the queue."""
        self._stopped = True
        self._reporter.stop_retrying_hooks()
        self.return_unstarted(WHY["shutdown"])
        for execution in list(self.executions.values()):
            if not execution.settling:
                execution.halt("shutdown")
        self._unstored.withdraw()
