"""A worker for tests: it carries out what is due and ends; on the way it can die, or lose its lease, at a named point."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

from ..app import App
from ..boot import Plan, booted
from ..clock import Seconds, seconds
from ..errors import UsageError
from ..job import Job
from ..outcome import Lost
from ..records import Lease
from ..stores import OpenStore
from ..user_code import protected, run
from ..worker.desk import Desk
from ..worker.grip import Grip
from ..worker.points import Point
from ..worker.settle import Item, Settler
from ..worker.worker import Worker
from .clock import KitClock, KitWaits
from .crash import Crashed, Handle

MOST = 1000
ROUNDS = 20
GONE = "crashed://"
"""Where the app of a dead process looks for its database: its verbs, too, can write no more."""


@dataclass(frozen=True)
class _Plot:
    """What is to happen the next time a worker passes a point."""

    verb: str
    at: Point
    kind: str | None
    act: Callable[["_Life", Job], None]

    def fits(self, point: Point, job: Job) -> bool:
        return point == self.at and self.kind in (None, job.kind)


class _Life:
    """One run of a worker, from its start to its end or its death."""

    def __init__(self, app: App[Any], store: OpenStore) -> None:
        self.handle = Handle(store)
        self.died = asyncio.Event()
        self.gone = ExitStack()
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._before = asyncio.all_tasks()

    def die(self, why: Crashed) -> None:
        """From any thread, at once: nothing is written from here on."""
        self.handle.revoked = why
        self.gone.enter_context(self._app.bound_to(GONE))
        self._loop.call_soon_threadsafe(self.died.set)

    async def bury(self) -> None:
        """End what still runs; none of it can write. What will not end is left behind."""
        for _ in range(ROUNDS):
            ours = asyncio.all_tasks() - self._before
            for task in ours:
                task.cancel()
            if ours:
                await asyncio.wait(ours, timeout=0.05)


class KitWorker:
    """The worker of one test. Everything runs in this process, also what would elsewhere run in a child, so that what a test replaces is replaced for it."""

    def __init__(self, app: App[Any], clock: KitClock) -> None:
        self._app = app
        self._clock = clock
        self.waits = KitWaits(clock)
        self._plots: list[_Plot] = []
        self._running: Worker | None = None

    # ------------------------------------------------------------ working
    def run_until_idle(self, *, timeout: Seconds = 60.0) -> int:
        """Carry out all that is due by the test's clock; answers how many attempts ended. `Crashed` if it came to where it was to die."""
        return run(self.arun_until_idle(timeout=timeout))

    async def arun_until_idle(self, *, timeout: Seconds = 60.0) -> int:  # noqa: ASYNC109 - the same verb as `run_until_idle`
        """`run_until_idle` in this event loop."""
        life = _Life(self._app, await asyncio.to_thread(self._app.database.store))
        async with booted(self.plan(life.handle, lambda point, job: self._pass(life, point, job))) as worker:
            self._running = worker
            try:
                return await self._lived(life, worker, seconds(timeout, "timeout"))
            finally:
                self._running = None

    async def _lived(self, life: _Life, worker: Worker, timeout: float) -> int:  # noqa: ASYNC109 - a deadline for the whole
        working, death = protected(worker.run()), protected(life.died.wait())
        ends: list[asyncio.Future[Any]] = [working, death]
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if life.handle.revoked is not None:
            with life.gone:
                await life.bury()
            raise life.handle.revoked
        if working.done():
            return working.result()
        worker.stop()
        worker.release()
        await working
        raise TimeoutError(f"There was still something to do after {timeout:g} s. What ran was given back: does a job enqueue itself, or a handler never end?")

    def beat(self) -> None:
        """From inside a handler: send the sign of life that is due every third of a lease now, and hear what was asked meanwhile, such as to stop."""
        if self._running is None:
            raise UsageError("No worker runs, so nothing beats: call beat() from inside a handler.")
        self._running.beat()

    def plan(self, store: object, points: Callable[[Point, Job], None], **chosen: Any) -> Plan:
        """What the worker is to be: the app's own, without children, and with no time but the test's."""
        plan = self._app.plan(until_idle=True, waits=self.waits, points=points, hung=_ignore, **chosen)
        kinds = {name: replace(kind, process=False) for name, kind in plan.kinds.items()}
        return replace(plan, find_store=lambda: cast("OpenStore", store), kinds=kinds, target=None)

    def _pass(self, life: _Life, point: Point, job: Job) -> None:
        if life.handle.revoked is not None:
            # A dead process begins nothing more, also where the worker would have tried again.
            raise life.handle.revoked
        plot = next((each for each in self._plots if each.fits(point, job)), None)
        if plot is not None:
            self._plots.remove(plot)
            plot.act(life, job)

    # ------------------------------------------------------------ what befalls it
    def crash_at(self, point: Point, *, kind: str | None = None) -> None:
        """The next worker that comes to this point, with a job of this kind or of any, dies there: its run raises `Crashed`."""

        def act(life: _Life, job: Job) -> None:
            why = Crashed(f"The worker died at {point.name}, with job {job.id}, attempt {job.attempt}.")
            life.die(why)
            raise why

        self._plots.append(_Plot("crash_at", point, self._known(kind), act))

    def lose_lease(self, at: Point = Point.IN_PREPARE, *, kind: str | None = None) -> None:
        """The next worker that comes to this point stands still there for longer than its lease, and another takes over what it held.

        What ran is then lost, at the price of a try; what is past its commit stays with the other until that lease, too, has ended.
        """
        if at is Point.IN_COMMIT:
            raise UsageError("No lease is lost at IN_COMMIT: its row is locked there, so that nobody can take it. Name the point before or after.")
        self._plots.append(_Plot("lose_lease", at, self._known(kind), lambda _, job: self._rob(job)))

    def unmet(self) -> list[str]:
        """What was to happen and has not: no worker came by."""
        return [f"{plot.verb}(Point.{plot.at.name})" for plot in self._plots]

    def _known(self, kind: str | None) -> str | None:
        if kind is not None and kind not in self._app.kinds:
            raise UsageError(f"This app has no kind {kind!r}, so no worker ever comes by with one: name one of {', '.join(sorted(self._app.kinds))}.")
        return kind

    def _rob(self, job: Job) -> None:
        store, declarations = self._app.database.store(), {name: kind.declaration for name, kind in self._app.kinds.items()}
        desk = Desk("another#worker", lambda: store, declarations, self._app.plan().transaction, waits=self.waits)
        self._clock.advance(declarations[job.kind].lease + 1)
        settler = Settler(desk)
        for lease in store.adopt(desk.owner, sorted(declarations), declarations[job.kind].lease, MOST):
            if lease.status != "COMMITTED":
                settler.alone(_lost(desk, lease))


def _lost(desk: Desk, lease: Lease) -> Item:
    lifecycle = desk.store.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
    return Item(Grip(lease, desk.kinds[lease.job.kind], lifecycle, asked_at=desk.waits.monotonic()), Lost(), _nothing)


def _nothing(item: Item) -> None:
    """Nobody waits for it."""
    del item


def _ignore(seconds: float) -> None:
    """Time that a test let pass is no sign that its worker hangs."""
    del seconds
