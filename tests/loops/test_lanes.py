"""Lanes: sync handlers wait for a thread without delaying async ones, and both are claimed in advance."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from interlock import App, Run, SyncRun, Tx
from interlock.core.lifecycle import builtin
from interlock.engine.held_execution import HeldExecution
from interlock.telemetry.events import AttemptEnded, Claimed
from interlock.worker.assembly import run_worker
from interlock.worker.capacity import Capacity
from interlock.worker.lanes import Lanes, Runner
from interlock.worker.prefetch import HORIZON
from interlock.worker.slot_queue import LONGEST_WAIT, SlotQueue
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder


class Mill:
    """An app with a short async job, a short sync job, and a sync job that waits for a gate."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.gate, self.begun, self.counting = threading.Event(), threading.Event(), threading.Lock()
        self.ran: list[str] = []
        self.now = self.most = 0

        @self.app.job()
        async def quick(run: Run) -> None:
            self.ran.append(run.job_id)

        @self.app.job()
        def threaded(run: SyncRun) -> None:
            with self.counting:
                self.now += 1
                self.most = max(self.most, self.now)
            self.ran.append(run.job_id)
            with self.counting:
                self.now -= 1

        @self.app.job()
        def blocked(run: SyncRun) -> None:
            self.begun.set()
            assert self.gate.wait(TIME_LIMIT)

        self.quick, self.threaded, self.blocked = quick, threaded, blocked
        self.app.migrate()

    @asynccontextmanager
    async def worker(self, *, slots: int, threads: int) -> AsyncGenerator[tuple[Worker, EventRecorder]]:
        """Run a worker whose handlers have been short until now."""
        recorder = EventRecorder(self.app.events)
        async with (
            asyncio.timeout(TIME_LIMIT),
            run_worker(replace(self.app.plan(), slots=slots, threads=threads)) as worker,
        ):
            for lane in worker._slots.lanes:
                lane.prefetch.handlers_ended(100, HORIZON, worker._context.sleeper.monotonic())
            yield worker, recorder


@pytest.fixture
def mill(place: Place) -> Iterator[Mill]:
    mill = Mill(place)
    yield mill
    report = mill.app.verify()
    mill.app.close()
    assert report.ok, report


def test_short_sync_handlers_are_claimed_in_advance_and_run_only_in_free_threads(mill: Mill) -> None:
    jobs, threads = 200, 2
    ids = {job.id for job in mill.app.enqueue_many(mill.threaded.request() for _ in range(jobs))}

    async def scene() -> list[int]:
        async with mill.worker(slots=10, threads=threads) as (_, recorder):
            left = set(ids)
            while left:
                left.discard((await recorder.until(AttemptEnded, lambda one: one.job_id in left)).job_id)
            return [event.count for event in recorder.seen if isinstance(event, Claimed) and event.count]

    claims = asyncio.run(scene())
    assert sum(claims) == len(mill.ran) == jobs
    assert len(claims) < jobs / threads / 4
    assert 1 <= mill.most <= threads


def test_async_jobs_run_while_sync_jobs_wait_for_a_thread(mill: Mill) -> None:
    async def scene() -> None:
        mill.blocked.enqueue()
        async with mill.worker(slots=10, threads=1) as (worker, _):
            await asyncio.to_thread(mill.begun.wait, TIME_LIMIT)
            waiting = [mill.threaded.enqueue() for _ in range(4)]
            quick = mill.quick.enqueue()
            await mill.quick.aresult(quick.id, timeout=TIME_LIMIT)
            assert mill.ran == [quick.id]
            assert worker._slots.busy < 10
            mill.gate.set()
            for job in waiting:
                await mill.threaded.aresult(job.id, timeout=TIME_LIMIT)

    try:
        asyncio.run(scene())
    finally:
        mill.gate.set()


def test_async_job_starts_in_a_free_slot_although_many_sync_jobs_wait_for_a_thread(mill: Mill) -> None:
    """More of them wait than the worker has slots, and handlers of async jobs are not known to be short."""

    async def scene() -> None:
        mill.blocked.enqueue()
        async with mill.worker(slots=3, threads=1) as (worker, recorder):
            await asyncio.to_thread(mill.begun.wait, TIME_LIMIT)
            next(iter(worker._slots.lanes)).prefetch.suspend()
            mill.app.enqueue_many([mill.threaded.request() for _ in range(10)])
            await recorder.until(Claimed, lambda _: worker._slots.lanes.waiting == 10)
            # The next claim may already have reserved the two free slots.
            assert (worker._slots._running, worker._slots.lanes.starting) == (1, 0)
            quick = mill.quick.enqueue()
            await mill.quick.aresult(quick.id, timeout=TIME_LIMIT)
            assert mill.ran == [quick.id]
            mill.gate.set()

    try:
        asyncio.run(scene())
    finally:
        mill.gate.set()


def test_execution_that_has_waited_longest_starts_first_if_its_lane_is_free() -> None:
    """So neither lane takes every slot that becomes free."""

    async def scene() -> None:
        lanes = Lanes(2, 1, 30.0, lambda _: None, contextvars.copy_context(), prefetches=True)
        order = [_waiting(is_async=is_async) for is_async in (True, False, True, False)]
        for number, execution in enumerate(order):
            lanes.of(execution).queue.add(execution)
            execution.queued_at = number
        assert [lanes.next(), lanes.next()] == order[:2]
        lanes.of(order[1]).running = 1
        assert [lanes.next(), lanes.next()] == [order[2], None]
        lanes.of(order[1]).running = 0
        assert lanes.next() is order[3]

    asyncio.run(scene())


