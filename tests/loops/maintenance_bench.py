"""A bench for maintenance tests: an app on a test database, with a clock that only the test advances."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from interlock import App, Job, Kind
from interlock.core.decide import decide
from interlock.core.job import Phase
from interlock.core.outcome import Outcome, Returned
from interlock.engine.context import WorkerContext
from interlock.engine.settle import Settler
from interlock.maintenance.audit_retention import AuditRetention
from interlock.maintenance.maintenance_loop import Maintenance
from interlock.store import OpenStore
from interlock.store.types import Lease
from interlock.telemetry.events import Event, Events
from tests.kit import Place


class SetWaits:
    """A monotonic clock that stands until a test advances it."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float, /) -> None:
        self.at += seconds

    async def asleep(self, seconds: float, /) -> None:
        self.at += seconds


class Bench:
    """One app, its store, and any number of maintenance instances."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.app: App[Any] = App(place.url, schema=place.schema)
        self.app.database.clock = place.clock
        self.sleeper = SetWaits()
        self.events: list[Event] = []
        self.finished: list[Lease] = []
        self.trusted_from: list[float] = []
        self.finish: Callable[[Lease, float], None] = self._finish
        self.room = 1000
        """How many adopted executions can be finished at once."""
        self.up: float | None = None
        """For how long the server has been up."""

    # ------------------------------------------------------------ before
    def begin(self) -> OpenStore:
        """Migrate the database and freeze the clock, after all kinds are declared."""
        self.app.migrate()
        self.place.freeze()
        return self._open()

    def join(self, other: "Bench") -> OpenStore:
        """Do the same on the database of another bench, and share its clock."""
        self.app.migrate()
        self.sleeper = other.sleeper
        return self._open()

    def _open(self) -> OpenStore:
        self.store = self.app.database.store()
        self.store.inspect.uptime = lambda: self.up  # type: ignore[method-assign]
        return self.store

    def advance(self, seconds: float) -> None:
        self.place.clock.advance(seconds)
        self.sleeper.at += seconds

    def context(self, owner: str = "w1#boot") -> WorkerContext:
        kinds = {name: kind.spec for name, kind in self.app.kinds.items()}
        events = Events()
        events.subscribe(self.events.append)
        return WorkerContext(
            owner, self.app.database.store, kinds, events=events, sleeper=self.sleeper, random=lambda: 0.5
        )

    def maintenance(
        self,
        owner: str = "w1#boot",
        *,
        context: WorkerContext | None = None,
        retention: Mapping[Phase, float] | None = None,
        audit_retention: AuditRetention | None = None,
    ) -> Maintenance:
        context = context or self.context(owner)
        return Maintenance(
            context,
            Settler(context),
            self.app.declared_schedules,
            retention or {},
            30.0,
            self.finish,
            lambda: self.room,
            audit_retention,
        )

    def _finish(self, lease: Lease, asked_at: float) -> None:
        self.finished.append(lease)
        self.trusted_from.append(asked_at)

    # ------------------------------------------------------------ jobs
    def claim(self, kind: Kind[..., Any, Any], limit: int = 1, by: str = "ann") -> list[Lease]:
        return self.store.queue.claim(by, kind.spec.claim_rules(kind.spec.version(self.store)), ["default"], limit)

    def held(self, kind: Kind[..., Any, Any], *args: Any, by: str = "ann") -> Lease:
        """Return the lease of a new job of this kind."""
        kind.enqueue(*args)
        (lease,) = self.claim(kind, by=by)
        return lease

    def move(self, lease: Lease, outcome: Outcome) -> None:
        kind = self.app.kinds[lease.job.kind]
        assert (
            self.store.transitions.move(
                [decide(kind.spec.lifecycle, lease.job, lease, outcome, kind.spec.policy, 0.5, actor="ann")]
            )
            == []
        )

    def committed(self, kind: Kind[..., Any, Any]) -> Lease:
        """Return the lease of a job that is committed but not finished."""
        lease = self.held(kind)
        self.move(lease, Returned('"kept"', boundary=True))
        return lease

    def job(self, lease: Lease) -> Job:
        return self.store.inspect.get(lease.job.id)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Timer(threading.Event):
    """A stop event that is set after a number of pauses. It records each pause and runs a function during it."""

    def __init__(self, rounds: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.rounds = rounds
        self.meanwhile = meanwhile
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        self.meanwhile()
        return len(self.pauses) >= self.rounds
