"""Recycling: a worker or a child process that has reached a limit makes room for a new process."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from interlock import SyncRun, UsageError
from interlock.telemetry.events import DatabaseReachable, Notice, WorkerError, WorkerStateChanged
from interlock.worker import recycle
from interlock.worker.assembly import run_until_idle
from interlock.worker.poll_backoff import PollBackoff
from interlock.worker.recycle import RecycleLimits, format_size, resident_memory
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops import child_app
from tests.loops.gated_app import GatedApp
from tests.loops.test_children import TARGET, Bench, bench, shared
from tests.loops.worker_doubles import away

__all__ = ["bench", "shared"]
MEBIBYTE = 1 << 20


@pytest.fixture
def gated(place: Place) -> Iterator[GatedApp]:
    gated = GatedApp(place)
    yield gated
    gated.close()


async def stopped(worker: Worker) -> None:
    """Wait until a recycled worker stops by itself."""
    await worker._stopping.wait()


# ---------------------------------------------------------------- the number of jobs
@pytest.mark.parametrize("slots", [1, 3, 100])
def test_worker_alone_runs_no_more_jobs_than_its_limit(gated: GatedApp, slots: int) -> None:
    """It ends by itself. The other jobs wait for another worker."""
    gated.app.enqueue_many(gated.quick.request() for _ in range(12))

    async def scene() -> None:
        async with gated.worker(slots=slots, limits=RecycleLimits(max_jobs=5)) as (worker, recorder):
            said = await recorder.until(Notice)
            await recorder.moved("Recovery", "Polling")
            await stopped(worker)
        assert said.sentence == (
            "recycled: it has started 5 jobs (--max-jobs 5); the worker claims no more jobs and ends when running jobs finish"
        )

    asyncio.run(scene())
    states = [job.state for job in gated.jobs("quick")]
    assert (states.count("SUCCEEDED"), states.count("PENDING")) == (5, 7)


def test_recycled_worker_lets_running_jobs_end(gated: GatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take: the drain time counts from a request to stop. It claims no other job meanwhile, and ends
    as soon as the last one has ended, not at its next poll.
    """
    monkeypatch.setattr(PollBackoff, "next", lambda *_, **__: 3600.0)

    async def scene() -> None:
        async with gated.worker(drain=0, limits=RecycleLimits(max_jobs=1)) as (worker, recorder):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            await gated.quick.aenqueue()
            known = len(recorder.seen)
            for _ in range(3):
                # Rounds of the loop, each of which would claim the job.
                worker.wake()
                await recorder.until(WorkerStateChanged, lambda one: one.target == "Idle", after=known)
                known = len(recorder.seen)
            assert worker.retiring
            assert not worker.stopping
            assert [job.state for job in gated.jobs("quick")] == ["PENDING"]
            gated.gate.set()
            await stopped(worker)
        (job,) = gated.jobs("gated")
        assert (job.state, job.attempt) == ("SUCCEEDED", 1)
        assert [job.state for job in gated.jobs("quick")] == ["PENDING"]

    asyncio.run(scene())


def test_signal_ends_a_recycled_worker_after_the_drain_time(gated: GatedApp) -> None:
    """The job returns to the queue with its tries."""

    async def scene() -> None:
        async with gated.worker(drain=0, limits=RecycleLimits(max_jobs=1)) as (worker, _):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            assert worker.retiring
            worker.stop()
        (job,) = gated.jobs("gated")
        assert (job.state, job.tries_left) == ("PENDING", 3)

    asyncio.run(scene())


