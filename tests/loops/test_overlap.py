"""Overlap: handlers run while outcomes are stored, and short jobs are claimed in advance."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from interlock import App, Run, Tx
from interlock.store import OpenStore
from interlock.telemetry.events import AttemptEnded, SlotStateChanged
from interlock.worker import prefetch as prefetch_module
from interlock.worker import slot_queue
from interlock.worker import unstored as unstored_module
from interlock.worker import worker as worker_module
from interlock.worker.assembly import run_worker
from interlock.worker.prefetch import HORIZON, MOST_PREFETCHED, Prefetch, death_costs_only_a_try
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder, InterceptedStore

TRIES = 3


class Dock:
    """An app with a short job and a job that waits for a gate."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.gate, self.begun = asyncio.Event(), asyncio.Event()
        self.ran: list[str] = []
        self.now = self.most = 0

        @self.app.job(tries=TRIES)
        async def short(run: Run) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            self.ran.append(run.job_id)

        @self.app.job(tries=TRIES)
        async def long(run: Run) -> None:
            self.begun.set()
            await self.gate.wait()
            self.ran.append(run.job_id)

        self.short, self.long = short, long
        self.app.migrate()
        self.store = self.app.database.store()

    def add_short(self, count: int) -> set[str]:
        return {job.id for job in self.app.enqueue_many([self.short.request() for _ in range(count)])}

    @asynccontextmanager
    async def worker(self, slots: int, store: object = None) -> AsyncGenerator[tuple[Worker, EventRecorder]]:
        """Run a worker whose handlers have been short until now."""
        witness = EventRecorder(self.app.events)
        plan = replace(self.app.plan(), slots=slots, find_store=lambda: cast(OpenStore, store or self.store))
        async with run_worker(plan) as worker:
            for lane in worker._slots.lanes:
                lane.prefetch.handlers_ended(100, HORIZON, worker._context.sleeper.monotonic())
            yield worker, witness

    @asynccontextmanager
    async def one_running_and_some_waiting(self) -> AsyncGenerator[tuple[Worker, EventRecorder, set[str]]]:
        """Run a worker whose only slot is taken by the long job, and that has claimed short jobs in advance."""
        self.long.enqueue()
        short = self.add_short(4)
        async with asyncio.timeout(TIME_LIMIT), self.worker(1) as (worker, witness):
            await self.begun.wait()
            assert {execution.job.id for execution in worker._slots.executions.values()} > short
            try:
                yield worker, witness, short
            finally:
                self.gate.set()


