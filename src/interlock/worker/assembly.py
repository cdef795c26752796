"""Builds a worker from its parts, starts its threads, and stops them."""

import asyncio
import faulthandler
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from ..core.lifecycle import Lifecycle
from ..core.payload import check_name
from ..core.sleeper import Sleeper
from ..engine.context import WorkerContext, call_soon
from ..engine.held_execution import HeldExecution
from ..engine.periodic import Periodic
from ..engine.reporter import Reporter
from ..engine.settle_group import GroupSettler
from ..errors import Unavailable
from ..jobs.user_code import protected
from ..maintenance.maintenance_loop import Maintenance
from ..reconcile.reconciler import Reconciler
from ..store.types import Lease, WorkerFacts
from ..telemetry import logs
from ..telemetry.events import Recovered
from .attempt import Attempts
from .capacity import Capacity
from .forked_handlers import exit_if_forked
from .health import HealthCheck
from .heartbeat import LeaseRenewer
from .plan import Plan
from .recycle import Recycling
from .slots import Slots
from .subprocess.children import Children
from .watchdog import Watchdog
from .worker import Worker

_log = logging.getLogger("interlock")
WRITERS = 4
"""How many steps and receipts of async handlers may be written at once."""
COMMITTERS = 8
"""How many commit functions may run at once."""
RECONCILERS = 4
"""How many reconcilers may call the database at once."""
PULSE_INTERVAL = 0.5
JOIN_TIMEOUT = 5.0
"""Seconds to wait until the worker's own threads end."""
HUNG_EXIT_CODE = 70
"""The exit code of a worker that hung. Its leases expire, and other workers recover its jobs."""


class _Pulse:
    """Stores when the event loop last responded."""

    def __init__(self, sleeper: Sleeper) -> None:
        self._sleeper = sleeper
        self.at = sleeper.monotonic()

    def heartbeat(self) -> None:
        self.at = self._sleeper.monotonic()


@asynccontextmanager
async def start_worker(plan: Plan) -> AsyncGenerator[Worker]:
    """Start the threads of a worker for the duration of the block. The caller runs its loop with `worker.run()`."""
    plan = plan.checked()
    name = check_name("The name of a worker", plan.name or f"{socket.gethostname()[:40]}-{os.getpid()}")
    owner = f"{name}#{secrets.token_hex(4)}"
    context = WorkerContext(
        owner, plan.find_store, plan.kinds, plan.transaction, plan.events, plan.sleeper, plan.failpoints
    )
    async with AsyncExitStack() as stack:
        stack.callback(logs.attach(plan.events))
        if plan.lifespan is not None:
            await stack.enter_async_context(plan.lifespan())
        parts = _Parts(plan, context)
        stack.push_async_callback(parts.close)
        stack.callback(plan.events.subscribe(parts.recovered, Recovered))
        parts.start()
        yield parts.worker


@asynccontextmanager
async def run_worker(plan: Plan) -> AsyncGenerator[Worker]:
    """Run a worker for the duration of the block. At the end of the block, the worker drains."""
    async with start_worker(plan) as worker:
        # Raise configuration errors now, not at the end of the block. An unreachable database is not one of them.
        with suppress(Unavailable):
            await asyncio.to_thread(lambda: [kind.version(plan.find_store()) for kind in plan.kinds.values()])
        task = protected(worker.run())
        task.add_done_callback(lambda ended: _ended_early(worker, ended))
        try:
            yield worker
        finally:
            worker.stop()
            await task


def _ended_early(worker: Worker, task: asyncio.Task[int]) -> None:
    if not worker.stopping:
        _log.error(
            "Worker %s ended without a request to stop, and runs no more jobs: %s",
            worker.name,
            "cancelled" if task.cancelled() else task.exception(),
        )


async def run_until_idle(plan: Plan, timeout: float) -> int:  # noqa: ASYNC109 - a deadline for the whole
    """Run all jobs that are due. Returns how many attempts ended.

    Raises `TimeoutError` if that takes too long. Jobs that still run then return to the queue.
    """
    async with start_worker(plan) as worker:
        task = protected(worker.run())
        done, _ = await asyncio.wait([task], timeout=timeout)
        if done:
            return task.result()
        worker.stop()
        worker.return_jobs()
        await task
    raise TimeoutError(
        f"Jobs were still due or running after {timeout:g} s. The running jobs returned to the queue. Call again, or "
        "pass a longer timeout."
    )


