"""A failed lease renewal: the worker keeps renewing, and reconnects even if all its slots are busy."""

import asyncio

import pytest

from interlock import Run
from interlock.telemetry.events import Renewed, WorkerError
from interlock.worker.assembly import run_worker
from tests.kit import Place
from tests.loops.intercepted_app import InterceptedApp
from tests.loops.worker_doubles import EventRecorder, away, once


@pytest.fixture
def shop(place: Place) -> InterceptedApp:
    return InterceptedApp(place)


def test_renewal_thread_survives_any_error(shop: InterceptedApp) -> None:
    @shop.app.job(lease=1)
    async def wait(run: Run) -> int:
        shop.begun.set()
        await shop.go.wait()
        return 1

    async def scene() -> None:
        async with run_worker(shop.plan()):
            witness = EventRecorder(shop.app.events)
            job = await wait.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.intercepted.before["renew"] = once(RuntimeError("read-only"))
            await witness.until(WorkerError, lambda trouble: trouble.where == "renew")
            await witness.until(Renewed, after=len(witness.seen))
            shop.go.set()
            assert await wait.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())


def test_full_worker_reconnects_after_a_lost_renewal(shop: InterceptedApp) -> None:
    """Without this, a worker with no free slot would never recover other workers' jobs."""

    @shop.app.job(lease=3)
    async def wait(run: Run) -> int:
        shop.begun.set()
        await shop.go.wait()
        return 1

    async def scene() -> None:
        async with run_worker(shop.plan(slots=1)) as worker:
            witness = EventRecorder(shop.app.events)
            job = await wait.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.intercepted.before["renew"] = once(away())
            await witness.moved("Polling", "ErrorWait")
            await witness.moved("ErrorWait", "Connecting")
            shop.go.set()
            assert await wait.aresult(job.id, timeout=30) == 1
            assert worker.busy <= 1

    asyncio.run(scene())
