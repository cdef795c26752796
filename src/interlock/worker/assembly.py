"""A worker put together: its parts, its threads, and its end."""

import asyncio
import faulthandler
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from .declaration import Declaration
from .enqueue import Transaction
from .errors import Unavailable, UsageError
from .events import Events, Recovered
from .job import Phase
from .keeper.keeper import Keeper
from .lifecycle import Lifecycle
from .payload import check_name
from .reconciler import Reconciler
from .records import Lease, WorkerFacts
from .schedule import Schedule
from .stores import OpenStore
from .telemetry import logs
from .user_code import protected
from .waits import SystemWaits, Waits
from .worker.attempt import Attempts
from .worker.children import Children
from .worker.desk import Desk, soon
from .worker.forks import stay
from .worker.grip import Grip
from .worker.leases import Leases, Watch
from .worker.points import Points, pass_by
from .worker.report import Reporter
from .worker.rooms import Rooms
from .worker.settle import Settler
from .worker.slots import Slots
from .worker.worker import Worker

_log = logging.getLogger("interlock")
WRITERS = 4
"""How many steps and receipts of coroutines may be written at once."""
COMMITTERS = 8
"""How many commit functions may run at once."""
RECONCILERS = 4
"""How many kinds' answers from outside may be written down at once."""
PULSE = 0.5
JOINED = 5.0
"""Seconds in which the worker's own threads end."""
HUNG = 70
"""The exit code of a worker that could not go on: its leases recover its jobs."""


@dataclass(frozen=True)
class Plan:
    """What a worker is to be: all that can be chosen."""

    find_store: Callable[[], OpenStore]
    kinds: Mapping[str, Declaration]
    queues: Sequence[str] = ()
    """The queues to serve; none means those that its kinds name, and `default`."""
    slots: int = 100
    threads: int = min(32, (os.cpu_count() or 1) + 4)
    name: str | None = None
    target: str | None = None
    """The app by name, `module:app`, for children that import it."""
    database: str | None = None
    """The URL that verbs of the app are to use in a child."""
    transaction: Transaction | None = None
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    retention: Mapping[Phase, float] = field(default_factory=dict[Phase, float])
    events: Events = field(default_factory=Events)
    listen: bool = True
    until_idle: bool = False
    hung: Callable[[float], None] | None = None
    patience: float | None = None
    """Seconds that the event loop may be silent before the worker counts as hung; None means ten leases, and a minute at least."""
    waits: Waits = field(default_factory=SystemWaits)
    points: Points = pass_by

    def checked(self) -> "Plan":
        if not self.kinds:
            raise UsageError("This app has no kinds of job, so a worker would have nothing to do: import the modules that declare them (imports=[…]).")
        if self.slots < 1 or self.threads < 1:
            raise UsageError(f"slots is {self.slots} and threads {self.threads}: give whole numbers from 1 on.")
        apart = sorted(kind.name for kind in self.kinds.values() if kind.process)
        if apart and self.target is None:
            raise UsageError(
                f"{', '.join(apart)} runs in a process of its own, which must import the app by name: put the app into a module, and run it with "
                "interlock worker -A module:app.")
        named = self.queues or sorted({"default", *(kind.queue for kind in self.kinds.values())})
        return replace(self, queues=tuple(check_name("queue", queue) for queue in named))


class _Pulse:
    """When the event loop last answered."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.at = waits.monotonic()

    def beat(self) -> None:
        self.at = self._waits.monotonic()


@asynccontextmanager
async def booted(plan: Plan) -> AsyncGenerator[Worker]:
    """A worker whose threads run; its loop runs where the caller awaits `worker.run()`. All of it ends with the block."""
    plan = plan.checked()
    name = check_name("The name of a worker", plan.name or f"{socket.gethostname()[:40]}-{os.getpid()}")
    owner = f"{name}#{secrets.token_hex(4)}"
    desk = Desk(owner, plan.find_store, plan.kinds, plan.transaction, plan.events, plan.waits, plan.points)
    async with AsyncExitStack() as stack:
        stack.callback(logs.attach(plan.events))
        if plan.lifespan is not None:
            await stack.enter_async_context(plan.lifespan())
        parts = _Parts(plan, desk)
        stack.push_async_callback(parts.close)
        stack.callback(plan.events.subscribe(parts.recovered, Recovered))
        parts.start()
        yield parts.worker


@asynccontextmanager
async def running(plan: Plan) -> AsyncGenerator[Worker]:
    """A worker that works while the block runs, and drains at its end."""
    async with booted(plan) as worker:
        # What can never work is said now, and not when the block ends; a database that is away may come back.
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
        _log.error("the worker %s has ended though nobody told it to: %s", worker.name, "cancelled" if task.cancelled() else task.exception())


async def emptied(plan: Plan, timeout: float) -> int:  # noqa: ASYNC109 - a deadline for the whole
    """Carry out all that is due; answers how many attempts ended. `TimeoutError` if that takes too long; what runs then is given back."""
    async with booted(plan) as worker:
        task = protected(worker.run())
        done, _ = await asyncio.wait([task], timeout=timeout)
        if done:
            return task.result()
        worker.stop()
        worker.release()
        await task
    raise TimeoutError(f"There was still something to do after {timeout:g} s. What ran was given back: call again, or give a longer timeout.")


def target_of(app: object) -> str | None:
    """The name by which another process can import this app; None if it has none."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name != "__main__" else ():
            if value is app and getattr(module, "__spec__", None) is not None:
                return f"{name}:{attribute}"
    return None