def test_jobs_that_wait_for_a_thread_leave_the_other_slots_free() -> None:
    async def scene() -> None:
        lanes = Lanes(10, 2, 30.0, lambda _: None, contextvars.copy_context(), prefetches=True)
        for _ in range(50):
            lanes.of(_waiting(is_async=False)).queue.add(_waiting(is_async=False))
        assert (lanes.waiting, lanes.starting) == (50, 2)
        lanes.of(_waiting(is_async=False)).running = 2
        assert (lanes.waiting, lanes.starting) == (50, 0)

    asyncio.run(scene())


def test_each_runner_may_claim_one_job_while_short_handlers_take_every_slot() -> None:
    """No other runner claims without a free slot, because its job would wait behind long handlers."""

    async def scene() -> None:
        lanes = Lanes(8, 2, 30.0, lambda _: None, contextvars.copy_context(), prefetches=True)
        loop, threads = lanes
        loop.running = 8
        runners: list[Runner] = ["loop", "threads", "processes"]
        assert [lanes.room(runner, 0, in_advance=True) for runner in runners] == [0, 0, 0]
        loop.prefetch.handlers_ended(20, seconds=HORIZON, now=0)
        assert [lanes.room(runner, 0, in_advance=True) for runner in runners] == [20, 1, 1]
        assert [lanes.room(runner, 0, in_advance=False) for runner in runners] == [0, 0, 0]
        assert [lanes.room(runner, 4, in_advance=True) for runner in runners] == [20, 2, 4]
        threads.queue.add(_waiting(is_async=False))
        assert lanes.room("threads", 0, in_advance=True) == 0
        threads.queue.next()
        threads.running = 2
        assert lanes.room("threads", 0, in_advance=True) == 0

    asyncio.run(scene())


def test_sync_job_starts_before_the_end_of_a_backlog_of_async_jobs(mill: Mill) -> None:
    """Async jobs take every slot as soon as it is free, and sync handlers are not known to be short."""
    backlog = 3000
    mill.app.enqueue_many([mill.quick.request() for _ in range(backlog)])

    async def scene() -> str:
        async with mill.worker(slots=2, threads=1) as (worker, recorder):
            _, threads = worker._slots.lanes
            threads.prefetch.suspend()
            await recorder.until(Claimed, lambda _: worker._slots.lanes.waiting > 20)
            late = mill.threaded.enqueue()
            await recorder.until(AttemptEnded, lambda one: one.job_id == late.id)
            return late.id

    assert mill.ran.index(asyncio.run(scene())) < backlog


def test_jobs_that_have_waited_too_long_return_even_behind_jobs_on_their_last_try() -> None:
    """Jobs on their last try come first, so the first one need not have waited longest."""

    async def scene() -> None:
        late = list[bool]()
        queue = SlotQueue(lambda: late.append(True), contextvars.copy_context())
        old, last = _waiting(is_async=True), _waiting(is_async=True, tries_left=1)
        queue.add(old)
        queue.add(last)
        assert queue.first is last
        queue._check()
        assert not late
        old.queued_at -= LONGEST_WAIT
        queue._check()
        assert late == [True]
        assert queue.remove_unstarted(late=True) == [old]
        assert queue.remove_unstarted() == [last]

    asyncio.run(scene())


def test_jobs_on_their_last_try_start_before_the_others_and_in_order_of_arrival() -> None:
    """So none of them waits for as long as newer ones arrive."""

    async def scene() -> None:
        queue = SlotQueue(lambda: None, contextvars.copy_context())
        ordinary = [_waiting(is_async=True) for _ in range(2)]
        last = [_waiting(is_async=True, tries_left=1) for _ in range(3)]
        for execution in (ordinary[0], *last[:2], ordinary[1], last[2]):
            queue.add(execution)
        assert len(queue) == 5
        assert [queue.next() for _ in range(5)] == [*last, *ordinary]
        assert queue.first is None

    asyncio.run(scene())


def _waiting(*, is_async: bool, tries_left: int = 3) -> HeldExecution:
    spec = SimpleNamespace(process=False, signature=SimpleNamespace(is_async=is_async))
    job = SimpleNamespace(lease_losses=0, tries_left=tries_left, state="RUNNING")
    execution = SimpleNamespace(
        spec=spec, job=job, status="IN_PROGRESS", separate_process=False, queued_at=0.0, lifecycle=builtin("standard")
    )
    return cast(HeldExecution, execution)


def test_handlers_in_child_processes_are_not_claimed_in_advance() -> None:
    app = App("sqlite://")

    @app.job()
    async def quick(run: Run) -> None: ...

    @app.job(process=True)
    def heavy(run: SyncRun) -> None: ...

    rules = [rule for kind in app.kinds.values() for rule in kind.spec.claim_rules(1)]
    capacity = Capacity({name: kind.spec for name, kind in app.kinds.items()}, _FreeSlots(), _Processes())
    groups = capacity.split(rules, in_advance=True)
    assert {group[0].kind: capacity.room(group, in_advance=True) for group in groups} == {"quick": 20, "heavy": 2}


class _FreeSlots:
    free = 4

    def room(self, runner: Runner, *, in_advance: bool) -> int:
        assert in_advance
        return 4 if runner == "processes" else 20

    def running(self, chosen: object) -> int:
        return 0

    running_suspects = running


class _Processes:
    importable = warm = True
    most, most_alone = 2, 1
