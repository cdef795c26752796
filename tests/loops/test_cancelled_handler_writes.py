"""Receipts of a cancelled handler: a write that has begun is completed."""

import asyncio
import threading

import pytest

from interlock import Run
from interlock.worker.assembly import run_worker
from tests.kit import Place
from tests.loops.intercepted_app import InterceptedApp


@pytest.fixture
def shop(place: Place) -> InterceptedApp:
    return InterceptedApp(place)


@pytest.mark.parametrize("when", ["record_effect", "begin_effect"])
def test_rule_23_started_write_completes_if_its_handler_is_cancelled(shop: InterceptedApp, when: str) -> None:
    """An answered call has a receipt; a call that was never made is not in doubt."""
    called: list[int] = []
    held, hold = threading.Event(), threading.Event()

    async def send() -> str:
        called.append(1)
        return "receipt"

    @shop.app.job(lease=5)
    async def work(run: Run) -> str:
        return await run.effect("send", on_doubt="hold")(send)

    async def scene() -> str:
        async with run_worker(shop.plan()) as worker:

            def stop() -> None:
                del shop.intercepted.before[when]
                held.set()
                hold.wait(30)

            shop.intercepted.before[when] = stop
            job = await work.aenqueue()
            await asyncio.to_thread(held.wait, 30)
            worker.stop()
            worker.return_jobs()
            await asyncio.sleep(0)
            hold.set()
        return job.id

    id = asyncio.run(scene())
    receipts = [(one.name, one.applied) for one in shop.app.database.store().receipts.for_job(id)]
    # A claim in progress may have taken the job once more; then that attempt made the call.
    sent = when == "record_effect" or len(shop.app.executions(id)) == 2
    assert (receipts, called) == (([("send", True)], [1]) if sent else ([], []))
    assert shop.app.get(id).phase in ("pending", "succeeded")


def test_rule_23_queued_receipt_is_written_if_its_handler_is_cancelled(
    shop: InterceptedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is answered while another write occupies the only thread."""
    monkeypatch.setattr("interlock.worker.assembly.WRITERS", 1)
    held, hold = threading.Event(), threading.Event()

    async def send() -> str:
        shop.begun.set()
        await shop.go.wait()
        return "receipt"

    @shop.app.job(lease=5)
    async def work(run: Run) -> str:
        return await run.effect("send", on_doubt="hold")(send)

    @shop.app.job(lease=5)
    async def busy(run: Run) -> int:
        return await run.step("one", lambda: 1)

    def keep() -> None:
        held.set()
        hold.wait(30)

    async def scene() -> str:
        async with run_worker(shop.plan()) as worker:
            job = await work.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.intercepted.before["record_step"] = keep
            await busy.aenqueue()
            await asyncio.to_thread(held.wait, 30)
            shop.go.set()
            for _ in range(20):  # loop iterations in which the answer reaches the ledger
                await asyncio.sleep(0)
            worker.stop()
            worker.return_jobs()
            for _ in range(20):
                await asyncio.sleep(0)
            hold.set()
        return job.id

    id = asyncio.run(scene())
    assert [(one.name, one.applied, one.value) for one in shop.app.database.store().receipts.for_job(id)] == [
        ("send", True, '"receipt"')
    ]
