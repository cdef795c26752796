"""The worker's loop: it connects, recovers, polls, backs off and idles. After an error it waits and starts again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from ..core.lifecycle import Lifecycle
from ..engine.context import WorkerContext
from ..engine.held_execution import WHY
from ..engine.reporter import Reporter
from ..errors import InterlockError, NotMigrated, Unavailable
from ..store.types import Lease, WorkerFacts
from ..telemetry import events
from .claims import Claims
from .database_connection import DatabaseConnection
from .draining import wait_until_empty
from .health import HealthCheck
from .heartbeat import LeaseRenewer
from .poll_backoff import PollBackoff
from .recycle import Recycling, is_awaited
from .slots import Slots
from .states import Position
from .worker_parts import ClaimCapacity, MaintenanceTasks

ERROR_WAIT = 5.0
"""Seconds that the worker waits after an unexpected error."""
GRACE = 3.0
"""Seconds that handlers have to stop after the drain time."""
HEALTH_CHECK = 1.0
"""Seconds after which a full worker checks for errors and for an outage."""
BATCH_WAIT = 0.02
"""Seconds for which a nearly full worker waits for free slots before it claims again."""
ANNOUNCEMENT_WAIT = 0.05
"""Seconds for which a worker waits for another notification after it has claimed the announced jobs. A delayed job may
start later by this time.
"""


class Worker:
    """One worker: a loop over slots. The `workers` table shows the state of the loop."""

    name: str
    health: HealthCheck

    def __init__(  # noqa: PLR0917 - the parts, in the order in which a job passes them
        self,
        context: WorkerContext,
        queues: Sequence[str],
        slots: Slots,
        capacity: ClaimCapacity,
        reporter: Reporter,
        leases: LeaseRenewer,
        maintenance: MaintenanceTasks,
        recycling: Recycling,
        claimer: Executor,
        *,
        facts: Callable[[str, int], WorkerFacts],
        drain: float,
        listen: bool,
        until_idle: bool = False,
        reconcile: Callable[[], Awaitable[int]],
        stop_reconcilers: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = context.owner
        self.exit_code = 0
        self.position = Position("Startup", self._moved)
        self._context, self._slots, self._capacity = context, slots, capacity
        self._reporter, self._leases, self._maintenance = reporter, leases, maintenance
        self._queues, self._facts = tuple(queues), facts
        self._claims = Claims(context, slots, capacity, recycling, self._queues, claimer)
        notify = self._on_notification if listen else None
        self._connection = DatabaseConnection(
            context, slots, maintenance, claimer, on_notification=notify, wake=self.wake
        )
        self._drain, self._until_idle = drain, until_idle
        self._reconcile, self._stop_reconcilers = reconcile, stop_reconcilers
        self._backoff = PollBackoff(context.random)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._slot_error: BaseException | None = None
        self._starved = self._notified = self._retiring = False

    # ------------------------------------------------------------ status
    @property
    def state(self) -> str:
        return self.position.state

    @property
    def busy(self) -> int:
        return self._slots.busy

    @property
    def connected(self) -> bool:
        """Whether the database has answered, and is migrated, since the worker started or had an error."""
        return self._connection.open

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def retiring(self) -> bool:
        """Whether the worker claims no more jobs, because a new process takes its place."""
        return self._retiring

    @property
    def _claims_jobs(self) -> bool:
        return not self._stopping.is_set() and not self._retiring

    def facts(self) -> WorkerFacts:
        return self._facts(self.state, self.busy)

    def _moved(self, source: str, target: str, why: str) -> None:
        self._context.events.emit(events.WorkerStateChanged(self._context.owner, source, target, why))

    # ------------------------------------------------------------ starting and stopping
    async def run(self) -> int:
        """Run until stopped. Returns how many attempts ended here. Raises `NotMigrated` for an older database."""
        self._context.loop_task = asyncio.current_task()
        self.position.go("Connecting", "the worker starts")
        try:
            while not self._stopping.is_set():
                try:
                    await self._round()
                except NotMigrated:
                    raise
                except Exception as error:  # noqa: BLE001 - reported; the worker retries
                    await self._error_wait(error)
        finally:
            await self._end()
        return self._slots.done

    def stop(self, exit_code: int = 0, *, drain: float | None = None) -> None:
        """Stop claiming, let running jobs end or return them, then end the worker. Call it in the event loop.

        `drain` changes the seconds that running jobs have, unless the worker is already stopping.
        """
        self.exit_code = self.exit_code or exit_code
        self._drain = self._drain if drain is None else drain
        self._stopping.set()
        self._wake.set()
        self._slots.slot_freed.set()

    def retire(self, why: str) -> None:
        """Claim no more jobs, and stop when no handler runs, however long that takes. Call it in the event loop."""
        if self._claims_jobs:
            self._retiring = True
            sentence = f"recycled: {why}; the worker claims no more jobs and ends when running jobs finish"
            self._context.events.emit(events.Notice(self.name, sentence, {"busy": self.busy}))
            self._wake.set()
            self._slots.slot_freed.set()

    def wake(self) -> None:
        """End the pause, because a job may be due. Call it in the event loop."""
        self._wake.set()

    def _on_notification(self) -> None:
        self._notified = True
        self._wake.set()

    def return_jobs(self) -> None:
        """Return all running jobs to the queue now. Call it in the event loop."""
        self._slots.stop()

    def report_slot_error(self, error: BaseException) -> None:
        """Report an error of a slot. The loop waits and starts again."""
        self._slot_error = error
        self._wake.set()
        self._slots.slot_freed.set()

    def heartbeat(self) -> None:
        """Renew all leases now and read cancel requests. Blocks; call it from any thread."""
        self._leases.heartbeat()

    def take(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        """Run a claimed execution, or finish a committed one of another worker. Call it in the event loop."""
        self._slots.take(lease, lifecycle, asked_at, separate_process=self._capacity.needs_child(lease))

    async def _end(self) -> None:
        self._connection.close_listener()
        self._slots.return_unstarted(WHY["shutdown"])
        await self._stop_reconcilers()
        if not await wait_until_empty(self._slots, self._context.sleeper, self._drain):
            self._slots.stop()
            await wait_until_empty(self._slots, self._context.sleeper, GRACE)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._reporter.drain()
        self._context.stopped.set()
        if not self._context.database_down.is_set():
            with suppress(InterlockError):
                await self._connection.call(lambda: self._context.store.workers.remove(self._context.owner))

    # ------------------------------------------------------------ the loop
    async def _round(self) -> None:
        """Run the loop once, from Connecting back to Connecting."""
        # A slot that becomes free from here on ends the pause at the end of the round.
        self._slots.slot_freed.clear()
        await self._connection.check()
        self.position.go("Recovery", "connected")
        done = await self._connection.call(self._maintenance.recover)
        self.position.go("Polling", f"{done} recovered" if done else "nothing to recover, or checked a moment ago")
        due_in = await self._poll()
        if self._retiring:
            self._check_health()
            if not self._slots.running(is_awaited):
                self.stop()
        if self._stopping.is_set():
            return
        self.position.go("Backoff", "nothing is due")
        pause = self._pause(due_in)
        self.position.go("Idle", f"for {pause:.3f} s at most")
        await self._idle(pause)
        self.position.go("Connecting", "the pause ended")

    async def _poll(self) -> float | None:
        """Claim while jobs are due and slots are free. Returns the seconds until the next job is due."""
        # After a notification, claim without first asking whether a job is due.
        notified = self._take_notification()
        work_expected = self._backoff.fresh or notified
        while self._claims_jobs:
            self._check_health()
            if not self._has_room() and not await self._wait_for_slot():
                continue
            if not work_expected and ((due_in := await self._due_in()) is None or due_in > 0):
                return due_in
            if not self._claims_jobs:
                break
            if self._maintenance.has_more:
                # Committed executions come before jobs that have not started.
                await self._connection.call(self._maintenance.recover)
            if (found := await self._claims.claim(self._connection.claim_rules, self._in_advance)) is None:
                # Since the check above, adopted executions have taken the room, or wait for the next free slots.
                continue
            claimed, may_be_more = found
            if not claimed:
                if not work_expected:
                    self._slots.states.report_missed_claim()
                return await self._due_in()
            self._backoff.reset(announced=notified)
            await self._wait_for_batch()
            if notified and not may_be_more:
                await self._wait_for_announcement()
            work_expected = may_be_more or self._notified
            notified = self._take_notification() or notified
        return None

    def _take_notification(self) -> bool:
        """Return whether a notification has come. The poll that follows serves every wake-up until now."""
        notified, self._notified = self._notified, False
        self._wake.clear()
        return notified

    def _in_advance(self) -> bool:
        return not self._maintenance.has_more

    def _has_room(self) -> bool:
        return any(self._capacity.room_by_runner(in_advance=self._in_advance()).values())

    def _check_health(self) -> None:
        if error := self._slot_error:
            self._slot_error = None
            raise error
        if self._leases.failing or self._context.database_down.is_set():
            raise Unavailable("The database is unreachable, so the worker claims no jobs.")

    async def _wait_for_slot(self) -> bool:
        """Wait for a free slot. Returns False if the loop must check its health first."""
        self._slots.slot_freed.clear()
        try:
            await asyncio.wait_for(self._slots.slot_freed.wait(), HEALTH_CHECK)
        except TimeoutError:
            return False
        await self._wait_for_batch()
        return self._has_room()

    async def _wait_for_batch(self) -> None:
        """Wait until there is room for several jobs, so that the next claim takes them at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BATCH_WAIT):
                while self._slots.busy and not self._has_room_for_batch() and not self._stopping.is_set():
                    self._slots.slot_freed.clear()
                    await self._slots.slot_freed.wait()

    async def _wait_for_announcement(self) -> None:
        """Wait a moment for the next notification: under a steady load, it saves asking when the next job is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCEMENT_WAIT):
                await self._wake.wait()

    def _has_room_for_batch(self) -> bool:
        by_runner = self._capacity.room_by_runner(in_advance=self._in_advance())
        return any(room >= self._slots.lanes.batch_of(runner) for runner, room in by_runner.items())

    async def _due_in(self) -> float | None:
        return await self._connection.call(
            lambda: self._context.store.queue.due_in(self._connection.claim_rules, self._queues)
        )

    # ------------------------------------------------------------ waiting
    def _pause(self, due_in: float | None) -> float:
        """Return how long to idle: longer each time, but not longer than until the next job is due."""
        # If a job is due but its kind has no capacity here, wake up when a slot becomes free.
        self._starved = due_in is not None and due_in <= 0
        pause = self._backoff.next(starved=self._starved)
        return pause if due_in is None or self._starved else min(pause, due_in)

    async def _idle(self, pause: float) -> None:
        if self._until_idle:
            await self._idle_or_stop()
            return
        wants_slots = self._starved or self._maintenance.has_more or self._retiring
        waiting = [asyncio.ensure_future(self._wake.wait())] + (
            [asyncio.ensure_future(self._slots.slot_freed.wait())] if wants_slots else []
        )
        try:
            await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waiting:
                wait.cancel()

    async def _idle_or_stop(self) -> None:
        """Wait for running jobs, run maintenance, and stop the worker when no job is due."""
        if self._slots.busy:
            self._slots.slot_freed.clear()
            await self._slots.slot_freed.wait()
        elif not await self._connection.call(self._maintenance.run_once) + await self._reconcile():
            if (due_in := await self._due_in()) is None or due_in > 0:
                self.stop()
            else:
                # A job is due but was not claimed, because its kind has no capacity now.
                await self._context.sleeper.asleep(self._backoff.next())
                return
        self._backoff.reset()

    async def _error_wait(self, error: BaseException) -> None:
        self._context.events.emit(events.WorkerError(self._context.owner, self.state, error))
        self.position.go("ErrorWait", type(error).__name__)
        self._connection.lost()
        stop = asyncio.ensure_future(self._stopping.wait())
        pause = asyncio.ensure_future(self._context.sleeper.asleep(ERROR_WAIT))
        await asyncio.wait([stop, pause], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        pause.cancel()
        self.position.go("Connecting", "the wait ended")
