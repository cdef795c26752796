"""Outcomes that wait to be stored: how many there may be, and what becomes of them when the worker stops."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from interlock import App, Job, Run, Tx
from interlock.store import OpenStore
from interlock.telemetry.events import SlotStateChanged
from interlock.worker import unstored as unstored_module
from interlock.worker import worker as worker_module
from interlock.worker.assembly import run_worker
from interlock.worker.prefetch import HORIZON
from interlock.worker.slots import Slots
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.test_overlap import rounds
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder, InterceptedStore

JOBS, SLOTS, UNSTORED = 40, 3, 6


class Till:
    """An app with a commit function, and a store that stores no commit until the gate opens."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.gate, self.ran = threading.Event(), list[str]()

        @self.app.job(**options)
        async def sale(run: Run) -> None:
            self.ran.append(run.job_id)

        @sale.commit
        def book(tx: Tx, job: Job, value: None) -> None: ...

        self.app.migrate()
        self.app.enqueue_many([sale.request() for _ in range(JOBS)])
        self.store = InterceptedStore(self.app.database.store())
        self.store.before = dict.fromkeys(("commit", "commit_group"), self.wait)

    def wait(self) -> None:
        assert self.gate.wait(TIME_LIMIT)

    def drain(self, slots: int, scene: Callable[[Worker, EventRecorder], Any]) -> None:
        """Run a worker whose handlers have been short, until the scene has ended."""

        async def main() -> None:
            recorder = EventRecorder(self.app.events)
            plan = replace(self.app.plan(), slots=slots, find_store=lambda: cast(OpenStore, self.store))
            async with asyncio.timeout(TIME_LIMIT), run_worker(plan) as worker:
                for lane in worker._slots.lanes:
                    lane.prefetch.handlers_ended(JOBS, HORIZON, worker._context.sleeper.monotonic())
                await scene(worker, recorder)

        asyncio.run(main())

    def close(self) -> None:
        self.gate.set()
        report = self.app.verify()
        self.app.close()
        assert report.ok, report


@pytest.fixture
def till(place: Place) -> Iterator[Till]:
    till = Till(place, commit_batch=1)
    yield till
    till.close()


async def all_reported(recorder: EventRecorder, count: int) -> None:
    """Wait until the handlers of this many jobs have ended."""
    ended = set[str | None]()
    while len(ended) < count:
        event = await recorder.until(
            SlotStateChanged, lambda one: one.target == "ReportingSuccess" and one.job_id not in ended
        )
        ended.add(event.job_id)


def test_success_that_a_stopping_worker_cannot_store_returns_its_job_with_all_tries(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stores what it has begun to store. Another one runs the other jobs."""
    monkeypatch.setattr(worker_module, "DRAIN", 0.0)
    stop = Slots.stop

    def stop_and_open_the_gate(slots: Slots) -> None:
        stop(slots)
        till.gate.set()

    monkeypatch.setattr(Slots, "stop", stop_and_open_the_gate)
    till.drain(JOBS, lambda _, recorder: all_reported(recorder, JOBS))
    jobs = till.app.jobs(limit=2 * JOBS)
    returned = [job for job in jobs if job.state == "PENDING"]
    assert {(job.tries_left, job.lease_losses) for job in returned} == {(3, 0)}
    assert 0 < len(returned) < JOBS
    assert len(returned) + sum(job.state == "SUCCEEDED" for job in jobs) == len(jobs) == JOBS


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, SLOTS + UNSTORED), ({"tries": 1}, SLOTS)],
    ids=["a lost job is retried", "a lost job fails"],
)
def test_slow_commit_functions_bound_how_many_jobs_a_worker_has_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], most: int
) -> None:
    """If the worker dies, each job that it has run and not stored loses a try, or fails if that was the last one."""
    monkeypatch.setattr(worker_module, "HEALTH_CHECK", 0.02)
    monkeypatch.setattr(unstored_module, "MOST_ALONE", UNSTORED)
    till, ran = Till(place, **options), list[int]()

    async def scene(worker: Worker, recorder: EventRecorder) -> None:
        try:
            await all_reported(recorder, SLOTS)
            await rounds(worker, monkeypatch, 10)
            ran.append(len(till.ran))
        finally:
            till.gate.set()

    till.drain(SLOTS, scene)
    till.close()
    assert SLOTS <= ran[0] <= most