def test_recycled_worker_survives_an_outage(gated: GatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """It connects again while its last job runs, and stores the result of the job."""
    monkeypatch.setattr("interlock.worker.worker.ERROR_WAIT", 0.01)

    async def scene() -> None:
        async with gated.worker(limits=RecycleLimits(max_jobs=1)) as (worker, recorder):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            gated.intercepted.before["now"] = lambda: (_ for _ in ()).throw(away())
            worker._context.database_down.set()
            worker.wake()
            await recorder.until(WorkerError)
            assert worker.state in ("ErrorWait", "Connecting")
            del gated.intercepted.before["now"]
            await recorder.until(DatabaseReachable)
            gated.gate.set()
            await stopped(worker)
        assert [job.state for job in gated.jobs("gated")] == ["SUCCEEDED"]

    asyncio.run(scene())


def test_recycled_worker_does_not_wait_for_a_handler_that_cannot_be_stopped(
    gated: GatedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `max_runtime` is over, and its thread may never return."""
    monkeypatch.setattr("interlock.worker.worker.GRACE", 0.05)
    begun, gate = threading.Event(), threading.Event()

    @gated.app.job(max_runtime=0.1)
    def stuck(run: SyncRun) -> None:
        begun.set()
        gate.wait(30)

    gated.app.migrate()

    async def scene() -> None:
        try:
            async with gated.worker(drain=0.05, limits=RecycleLimits(max_jobs=1)) as (worker, _):
                await stuck.aenqueue()
                await asyncio.to_thread(begun.wait, 30)
                await stopped(worker)
        finally:
            gate.set()

    asyncio.run(scene())


def test_worker_that_is_to_be_replaced_works_until_it_retires(gated: GatedApp) -> None:
    """It reports its limit once. So no moment is without a worker that claims jobs."""
    gated.app.enqueue_many(gated.quick.request() for _ in range(30))
    limits = list[str]()

    async def scene() -> None:
        async with gated.worker(slots=3, limits=RecycleLimits(max_jobs=5), on_limit=limits.append) as (worker, _):
            for job in gated.jobs("quick"):
                await gated.quick.aresult(job.id, timeout=30)
            assert limits == ["it has started 5 jobs (--max-jobs 5)"]
            assert not worker.retiring
            worker.retire("its replacement is ready")
            await gated.quick.aenqueue()
            await stopped(worker)
        assert sum(job.state == "PENDING" for job in gated.jobs("quick")) == 1

    asyncio.run(scene())


# ---------------------------------------------------------------- memory
def test_worker_that_uses_too_much_memory_is_recycled(gated: GatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit, it goes on."""
    used = [100 * MEBIBYTE]
    monkeypatch.setattr(recycle, "resident_memory", lambda: used[0])

    async def scene() -> None:
        async with gated.worker(limits=RecycleLimits(max_memory=100 * MEBIBYTE)) as (worker, recorder):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            await recorder.until(WorkerStateChanged, lambda one: one.target == "Idle", after=len(recorder.seen))
            assert not worker.retiring
            used[0] += MEBIBYTE
            said = await recorder.until(Notice)
            assert said.sentence.startswith("recycled: it uses 101M of memory (--max-memory 100M); ")
            gated.gate.set()
            await stopped(worker)
        assert [job.state for job in gated.jobs("gated")] == ["SUCCEEDED"]

    asyncio.run(scene())


def test_memory_is_what_the_process_uses_now() -> None:
    before = resident_memory()
    block = bytearray(64 * MEBIBYTE)
    grown = resident_memory()
    del block
    assert 60 * MEBIBYTE < grown - before < 200 * MEBIBYTE
    assert resident_memory() < grown - 32 * MEBIBYTE


def test_limits_below_one_are_refused(gated: GatedApp) -> None:
    for limits, says in (
        (RecycleLimits(max_jobs=0), "max_jobs is 0: it must be at least 1."),
        (RecycleLimits(max_memory=-5), "max_memory is -5: it must be at least 1."),
    ):
        with pytest.raises(UsageError, match=says):
            gated.app.plan(limits=limits).checked()


# ---------------------------------------------------------------- child processes
def test_child_is_replaced_after_its_limit_of_jobs(bench: Bench) -> None:
    """A worker's own limit does not count the jobs of its children."""
    bench.children, before = bench.open(TARGET, RecycleLimits(max_jobs=2)), bench.children
    pids = [bench.pid() for _ in range(5)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert len({pids[0], pids[2], pids[4]}) == 3
    bench.run(bench.children.close())
    bench.children = before


def test_child_that_uses_too_much_memory_is_replaced(bench: Bench) -> None:
    """It is measured when its job has ended. Below the limit, it stays."""
    before = bench.children
    bench.children = bench.open(TARGET, RecycleLimits(max_memory=MEBIBYTE))
    assert bench.pid() != bench.pid()
    bench.run(bench.children.close())
    bench.children = bench.open(TARGET, RecycleLimits(max_memory=1 << 40))
    assert bench.pid() == bench.pid()
    (child,) = bench.children._living
    assert 10 * MEBIBYTE < child.memory < 1 << 40
    bench.run(bench.children.close())
    bench.children = before


def test_worker_does_not_count_the_jobs_of_its_children(shared: Bench) -> None:
    """Each process counts the jobs that it runs."""
    child_app.app.enqueue_many(child_app.add.request(1, 1) for _ in range(5))
    plan = child_app.app.plan(only=["add"], until_idle=True, limits=RecycleLimits(max_jobs=3), child_processes=1)
    assert asyncio.run(run_until_idle(replace(plan, target=TARGET), 30)) == 5


def test_sizes_are_written_as_people_give_them() -> None:
    """A small limit is not 0M."""
    sizes = [512, 1 << 10, 64 << 10, 1 << 20, 3 << 19, 5 << 20, 43_700_000, 2 << 30]
    assert [format_size(size) for size in sizes] == ["0.5K", "1K", "64K", "1M", "1.5M", "5M", "42M", "2,048M"]
