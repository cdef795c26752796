"""A worker for tests: it runs all jobs that are due and ends. It can crash, or lose its lease, at a named point."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

from ..app import App
from ..core.clock import Seconds, seconds
from ..core.job import Job
from ..core.outcome import Lost
from ..engine.context import WorkerContext
from ..engine.failpoints import Failpoint
from ..engine.settle import Settler
from ..engine.settlement import Settlement
from ..errors import UsageError
from ..jobs.user_code import protected, run
from ..store import OpenStore
from ..worker.assembly import start_worker
from ..worker.plan import Plan
from ..worker.worker import Worker
from .crash import Crashed, RevocableStore
from .kit_clock import KitClock, KitSleeper

MOST = 1000
ROUNDS = 20
GONE = "crashed://"
"""The database URL of an app whose process has crashed: its methods cannot write either."""


@dataclass(frozen=True)
class _PlannedFault:
    """A crash or a lost lease, planned for the next worker that passes a point."""

    verb: str
    at: Failpoint
    kind: str | None
    act: Callable[["_WorkerRun", Job], None]

    def fits(self, point: Failpoint, job: Job) -> bool:
        return point == self.at and self.kind in (None, job.kind)


class _WorkerRun:
    """One run of a worker, from its start to its end or its crash."""

    def __init__(self, app: App[Any], store: OpenStore) -> None:
        self.store = RevocableStore(store)
        self.died = asyncio.Event()
        self.gone = ExitStack()
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._before = asyncio.all_tasks()

    def die(self, why: Crashed) -> None:
        """Crash now, from any thread: nothing is written after this."""
        self.store.revoked = why
        self.gone.enter_context(self._app.bound_to(GONE))
        self._loop.call_soon_threadsafe(self.died.set)

    async def cancel_tasks(self) -> None:
        """Cancel the tasks that still run; none of them can write. A task that does not end is abandoned."""
        for _ in range(ROUNDS):
            ours = asyncio.all_tasks() - self._before
            for task in ours:
                task.cancel()
            if ours:
                await asyncio.wait(ours, timeout=0.05)


class KitWorker:
    """The worker of one test.

    Everything runs in this process, also kinds with `process=True`, so that patches apply.
    """

    def __init__(self, app: App[Any], clock: KitClock) -> None:
        self._app = app
        self.sleeper = KitSleeper(clock)
        self._faults: list[_PlannedFault] = []
        self._running: Worker | None = None

    # ------------------------------------------------------------ working
    def run_until_idle(self, *, timeout: Seconds = 60.0) -> int:
        """Run all jobs that are due by the test's clock and return the number of attempts.

        `Crashed` at a planned crash.
        """
        return run(self.arun_until_idle(timeout=timeout))

    async def arun_until_idle(self, *, timeout: Seconds = 60.0) -> int:  # noqa: ASYNC109 - the same verb as `run_until_idle`
        """`run_until_idle` in this event loop."""
        worker_run = _WorkerRun(self._app, await asyncio.to_thread(self._app.database.store))
        async with start_worker(
            self.plan(worker_run.store, lambda point, job: self._pass(worker_run, point, job))
        ) as worker:
            self._running = worker
            try:
                return await self._wait_for_end(worker_run, worker, seconds(timeout, "timeout"))
            finally:
                self._running = None

    async def _wait_for_end(self, worker_run: _WorkerRun, worker: Worker, timeout: float) -> int:  # noqa: ASYNC109 - a deadline for the whole
        working, death = protected(worker.run()), protected(worker_run.died.wait())
        ends: list[asyncio.Future[Any]] = [working, death]
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if worker_run.store.revoked is not None:
            with worker_run.gone:
                await worker_run.cancel_tasks()
            raise worker_run.store.revoked
        if working.done():
            return working.result()
        worker.stop()
        worker.return_jobs()
        await working
        raise TimeoutError(
            f"Jobs were still due after {timeout:g} s, and the worker returned the running ones: does a job enqueue "
            "itself, or does a handler never end?"
        )

    def heartbeat(self) -> None:
        """Send a heartbeat now, from inside a handler: it renews leases, stores progress and receives cancel
        requests.
        """
        if self._running is None:
            raise UsageError("No worker is running: call heartbeat() from inside a handler.")
        self._running.heartbeat()

    def plan(self, store: object, failpoints: Callable[[Failpoint, Job], None], **chosen: Any) -> Plan:
        """Return the app's plan, changed for a test: no child processes, and the test's clock."""
        plan = self._app.plan(until_idle=True, sleeper=self.sleeper, failpoints=failpoints, on_hang=_ignore, **chosen)
        kinds = {name: replace(kind, process=False) for name, kind in plan.kinds.items()}
        return replace(plan, find_store=lambda: cast("OpenStore", store), kinds=kinds, target=None)

    def _pass(self, worker_run: _WorkerRun, point: Failpoint, job: Job) -> None:
        if worker_run.store.revoked is not None:
            # A crashed process starts nothing more, even if the worker would retry.
            raise worker_run.store.revoked
        fault = next((each for each in self._faults if each.fits(point, job)), None)
        if fault is not None:
            self._faults.remove(fault)
            fault.act(worker_run, job)

    # ------------------------------------------------------------ planned faults
    def crash_at(self, point: Failpoint, *, kind: str | None = None) -> None:
        """Crash the next worker that reaches this point, with a job of this kind or of any.

        Its run raises `Crashed`.
        """

        def act(worker_run: _WorkerRun, job: Job) -> None:
            why = Crashed(f"The worker died at {point.name}, with job {job.id}, attempt {job.attempt}.")
            worker_run.die(why)
            raise why

        self._faults.append(_PlannedFault("crash_at", point, self._known(kind), act))

    def lose_lease(self, at: Failpoint = Failpoint.IN_PREPARE, *, kind: str | None = None) -> None:
        """Suspend the next worker that reaches this point for longer than its lease, until another takes over its jobs.

        A running job then loses a try. A job after its commit stays with the other worker until that lease has ended.
        """
        if at is Failpoint.IN_COMMIT:
            raise UsageError(
                "No lease is lost at IN_COMMIT, because the job's row is locked there: give BEFORE_COMMIT or "
                "AFTER_COMMIT."
            )
        self._faults.append(_PlannedFault("lose_lease", at, self._known(kind), lambda _, job: self._take_over(job)))

    def unmet(self) -> list[str]:
        """Return the planned faults that no worker has reached."""
        return [f"{fault.verb}(Failpoint.{fault.at.name})" for fault in self._faults]

    def _known(self, kind: str | None) -> str | None:
        if kind is not None and kind not in self._app.kinds:
            raise UsageError(f"This app has no kind {kind!r}: give one of {', '.join(sorted(self._app.kinds))}.")
        return kind

    def _take_over(self, job: Job) -> None:
        store, specs = (
            self._app.database.store(),
            {name: kind.spec for name, kind in self._app.kinds.items()},
        )
        context = WorkerContext(
            "another#worker", lambda: store, specs, self._app.plan().transaction, sleeper=self.sleeper
        )
        self.sleeper.suspend(specs[job.kind].lease + 1)
        settler = Settler(context)
        for lease in store.leases.adopt(context.owner, sorted(specs), specs[job.kind].lease, MOST):
            if lease.status != "COMMITTED":
                settler.settle_one(Settlement(context.execution_of(lease), Lost()))


def _ignore(seconds: float) -> None:
    """Ignore a silent event loop: the test moved the clock."""
    del seconds