async def rounds(worker: Worker, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until the worker has looked for room this many times."""
    looks, check = asyncio.Semaphore(0), worker._check_health

    def look() -> None:
        looks.release()
        check()

    monkeypatch.setattr(worker, "_check_health", look)
    for _ in range(count):
        await looks.acquire()


@pytest.fixture
def dock(place: Place) -> Iterator[Dock]:
    dock = Dock(place)
    yield dock
    report = dock.app.verify()
    dock.app.close()
    assert report.ok, report


def test_handlers_run_while_a_report_hangs_until_too_many_outcomes_wait(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the worker claims nothing until outcomes are stored. Never do more handlers run than it has slots."""
    slots, jobs, ahead, unstored = 2, 80, 8, 10
    monkeypatch.setattr(worker_module, "HEALTH_CHECK", 0.02)
    monkeypatch.setattr(prefetch_module, "MOST_PREFETCHED", ahead)
    monkeypatch.setattr(unstored_module, "MOST_UNSTORED", unstored - slots)
    intercepted, stored = InterceptedStore(dock.store), threading.Event()

    def hang() -> None:
        stored.wait(TIME_LIMIT)

    intercepted.before["move"] = hang
    ids = dock.add_short(jobs)

    async def scene() -> int:
        async with dock.worker(slots, intercepted) as (worker, witness):
            try:
                await witness.until(SlotStateChanged, lambda _: len(dock.ran) >= unstored)
                await rounds(worker, monkeypatch, 10)
                ran = len(dock.ran)
            finally:
                stored.set()
            done = set[str]()
            while done < ids:
                done.add((await witness.until(AttemptEnded, lambda one: one.job_id not in done)).job_id)
            return ran

    ran = asyncio.run(scene())
    assert slots < unstored <= ran < unstored + slots + ahead
    assert dock.most <= slots
    assert len(dock.ran) == jobs


def test_jobs_claimed_in_advance_return_with_all_tries_when_the_worker_stops(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They return at once, so that another worker can run them while this one drains."""
    monkeypatch.setattr(slot_queue, "LONGEST_WAIT", 10 * TIME_LIMIT)

    async def scene() -> set[str]:
        async with dock.one_running_and_some_waiting() as (worker, witness, short):
            worker.stop()
            returned = set[str]()
            while returned < short:
                event = await witness.until(AttemptEnded, lambda one: one.job_id not in returned)
                assert event.outcome == "lose"
                returned.add(event.job_id)
            for id in short:
                job = dock.app.get(id)
                assert (job.state, job.attempt, job.tries_left) == ("PENDING", 1, TRIES)
                assert job.due_at == job.created_at, "the job lost its place in the queue"
        return short

    short = asyncio.run(scene())
    assert len(dock.ran) == 1
    assert short.isdisjoint(dock.ran)


def test_jobs_claimed_in_advance_return_if_a_job_beside_them_may_crash_the_worker(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is claimed in advance until that job has ended."""
    monkeypatch.setattr(slot_queue, "LONGEST_WAIT", 10 * TIME_LIMIT)

    async def scene() -> None:
        async with dock.one_running_and_some_waiting() as (worker, witness, short):
            slots = worker._slots
            (long,) = (execution for execution in slots.executions.values() if execution.job.id not in short)
            slots.return_endangered()
            assert slots.room("loop", in_advance=True) > 0
            assert len(slots.executions) == 1 + len(short)
            slots.suspects[id(long)] = long
            slots.return_endangered()
            assert slots.room("loop", in_advance=True) == 0
            for id_ in short:
                await witness.until(AttemptEnded, lambda one, id_=id_: one.job_id == id_)
                assert dock.app.get(id_).tries_left == TRIES

    asyncio.run(scene())


def test_jobs_claimed_in_advance_return_if_an_adopted_execution_may_crash_the_worker(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has had another worker, which may have died of it."""
    monkeypatch.setattr(slot_queue, "LONGEST_WAIT", 10 * TIME_LIMIT)

    async def scene() -> None:
        async with dock.one_running_and_some_waiting() as (worker, witness, short):
            spec = dock.long.spec
            dock.long.using(queue="side").enqueue()
            rules = spec.claim_rules(spec.version(dock.store))
            (lease,) = dock.store.queue.claim(worker.name, rules, ["side"], 1)
            worker.take(replace(lease, crashes=1), spec.lifecycle, worker._context.sleeper.monotonic())
            for id_ in short:
                ended = await witness.until(AttemptEnded, lambda one, id_=id_: one.job_id == id_)
                assert ended.outcome == "lose"
                assert dock.app.get(id_).tries_left == TRIES

    asyncio.run(scene())


def test_leases_of_jobs_claimed_in_advance_are_renewed(dock: Dock) -> None:
    async def scene() -> None:
        async with dock.one_running_and_some_waiting() as (worker, _, short):
            before = {id: dock.app.executions(id)[-1].lease_expires_at for id in short}
            await asyncio.to_thread(worker.heartbeat)
            assert all(dock.app.executions(id)[-1].lease_expires_at > before[id] for id in short)

    asyncio.run(scene())


def test_idle_worker_runs_the_jobs_that_another_one_claimed_in_advance_but_could_not_start(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job in the only slot of the first worker takes longer than the ones before it."""
    monkeypatch.setattr(slot_queue, "LONGEST_WAIT", 0.05)

    async def scene() -> None:
        async with dock.one_running_and_some_waiting() as (first, _, short), dock.worker(1):
            for id in short:
                await dock.short.aresult(id, timeout=TIME_LIMIT)
                job = dock.app.get(id)
                assert (job.state, job.attempt, job.tries_left) == ("SUCCEEDED", 2, TRIES)
                reasons = [entry.reason for entry in dock.app.history(id) if entry.event == "lose"]
                assert reasons == ["returned before it started: the worker had no free slot within 1 s"]
            assert len(first._slots.executions) == 1
            assert next(iter(first._slots.lanes)).prefetch.most == 0

    asyncio.run(scene())


def test_as_many_jobs_are_claimed_in_advance_as_handlers_ended_a_moment_ago() -> None:
    """Slots that long handlers occupy start nothing, so the number of slots does not count."""
    ahead = Prefetch(lease=30, allowed=True)
    assert ahead.most == 0
    ahead.handlers_ended(20, seconds=0.1, now=0)
    assert ahead.most == 20
    ahead.handlers_ended(5, seconds=0.1, now=HORIZON / 2)
    assert ahead.most == 25
    ahead.handlers_ended(1, seconds=0.01, now=HORIZON * 1.5)
    assert ahead.most == 25
    ahead.handlers_ended(1, seconds=0.01, now=HORIZON * 4)
    assert ahead.most == 1
    ahead.handlers_ended(10 * MOST_PREFETCHED, seconds=0.1, now=HORIZON * 4)
    assert ahead.most == MOST_PREFETCHED


def test_only_short_handlers_let_a_worker_claim_in_advance() -> None:
    """A job never waits for a slot behind long handlers, because another worker might be idle."""
    ahead = Prefetch(lease=30, allowed=True)
    ahead.handlers_ended(1000, seconds=1, now=1)
    assert ahead.most > 0
    ahead.handlers_ended(1, seconds=HORIZON * 2, now=1)
    assert ahead.most == 0


def test_only_handlers_that_end_after_a_suspension_let_a_worker_claim_in_advance_again() -> None:
    """Otherwise the worker would at once claim as many jobs as had to wait for too long."""
    ahead = Prefetch(lease=30, allowed=True)
    for now in (0.0, HORIZON):
        ahead.handlers_ended(50, seconds=0.1, now=now)
    ahead.suspend()
    assert ahead.most == 0
    ahead.handlers_ended(1, seconds=0.001, now=HORIZON * 1.1)
    assert ahead.most == 1


def test_handlers_count_for_a_shorter_time_if_the_lease_is_short() -> None:
    short, long = Prefetch(lease=1, allowed=True), Prefetch(lease=30, allowed=True)
    for prefetch in (short, long):
        prefetch.handlers_ended(10, seconds=0.01, now=100)
        prefetch.handlers_ended(1, seconds=0.001, now=100 + HORIZON / 2)
    assert (short.most, long.most) == (1, 11)


def test_nothing_is_claimed_in_advance_if_a_lost_worker_could_fail_a_job_that_never_ran() -> None:
    """A job with one try, or of a kind that fails or is held after a lost lease."""
    app = App("sqlite://")

    async def work(run: Run) -> None: ...

    for kind, options in {"safe": {}, "once": {"tries": 1}, "held": {"on_lost_lease": "hold"}}.items():
        app.job(kind=kind, lease=20, **options)(work)
    specs = {kind: app.kinds[kind].spec for kind in app.kinds}
    assert death_costs_only_a_try([specs["safe"]])
    for kind in ("once", "held"):
        assert not death_costs_only_a_try([specs["safe"], specs[kind]])
    prefetch = Prefetch(lease=20, allowed=False)
    prefetch.handlers_ended(100, 1e-6, now=100)
    assert prefetch.most == 0
