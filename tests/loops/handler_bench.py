"""A bench for handler tests: an app on one of the stores, a clock that tests set, and a worker that runs until idle."""

from datetime import datetime
from typing import Any

from interlock import App, Backoff, Execution, Job, Kind, Lifecycle
from interlock.store import OpenStore
from interlock.store.types import Receipt
from interlock.telemetry.events import Event
from interlock.testing import KitClock, KitWorker
from tests.contract.kit import LIFECYCLES
from tests.kit import EPOCH, Place

STEADY = Backoff(first=10, factor=2, cap=900, jitter=False)
"""10, 20, 40 … seconds."""
AT_ONCE = Backoff(first=0)
DELIVERY, DOWNLOAD, IMAGE = (LIFECYCLES[name] for name in ("delivery", "download", "image"))


class Bench:
    """Declare kinds on `bench.app`; the first job migrates its database.

    A second bench on the same place acts as another program that runs at the same time.
    """

    def __init__(self, place: Place, app: App[Any] | None = None) -> None:
        self.place = place
        self.clock: KitClock = place.clock if isinstance(place.clock, KitClock) else KitClock(EPOCH)
        place.clock = self.clock  # type: ignore[assignment] - a settable clock, too
        self.app: App[Any] = app or App(place.url, schema=place.schema)
        self.app.database.clock = self.clock
        self.worker = KitWorker(self.app, self.clock)
        self.seen: list[Event] = []
        self.app.events.subscribe(self.seen.append)
        self._migrated = False

    # ------------------------------------------------------------ making and running
    def add(self, kind: Kind[..., Any, Any], *args: Any, **kwargs: Any) -> str:
        """Enqueue a job and return its id."""
        self.migrate()
        return kind.enqueue(*args, **kwargs).id

    def migrate(self) -> None:
        if not self._migrated:
            self._migrated = True
            self.app.migrate()
            if self.clock.on_change is None:
                self.place.freeze()

    def run(self) -> int:
        """Run all jobs that are due."""
        return self.worker.run_until_idle(timeout=30)

    def run_one(self, kind: Kind[..., Any, Any], *args: Any, **kwargs: Any) -> Job:
        """Enqueue one job, run all jobs that are due, and return it."""
        id = self.add(kind, *args, **kwargs)
        self.run()
        return self.app.get(id)

    def again(self, job: Job, after: float = 0.0) -> Job:
        """Advance the clock, run all jobs that are due, and return the job."""
        if after:
            self.clock.advance(after)
        self.run()
        return self.app.get(job.id)

    # ------------------------------------------------------------ looking
    @property
    def store(self) -> OpenStore:
        return self.app.database.store()

    def now(self) -> datetime:
        return self.clock.now()

    def wait_of(self, job: Job) -> float:
        """Seconds until the job is due."""
        return (job.due_at - self.now()).total_seconds()

    def last(self, job: Job) -> Execution:
        return self.app.executions(job.id)[-1]

    def statuses(self, job: Job) -> list[str]:
        return [each.status for each in self.app.executions(job.id)]

    def walk(self, job: Job) -> list[str]:
        """Return every transition of the job, as `event to`."""
        return [
            f"{entry.event} {entry.to_state}" for entry in self.app.history(job.id) if entry.n == 0 and entry.version
        ]

    def remarks(self, job: Job) -> list[tuple[str, str | None]]:
        return [(entry.event, entry.reason) for entry in self.app.history(job.id) if entry.n]

    def receipt(self, job: Job, name: str) -> Receipt | None:
        return next((each for each in self.store.receipts.for_job(job.id) if each.name == name), None)

    def heard(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    def close(self) -> None:
        """Verify that the database is consistent, whatever the test did, and close the app."""
        if self._migrated:
            report = self.app.verify()
            assert report.ok, report
        self.app.close()


__all__ = ["AT_ONCE", "DELIVERY", "DOWNLOAD", "IMAGE", "STEADY", "Bench", "Lifecycle"]
