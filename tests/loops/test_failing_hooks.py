"""Hooks that raise block no thread of other jobs, and a stopping worker does not retry them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from interlock import Backoff, Fail, Job, Run, Tx
from interlock.core.sleeper import SystemSleeper
from interlock.telemetry.events import HookFailed
from interlock.worker import unstored
from interlock.worker.assembly import run_worker
from tests.kit import Place
from tests.loops.intercepted_app import InterceptedApp
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder, InstantSleeper


@pytest.fixture
def shop(place: Place) -> InterceptedApp:
    return InterceptedApp(place)


def test_failing_hooks_block_no_thread_of_other_jobs(shop: InterceptedApp) -> None:
    @shop.app.job(lease=3, tries=1, backoff=Backoff(600, jitter=False))
    async def bad(run: Run, n: int) -> None:
        raise ValueError(n)

    @bad.on_enter("FAILED")
    def hook(tx: Tx, job: Any) -> None:
        raise RuntimeError("never")

    @shop.app.job(lease=3)
    async def good(run: Run) -> int:
        return 1

    @good.commit
    def commit(tx: Tx, job: Any, value: int) -> None:
        """Occupy a commit thread."""

    class Slow(InstantSleeper):
        async def asleep(self, seconds: float, /) -> None:
            await (asyncio.Event().wait() if seconds > 60 else asyncio.sleep(0))

    async def scene() -> None:
        plan = replace(shop.plan(), sleeper=Slow(), drain=0.1)
        shop.app.enqueue_many(bad.request(n) for n in range(12))
        async with run_worker(plan) as worker:
            job = await good.aenqueue()
            assert await good.aresult(job.id, timeout=30) == 1
            worker.stop()
            for task in asyncio.all_tasks():
                if "_settle_alone" in repr(task):
                    task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlock.worker.worker.GRACE", 0.1)
        asyncio.run(scene())


@pytest.mark.parametrize("bound", ["MOST_ALONE", "MOST_UNSTORED"])
def test_jobs_whose_hook_is_retried_later_do_not_stop_other_jobs(
    shop: InterceptedApp, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """More of them wait for the retry than outcomes of either sort may wait to be stored."""
    slots, many = 2, 12
    monkeypatch.setattr(unstored, bound, 4)

    @shop.app.job(backoff=Backoff(900, jitter=False))
    async def bad(run: Run, n: int) -> None:
        raise Fail("sold out")

    @bad.on_enter("FAILED")
    def hook(tx: Tx, job: Any) -> None:
        raise RuntimeError("never")

    @shop.app.job()
    async def good(run: Run) -> int:
        return 1

    async def scene() -> None:
        plan = replace(shop.plan(), sleeper=SystemSleeper(), slots=slots)
        shop.app.enqueue_many(bad.request(n) for n in range(many))
        async with run_worker(plan) as worker:
            witness, failed = EventRecorder(shop.app.events), set[str]()
            while len(failed) < many:
                failed.add((await witness.until(HookFailed, lambda event: event.job_id not in failed)).job_id)
            job = await good.aenqueue()
            assert await good.aresult(job.id, timeout=TIME_LIMIT) == 1
            worker.stop()
            worker.return_jobs()

    asyncio.run(scene())


@pytest.mark.parametrize("pause", [0.0, 900.0])
def test_rule_29_failing_hook_is_not_retried_while_the_worker_stops(shop: InterceptedApp, pause: float) -> None:
    """The job stays unchanged until another worker adopts it. The stopping worker does not wait for the backoff."""
    calls: list[str] = []

    @shop.app.job(backoff=Backoff(pause, jitter=False))
    async def work(run: Run) -> None:
        raise Fail("sold out")

    @work.on_enter("FAILED")
    def enter(tx: object, job: Job) -> None:
        calls.append(job.state)
        raise ValueError("odd")

    shop.app.migrate()

    async def scene() -> tuple[str, int, list[tuple[str, str]]]:
        async with run_worker(replace(shop.plan(), sleeper=SystemSleeper())) as worker:
            witness = EventRecorder(shop.app.events)
            job = await work.aenqueue()
            await witness.until(HookFailed)
            worker.stop()
            worker.return_jobs()
            before = len(calls)
        return job.id, before, witness.arrows()

    id, before, arrows = asyncio.run(scene())
    assert len(calls) <= before + (pause == 0)
    assert ("ReportingFailure", "Polling") in arrows
    assert (shop.app.get(id).state, [one.status for one in shop.app.executions(id)]) == ("RUNNING", ["IN_PROGRESS"])
