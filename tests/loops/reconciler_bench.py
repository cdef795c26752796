"""A bench for reconciler tests: a small external system, jobs handed over to it, and any number of reconcilers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from interlock import Execution, External, Job, Kind, Run
from interlock.core.decide import decide
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import Handed, Outcome, Started
from interlock.engine.context import WorkerContext
from interlock.engine.settle import Settler
from interlock.reconcile.reconciler import Reconciler
from interlock.store.report_types import ExternalWork as Told
from interlock.store.types import Lease
from tests.kit import Place
from tests.loops.handler_bench import DOWNLOAD, STEADY
from tests.loops.maintenance_bench import Bench

MINE = "w1#boot/reconciler"


class ExternalWork:
    """A fake external system: it records its calls, and tests set its answers and what happens during a call."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.asked: list[list[str]] = []
        self.told: list[str] = []
        self.error: BaseException | None = None
        self.rubbish: object = None
        """Returned in place of the known answers."""
        self.meanwhile: list[Callable[[], Awaitable[None] | None]] = []
        """Functions that run once each, in order: one per `ask` or `cancel` call."""

    async def ask(self, ids: Sequence[str]) -> Mapping[str, Any]:
        self.asked.append(list(ids))
        await self._think()
        if self.rubbish is not None:
            return self.rubbish  # type: ignore[return-value] - what a careless function does
        return {id: self.known[id] for id in ids if id in self.known}

    async def cancel(self, id: str) -> None:
        self.told.append(id)
        await self._think()

    async def _think(self) -> None:
        if self.meanwhile:
            happens = self.meanwhile.pop(0)()
            if happens is not None:
                await happens
        if self.error is not None:
            raise self.error


class _Here(Executor):
    """An executor without threads: it runs each function at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


class Ledger:
    """A user's own table, in the same database."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def open(self) -> None:
        self._place.raw("CREATE TABLE {ledger} (job text, what text)")

    def write(self, tx: Any, job: Job, what: object) -> None:
        tx.execute(self._place.raw.words(f"INSERT INTO {{ledger}} VALUES ('{job.id}', '{what}')"))

    @property
    def rows(self) -> list[str]:
        return sorted(str(row[0]) for row in self._place.raw("SELECT what FROM {ledger}"))


class HandoverBench(Bench):
    """An app whose kinds hand their work over. Declare a kind's other functions before the first job is handed over."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.outside = ExternalWork()
        self.committed_here: list[Lease] = []
        self.ledger = Ledger(place)
        self._begun = False
        self.fetch = self.declare("fetch")

    # ------------------------------------------------------------ before
    def declare(
        self,
        name: str,
        lifecycle: Lifecycle = DOWNLOAD,
        *,
        every: float = 15.0,
        batch: int = 100,
        outside: ExternalWork | None = None,
        **options: Any,
    ) -> Any:
        """Declare a kind that hands over its argument, and that is reconciled with its own external system or the
        shared one.
        """

        async def prepare(run: Run, name: str) -> External[str]:
            return External(name)

        kind = self.app.job(kind=name, lifecycle=lifecycle, lease=options.pop("lease", 30), backoff=STEADY, **options)(
            prepare
        )
        kind.reconcile(every=every, batch=batch, grace=60)((outside or self.outside).ask)
        return kind

    def ready(self) -> None:
        if not self._begun:
            self._begun = True
            self.begin()
            self.ledger.open()

    def reconciler(
        self, kind: Kind[..., Any, Any] | None = None, *, owner: str = "w1#boot", context: WorkerContext | None = None
    ) -> Reconciler:
        self.ready()
        spec, context = (kind or self.fetch).spec, context or self.context(owner)
        assert spec.reconcile is not None
        return Reconciler(
            context,
            Settler(context),
            spec,
            spec.reconcile,
            _Here(),
            lambda lease, *_: self.committed_here.append(lease),
        )

    # ------------------------------------------------------------ jobs
    def hand(self, *names: str, kind: Kind[..., Any, Any] | None = None, check_in: float = 0.0) -> list[str]:
        """Create jobs that a worker handed over to the external system under these names; return their ids."""
        self.ready()
        kind = kind or self.fetch
        self.app.enqueue_many([kind.request(name=name) for name in names])
        leases = self.claim(kind, len(names))
        if leases[0].status == "LEASED":
            self._move([(lease, Started(walks=False)) for lease in leases])
            leases = [replace(lease, status="IN_PROGRESS") for lease in leases]
        self._move([(lease, Handed(lease.job.payload["name"], check_in)) for lease in leases])
        of = {lease.job.payload["name"]: list[str]() for lease in leases}
        for lease in leases:
            of[lease.job.payload["name"]].append(lease.job.id)
        return [of[name].pop() for name in names]

    def _move(self, pairs: Sequence[tuple[Lease, Outcome]]) -> None:
        specs = {name: kind.spec for name, kind in self.app.kinds.items()}
        moves = [
            decide(
                specs[lease.job.kind].lifecycle,
                lease.job,
                lease,
                outcome,
                specs[lease.job.kind].policy,
                0.5,
                actor="ann",
            )
            for lease, outcome in pairs
        ]
        assert self.store.transitions.move(moves) == []

    def once(self, reconciler: Reconciler | None = None, *, after: float = 0.0) -> int:
        """Advance the clock, then run the reconciler once."""
        if after:
            self.advance(after)
        return asyncio.run((reconciler or self.reconciler()).run_once())

    # ------------------------------------------------------------ looking
    def get(self, id: str) -> Job:
        return self.store.inspect.get(id)

    def last(self, id: str) -> Execution:
        return self.store.inspect.executions(id)[-1]

    def state(self, id: str) -> str:
        return self.store.inspect.get(id).state

    def walk(self, id: str) -> list[str]:
        """Return every transition of the job, as `event to`."""
        return [
            f"{entry.event} {entry.to_state}"
            for entry in self.store.inspect.history(id)
            if entry.n == 0 and entry.version
        ]

    def remarks(self, id: str) -> list[str]:
        return [entry.event for entry in self.store.inspect.history(id) if entry.n and entry.event != "claim"]

    def next_check(self, id: str) -> float:
        """Return the seconds until the next check."""
        rests = self.last(id)
        assert (rests.lease_owner, rests.next_check_at) == (f"external:{rests.kind}", rests.lease_expires_at)
        return (rests.lease_expires_at - self.store.inspect.now()).total_seconds()

    def told_of(self, kind: str = "fetch") -> Told:
        return next(one for one in self.store.external.work() if one.kind == kind)


class Walking:
    """A sleeper that advances the harbour's clock, and stops its reconciler at a given time."""

    def __init__(self, harbour: HandoverBench, until: float) -> None:
        self.harbour, self.until = harbour, until
        self.reconciler: Reconciler | None = None

    def monotonic(self) -> float:
        return self.harbour.sleeper.monotonic()

    def sleep(self, seconds: float, /) -> None:
        raise AssertionError("the event loop must not sleep synchronously")

    async def asleep(self, seconds: float, /) -> None:
        self.harbour.advance(seconds)
        if self.monotonic() >= self.until and self.reconciler is not None:
            self.reconciler.stop()
