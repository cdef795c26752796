"""The heartbeat: a thread that renews all leases of a worker in one statement, even while the event loop is blocked."""

import threading
import time
from collections.abc import Callable, Mapping

from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution, Stop
from ..engine.periodic import Periodic
from ..store.types import Fence, WorkerFacts
from ..telemetry import events

LONGEST_INTERVAL = 10.0
"""The most seconds between two heartbeats."""
RETRY_INTERVAL = 0.25
"""Seconds until the next heartbeat if a row was locked or the last heartbeat failed."""
PROGRESS_INTERVAL = 1.0
"""Seconds within which the progress of a handler is stored, even if its lease is longer."""


class LeaseRenewer:
    """Renews the worker's leases and updates its row. Stops handlers that lost their lease or were cancelled."""

    def __init__(
        self,
        context: WorkerContext,
        executions: Mapping[int, HeldExecution],
        facts: Callable[[], WorkerFacts],
        interval: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._executions = executions
        self._facts = facts
        self.interval = min(interval, LONGEST_INTERVAL)
        """Seconds between two heartbeats: a third of the shortest lease, and at most `LONGEST_INTERVAL`."""
        self._retry_soon = threading.Event()
        self._monotonic = monotonic
        """The time in which the thread waits, which is real time even if a test sets the worker's clock."""
        self._due_at = monotonic()
        """When the next full heartbeat is due. Storing progress in between does not delay it."""
        self.failing_since: float | None = None

    @property
    def failing(self) -> bool:
        """Whether the last heartbeat failed. The worker then claims nothing new."""
        return self.failing_since is not None

    def run(self) -> None:
        """Send heartbeats until the worker ends. This is the body of the heartbeat thread."""
        Periodic(self._context, "renew", self._next_pause).run_in_thread(self._tick)

    def _tick(self) -> None:
        """Send a heartbeat if one is due; otherwise store new progress only."""
        began = self._monotonic()
        due = began >= self._due_at
        self.heartbeat(progress_only=not due)
        if due:
            self._due_at = began + self.interval
        if self._retry_soon.is_set() or self.failing:
            self._due_at = min(self._due_at, self._monotonic() + RETRY_INTERVAL)

    def _next_pause(self) -> float:
        return min(max(self._due_at - self._monotonic(), 0.0), PROGRESS_INTERVAL)

    def heartbeat(self, *, progress_only: bool = False) -> None:
        """Renew every lease that is due in one statement, and update the worker's row in another.

        With `progress_only`, renew only the leases of executions with new progress, which the renewal stores.
        """
        asked = self._context.sleeper.monotonic()
        due = {
            execution.fence: execution
            for execution in list(self._executions.values())
            if self._renewable(execution, asked, progress_only=progress_only)
        }
        if progress_only and not due:
            return
        self._retry_soon.clear()
        try:
            if due:
                self._renew(due, asked)
            if not progress_only:
                self._context.store.workers.report(self._facts())
                if self._context.stopped.is_set():
                    # The worker ended meanwhile: it may have removed its row before this report stored it again.
                    self._context.store.workers.remove(self._context.owner)
        except Exception as error:  # noqa: BLE001 - without this thread every lease is lost
            self.failing_since = self.failing_since or asked
            self._context.database_down.set()
            self._context.events.emit(events.WorkerError(self._context.owner, "renew", error))
        else:
            self.failing_since = None

    def _renewable(self, execution: HeldExecution, now: float, *, progress_only: bool) -> bool:
        # Renew now if the lease is due before the next heartbeat. Renew a doubtful lease, too: if no other worker has
        # taken the execution, this worker can still return it.
        return (
            execution.renews
            and not execution.ended
            and (execution.stop != "lost" or execution.lease_doubtful)
            and (
                execution.has_new_progress
                or (not progress_only and now + self.interval >= execution.asked_at + execution.seconds / 3)
            )
        )

    def _renew(self, due: Mapping[Fence, HeldExecution], asked: float) -> None:
        sent = {fence: execution.heartbeat() for fence, execution in due.items()}
        renewal = self._context.store.leases.renew(list(sent.values()))
        for fence in renewal.renewed:
            due[fence].asked_at = asked
            due[fence].reported = sent[fence].progress
        for fence in renewal.cancels:
            if due[fence].status != "COMMITTED":
                self.stop_handler(due[fence], "cancel")
        for fence in renewal.lost:
            due[fence].lease_doubtful = False
            # If the outcome is being stored, the store decides whether the lease is lost.
            if not due[fence].settling and not due[fence].ended:
                self.stop_handler(due[fence], "lost")
        if renewal.busy:
            self._retry_soon.set()
        taken = self._context.sleeper.monotonic() - asked
        self._context.events.emit(
            events.Renewed(self._context.owner, len(renewal.renewed), len(renewal.lost), len(renewal.busy), taken)
        )

    def stop_handler(self, execution: HeldExecution, why: Stop) -> None:
        """Stop the handler of an execution."""
        if execution.halt(why) and why == "lost":
            job = execution.job
            self._context.events.emit(
                events.ExecutionLost(
                    job.id, job.kind, job.attempt, "another worker took it over, or it could not be renewed in time"
                )
            )
