"""Outcomes that wait to be stored: how many there may be, and what becomes of them when the worker stops."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock import App, Job, Run, Tx
from interlock.engine.held_execution import HeldExecution
from interlock.store import OpenStore
from interlock.telemetry.events import SlotStateChanged
from interlock.worker import unstored as unstored_module
from interlock.worker import worker as worker_module
from interlock.worker.assembly import run_worker
from interlock.worker.prefetch import HORIZON
from interlock.worker.slots import Slots
from interlock.worker.unstored import MOST_ALONE, MOST_RETRIED, UnstoredOutcomes
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

    def drain(self, slots: int, scene: Callable[[Worker, EventRecorder], Any], **settings: Any) -> None:
        """Run a worker whose handlers have been short, until the scene has ended."""

        async def main() -> None:
            recorder = EventRecorder(self.app.events)
            plan = replace(self.app.plan(slots=slots, **settings), find_store=lambda: cast(OpenStore, self.store))
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


def test_worker_with_many_slots_may_store_one_outcome_for_each_of_them_at_once() -> None:
    """Otherwise half of its slots would be idle while the handlers of the others are short."""
    for slots, most in ((3, MOST_ALONE), (2 * MOST_ALONE, 2 * MOST_ALONE)):
        unstored = UnstoredOutcomes(slots, may_lose=True)
        executions = [_with_hook() for _ in range(most)]
        for count, execution in enumerate(executions):
            assert unstored.allow_start(count)
            unstored.add(execution)
        assert not unstored.allow_start(most)


def test_too_many_outcomes_whose_hook_has_raised_stop_new_handlers_until_one_is_stored() -> None:
    """They do not count as outcomes that wait to be stored."""
    unstored = UnstoredOutcomes(1, may_lose=False)
    executions = [_with_hook() for _ in range(MOST_RETRIED)]
    for count, execution in enumerate(executions):
        unstored.add(execution)
        assert not unstored.allow_start(count + 1)
        unstored.hook_raised(execution)
        unstored.hook_raised(execution)
        assert unstored.allow_start(count + 1) == (count + 1 < MOST_RETRIED)
    unstored.remove(executions[0])
    assert unstored.allow_start(MOST_RETRIED - 1)


def _with_hook() -> HeldExecution:
    return cast(HeldExecution, SimpleNamespace(spec=SimpleNamespace(settles_alone=True)))


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
    stop = Slots.stop

    def stop_and_open_the_gate(slots: Slots) -> None:
        stop(slots)
        till.gate.set()

    monkeypatch.setattr(Slots, "stop", stop_and_open_the_gate)
    till.drain(JOBS, lambda _, recorder: all_reported(recorder, JOBS), drain=0.0)
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
