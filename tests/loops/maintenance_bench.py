"""A bench for keepers: an app on a test's database, with time that stands still until the test moves it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from interlock import App, Job, Kind
from interlock.events import Event, Events
from interlock.job import Phase
from interlock.keeper.keeper import Keeper
from interlock.move import decide
from interlock.outcome import Outcome, Returned
from interlock.records import Lease
from interlock.stores import OpenStore
from interlock.worker.desk import Desk
from interlock.worker.settle import Settler
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
    """One app, its store, and as many keepers as a test wants."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.app: App[Any] = App(place.url, schema=place.schema)
        self.app.database.clock = place.clock
        self.waits = SetWaits()
        self.events: list[Event] = []
        self.finished: list[Lease] = []
        self.trusted_from: list[float] = []
        self.finish: Callable[[Lease, float], None] = self._finish
        self.room = 1000
        """How many executions of others can be finished at once."""
        self.up: float | None = None
        """For how long the server has been up."""

    # ------------------------------------------------------------ before
    def begin(self) -> OpenStore:
        """The app has declared all: its database is made, and time stands still."""
        self.app.migrate()
        self.place.freeze()
        return self._open()

    def join(self, other: "Bench") -> OpenStore:
        """The same on a database that another bench has begun, whose time is this one's too."""
        self.app.migrate()
        self.waits = other.waits
        return self._open()

    def _open(self) -> OpenStore:
        self.store = self.app.database.store()
        self.store.up_for = lambda: self.up  # type: ignore[method-assign]
        return self.store

    def advance(self, seconds: float) -> None:
        self.place.clock.advance(seconds)
        self.waits.at += seconds

    def desk(self, owner: str = "w1#boot") -> Desk:
        kinds = {name: kind.declaration for name, kind in self.app.kinds.items()}
        events = Events()
        events.subscribe(self.events.append)
        return Desk(owner, self.app.database.store, kinds, events=events, waits=self.waits, draw=lambda: 0.5)

    def keeper(self, owner: str = "w1#boot", *, desk: Desk | None = None, retention: Mapping[Phase, float] | None = None) -> Keeper:
        desk = desk or self.desk(owner)
        return Keeper(desk, Settler(desk), self.app.schedules, retention or {}, 30.0, self.finish, lambda: self.room)

    def _finish(self, lease: Lease, asked_at: float) -> None:
        self.finished.append(lease)
        self.trusted_from.append(asked_at)

    # ------------------------------------------------------------ jobs
    def claim(self, kind: Kind[..., Any, Any], limit: int = 1, by: str = "ann") -> list[Lease]:
        return self.store.claim(by, kind.ways(kind.declaration.version(self.store)), ["default"], limit)

    def held(self, kind: Kind[..., Any, Any], *args: Any, by: str = "ann") -> Lease:
        """A new job of this kind in somebody's hand."""
        kind.enqueue(*args)
        (lease,) = self.claim(kind, by=by)
        return lease

    def move(self, lease: Lease, outcome: Outcome) -> None:
        kind = self.app.kinds[lease.job.kind]
        assert self.store.move([decide(kind.declaration.lifecycle, lease.job, lease, outcome, kind.policy, 0.5, actor="ann")]) == []

    def committed(self, kind: Kind[..., Any, Any]) -> Lease:
        """A job whose holder came past the commit boundary, and no further."""
        lease = self.held(kind)
        self.move(lease, Returned('"kept"', boundary=True))
        return lease

    def job(self, lease: Lease) -> Job:
        return self.store.get(lease.job.id)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Timer(threading.Event):
    """A worker's end that comes after so many pauses. Each is noted, and is time for something to happen."""

    def __init__(self, rounds: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.rounds = rounds
        self.meanwhile = meanwhile
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        self.meanwhile()
        return len(self.pauses) >= self.rounds