class _Parts:
    """The parts of one worker, and the threads they run in."""

    def __init__(self, plan: Plan, desk: Desk) -> None:
        self.desk = desk
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._pools = {name: ThreadPoolExecutor(count, thread_name_prefix=f"interlock-{name}") for name, count in (
            ("claim", 1), ("report", 1), ("commit", COMMITTERS), ("ledger", WRITERS), ("handler", plan.threads), ("reconcile", RECONCILERS))}
        leases = [kind.lease for kind in plan.kinds.values()]
        self._settler = Settler(desk)
        reporter = Reporter(self._settler, self._pools["report"], self._pools["commit"])
        self._children = Children(desk, plan.target, database=plan.database, warmed=self._warmed)
        attempts = Attempts(
            desk, self._settler, reporter, threads=self._pools["handler"], writers=self._pools["ledger"], children=self._children)
        self._slots = Slots(desk, attempts, reporter, plan.slots, self._escaped)
        self._leases = Leases(desk, self._slots.grips, self._facts, min(leases) / 3)
        rooms = Rooms(plan.kinds, self._slots, self._children, plan.threads)
        keeper = Keeper(desk, self._settler, plan.schedules, plan.retention, max(leases), self._adopted, rooms.left)
        self._pulse = _Pulse(desk.waits)
        self._watch = Watch(
            desk, self._slots.grips, self._leases, answered=lambda: self._pulse.at, patience=plan.patience or max(10 * max(leases), 60.0),
            hung=plan.hung or self._hung)
        self._stubborn = max(plan.threads // 2, 1)
        self._beating: asyncio.Task[None] | None = None
        self._reconcilers = [
            Reconciler(desk, self._settler, kind, kind.reconcile, self._pools["reconcile"], self._committed)
            for kind in plan.kinds.values() if kind.reconcile is not None]
        self._reconciling: list[asyncio.Task[None]] = []
        self._keeps = not plan.until_idle
        bodies = [self._leases.keep, self._watch.keep] + ([] if plan.until_idle else [keeper.keep])
        self._threads = [threading.Thread(target=body, name=f"interlock-{body.__qualname__}", daemon=True) for body in bodies]
        self.worker = Worker(
            desk, plan.queues, self._slots, rooms, reporter, self._leases, keeper, self._pools["claim"],
            facts=lambda state, busy: WorkerFacts(
                desk.owner, socket.gethostname(), os.getpid(), state, plan.slots, busy, tuple(sorted(plan.kinds)), tuple(plan.queues)),
            listen=plan.listen and not plan.until_idle, until_idle=plan.until_idle, reconcile=self._reconcile_once,
            quiet=self._quiet)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._beating = protected(self._beat())
        if self._keeps:
            self._reconciling = [protected(one.keep()) for one in self._reconcilers]

    async def _reconcile_once(self) -> int:
        return sum([await one.run_once() for one in self._reconcilers])

    def _committed(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        """A reconciler committed what was done elsewhere; what follows is ours to run, unless we end: then it is left to its lease."""
        if not self.desk.over.is_set():
            self.worker.adopt(lease, lifecycle, asked_at)

    async def _quiet(self) -> None:
        """Ask the outside nothing more. Before the slots are drained: what a reconciler has just committed is still to be finished."""
        for reconciler in self._reconcilers:
            reconciler.stop()
        if self._reconciling:
            await asyncio.wait(self._reconciling, timeout=JOINED)

    async def _beat(self) -> None:
        """The loop's own sign of life; and a look at the threads that will not end."""
        while True:
            stay(self._pid)
            self._pulse.beat()
            if self._slots.running(_will_not_end) > self._stubborn:
                _log.error("half of the threads run handlers that cannot be stopped: this worker drains and ends with %d", HUNG)
                self.worker.stop(HUNG)
            await asyncio.sleep(PULSE)

    def _warmed(self) -> None:
        """A quarantine child runs: more suspects can be claimed."""
        self._slots.freed.set()

    def _adopted(self, lease: Lease, asked_at: float) -> None:
        """The keeper, in its thread, found work that only needs its finish."""
        lifecycle = self.desk.store.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
        self._slots.coming.append(lease)
        soon(self._loop, self._take_adopted, lease, lifecycle, asked_at)

    def _take_adopted(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        self._slots.coming.remove(lease)
        self.worker.adopt(lease, lifecycle, asked_at)

    def recovered(self, event: Recovered) -> None:
        """The keeper, in its thread, made something due: a database may tell of new jobs only."""
        del event
        soon(self._loop, self.worker.wake)

    def _escaped(self, error: BaseException) -> None:
        self.worker.escape(error)

    def _facts(self) -> WorkerFacts:
        return self.worker.facts()

    def _hung(self, seconds: float) -> None:
        if not self.desk.over.is_set():
            _log.critical("the event loop has not answered for %.0f s: nothing is renewed any more, and the leases recover its jobs", seconds)
            faulthandler.dump_traceback(file=sys.stderr)
            self.desk.over.set()
            # Should the loop answer again: what cannot renew must not claim.
            soon(self._loop, self.worker.stop, HUNG)

    async def close(self) -> None:
        """End every thread that will end. One that runs a handler which cannot be stopped is left behind."""
        await self._quiet()
        self.desk.over.set()
        if self._beating is not None:
            self._beating.cancel()
        await self._children.close()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        end = self.desk.waits.monotonic() + JOINED
        # Looked at rather than joined in a thread: handlers may have taken all that there are.
        while any(thread.is_alive() for thread in self._threads) and self.desk.waits.monotonic() < end:  # noqa: ASYNC110 - no thread tells of its end
            await asyncio.sleep(0.01)


def _will_not_end(grip: Grip) -> bool:
    return grip.stop in ("lost", "runtime") and not grip.doubted and not grip.settling and not grip.declaration.signature.is_async