def _thread_pools(handlers: int) -> dict[str, ThreadPoolExecutor]:
    counts = {
        "claim": 1,
        "report": 1,
        "commit": COMMITTERS,
        "ledger": WRITERS,
        "handler": handlers,
        "reconcile": RECONCILERS,
    }
    return {name: ThreadPoolExecutor(count, thread_name_prefix=f"interlock-{name}") for name, count in counts.items()}


class _Parts:
    """The parts of one worker, and the threads that they run in."""

    def __init__(self, plan: Plan, context: WorkerContext) -> None:
        self.context = context
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._plan_threads, self._pools = plan.threads, _thread_pools(plan.threads)
        leases = [kind.lease for kind in plan.kinds.values()]
        self._settler = GroupSettler(context)
        reporter = Reporter(self._settler, self._pools["report"], self._pools["commit"])
        self._children = Children(
            context,
            plan.target,
            most=plan.child_processes,
            limits=plan.limits,
            database=plan.database,
            child_started=self._child_started,
        )
        self._slots = Slots(
            context, self._build_attempts(reporter), reporter, self._on_error, size=plan.slots, threads=plan.threads
        )
        self._leases = LeaseRenewer(context, self._slots.executions, self._facts, min(leases) / 3)
        capacity = Capacity(plan.kinds, self._slots, self._children)
        maintenance = self._build_maintenance(plan, max(leases), capacity)
        on_limit, exact = plan.on_limit or self._retire, plan.on_limit is None
        self._recycling = Recycling(plan.limits, lambda: self._slots.attempts, on_limit, exact=exact)
        self._pulse = _Pulse(context.sleeper)
        self._watch = self._build_watchdog(plan, max(leases))
        self._pulsing: asyncio.Task[None] | None = None
        self._reconcilers = self._build_reconcilers(plan)
        self._reconciling: list[asyncio.Task[None]] = []
        self._runs_reconcilers = not plan.until_idle
        bodies = [self._leases.run, self._watch.run] + (
            [] if plan.until_idle else [maintenance.run, maintenance.archive]
        )
        self._threads = [
            threading.Thread(target=body, name=f"interlock-{body.__qualname__}", daemon=True) for body in bodies
        ]
        self.worker = self._build_worker(plan, capacity, reporter, maintenance)
        self.worker.health = HealthCheck(context, self.worker, self._leases, lambda: self._pulse.at)

    def _build_attempts(self, reporter: Reporter) -> Attempts:
        return Attempts(
            self.context,
            self._settler,
            reporter,
            threads=self._pools["handler"],
            writers=self._pools["ledger"],
            children=self._children,
        )

    def _build_watchdog(self, plan: Plan, lease: float) -> Watchdog:
        return Watchdog(
            self.context,
            self._slots.executions,
            self._leases,
            last_pulse=lambda: self._pulse.at,
            hang_timeout=plan.hang_timeout or max(10 * lease, 60.0),
            on_hang=plan.on_hang or self._on_hang,
        )

    def _build_maintenance(self, plan: Plan, lease: float, capacity: Capacity) -> Maintenance:
        return Maintenance(
            self.context,
            self._settler,
            plan.schedules,
            plan.retention,
            lease,
            self._adopted,
            capacity.free_slots,
            plan.audit_retention,
        )

    def _build_worker(self, plan: Plan, capacity: Capacity, reporter: Reporter, maintenance: Maintenance) -> Worker:
        kinds, queues, schedules = tuple(sorted(plan.kinds)), tuple(plan.queues), tuple(sorted(plan.schedules))
        host, pid = socket.gethostname(), os.getpid()
        return Worker(
            self.context,
            plan.queues,
            self._slots,
            capacity,
            reporter,
            self._leases,
            maintenance,
            self._recycling,
            self._pools["claim"],
            facts=lambda state, busy: WorkerFacts(
                self.context.owner, host, pid, state, plan.slots, busy, kinds, queues, schedules
            ),
            drain=plan.drain,
            listen=plan.listen and not plan.until_idle,
            until_idle=plan.until_idle,
            reconcile=self._reconcile_once,
            stop_reconcilers=self._stop_reconcilers,
        )

    def _build_reconcilers(self, plan: Plan) -> list[Reconciler]:
        threads = self._pools["reconcile"]
        return [
            Reconciler(self.context, self._settler, kind, checks, threads, self._committed)
            for kind in plan.kinds.values()
            if (checks := kind.checks) is not None
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        pulse = Periodic(self.context, "pulse", lambda: PULSE_INTERVAL)
        self._pulsing = protected(pulse.run_in_loop(self._heartbeat, asyncio.Event(), asyncio.sleep))
        if self._runs_reconcilers:
            self._reconciling = [protected(one.run()) for one in self._reconcilers]

    async def _reconcile_once(self) -> int:
        return sum([await one.run_once() for one in self._reconcilers])

    def _committed(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        """Run the finish function of a job that a reconciler committed.

        If this worker is ending, another worker runs it after the lease has expired.
        """
        if not self.context.stopped.is_set():
            self.worker.take(lease, lifecycle, asked_at)

    async def _stop_reconcilers(self) -> None:
        """Stop the reconcilers. This must happen before the slots drain, which finish newly committed jobs."""
        for reconciler in self._reconcilers:
            reconciler.stop()
        if self._reconciling:
            await asyncio.wait(self._reconciling, timeout=JOIN_TIMEOUT)

    async def _heartbeat(self) -> None:
        """Record that the event loop responds. Stop the worker if too many threads cannot be stopped."""
        exit_if_forked(self._pid)
        self._pulse.heartbeat()
        self._recycling.check()
        if self._slots.running(_is_stuck) > max(self._plan_threads // 2, 1):
            _log.error(
                "More than half of the threads run handlers that cannot be stopped. This worker drains and exits with "
                "code %d.",
                HUNG_EXIT_CODE,
            )
            self.worker.stop(HUNG_EXIT_CODE)

    def _child_started(self) -> None:
        """Wake the loop after a quarantine child has started, because more suspects can be claimed."""
        self._slots.slot_freed.set()

    def _adopted(self, lease: Lease, asked_at: float) -> None:
        """Pass a committed execution from the maintenance thread to the event loop, which finishes it."""
        lifecycle = self.context.store.registry.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
        self._slots.adopted.append(lease)
        call_soon(self._loop, self._take_adopted, lease, lifecycle, asked_at)

    def _take_adopted(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        self._slots.adopted.remove(lease)
        self.worker.take(lease, lifecycle, asked_at)

    def recovered(self, event: Recovered) -> None:
        """Wake the loop after a recovery, because the database may send notifications for new jobs only."""
        del event
        call_soon(self._loop, self.worker.wake)

    def _on_error(self, error: BaseException) -> None:
        self.worker.report_slot_error(error)

    def _retire(self, why: str) -> None:
        self.worker.retire(why)

    def _facts(self) -> WorkerFacts:
        return self.worker.facts()

    def _on_hang(self, seconds: float) -> None:
        if not self.context.stopped.is_set():
            _log.critical(
                "The event loop has not responded for %.0f s. This worker stops renewing its leases; other workers "
                "recover its jobs when they expire.",
                seconds,
            )
            faulthandler.dump_traceback(file=sys.stderr)
            self.context.stopped.set()
            # If the loop responds again, the worker must stop, because it no longer renews leases.
            call_soon(self._loop, self.worker.stop, HUNG_EXIT_CODE)

    async def close(self) -> None:
        """Stop all parts and threads. A thread whose handler cannot be stopped keeps running."""
        await self._stop_reconcilers()
        self.context.stopped.set()
        if self._pulsing is not None:
            self._pulsing.cancel()
        await self._children.close()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        end = self.context.sleeper.monotonic() + JOIN_TIMEOUT
        # Poll instead of joining in a thread, because handlers may occupy all threads.
        while any(thread.is_alive() for thread in self._threads) and self.context.sleeper.monotonic() < end:  # noqa: ASYNC110 - a thread has no event for its end
            await asyncio.sleep(0.01)


def _is_stuck(execution: HeldExecution) -> bool:
    return (
        execution.stop in ("lost", "runtime")
        and not execution.lease_doubtful
        and not execution.settling
        and not execution.spec.signature.is_async
    )
