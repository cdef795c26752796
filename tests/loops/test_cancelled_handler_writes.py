"""What a review found, each forced once more: none of it may come back."""

import asyncio
import threading
from dataclasses import replace
from typing import Any, cast

import pydantic
import pytest

from interlock import App, Backoff, Fail, Job, NotMigrated, Run, Tx
from interlock.boot import running
from interlock.events import HookFailed, Renewed, Trouble
from interlock.stores import OpenStore
from interlock.waits import SystemWaits
from tests.kit import Place
from tests.loops.bench import Bench
from tests.loops.watching import Hurry, Meddler, Witness, away, once


class Shop:
    """An app in real time, with someone at its wire."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.ready = False

    def plan(self, **chosen: Any) -> Any:
        self.app.migrate()
        self.meddler = Meddler(self.app.database.store())
        return replace(self.app.plan(), find_store=lambda: cast(OpenStore, self.meddler), waits=Hurry(), **chosen)


@pytest.fixture
def shop(place: Place) -> Shop:
    return Shop(place)


def test_the_renewing_thread_outlives_any_error(shop: Shop) -> None:
    @shop.app.job(lease=1)
    async def wait(run: Run) -> int:
        shop.begun.set()
        await shop.go.wait()
        return 1

    async def scene() -> None:
        async with running(shop.plan()):
            witness = Witness(shop.app.events)
            job = await wait.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.meddler.before["renew"] = once(RuntimeError("read-only"))
            await witness.until(Trouble, lambda trouble: trouble.where == "renew")
            await witness.until(Renewed, after=len(witness.seen))
            shop.go.set()
            assert await wait.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())


def test_a_full_worker_notices_that_its_database_is_well_again(shop: Shop) -> None:
    """One lost renewal, and no slot that comes free: the loop sees to it all the same, or nobody would be recovered."""
    @shop.app.job(lease=3)
    async def wait(run: Run) -> int:
        shop.begun.set()
        await shop.go.wait()
        return 1

    async def scene() -> None:
        async with running(shop.plan(slots=1)) as worker:
            witness = Witness(shop.app.events)
            job = await wait.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.meddler.before["renew"] = once(away())
            await witness.moved("Polling", "ErrorWait")
            await witness.moved("ErrorWait", "Connecting")
            shop.go.set()
            assert await wait.aresult(job.id, timeout=30) == 1
            assert worker.busy <= 1

    asyncio.run(scene())


def test_past_its_commit_a_wish_to_stop_is_void_and_finish_runs(bench: Bench) -> None:
    finished: list[int] = []

    @bench.app.job()
    async def work(run: Run) -> int:
        bench.app.cancel(run.job_id, by="anna")
        bench.worker.beat()
        return 7

    @work.commit
    def commit(tx: Tx, job: Any, value: int) -> None:
        """Something to commit."""

    @work.finish
    async def finish(run: Run, value: int) -> None:
        bench.worker.beat()
        await asyncio.sleep(0)
        assert not run.cancelled
        finished.append(value)

    job = bench.run_one(work)
    assert (job.state, finished) == ("SUCCEEDED", [7])
    assert bench.last(job).error is None


def test_a_measure_that_is_no_number_is_its_handlers_own_fault(bench: Bench) -> None:
    @bench.app.job()
    async def work(run: Run) -> None:
        run.measure("bytes", float("nan"))

    job = bench.run_one(work)
    assert job.state == "FAILED"
    assert "'bytes' is nan" in (job.last_error or "")


def test_a_value_that_raises_while_it_is_stored_costs_its_own_job_a_try(bench: Bench) -> None:
    class Strange(pydantic.BaseModel):
        n: int

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def twice(self) -> int:
            raise ZeroDivisionError

    @bench.app.job(tries=1)
    async def gives(run: Run) -> Strange:
        return Strange(n=1)

    job = bench.run_one(gives)
    assert job.state == "FAILED"
    assert not bench.heard(Trouble)


@pytest.mark.parametrize("when", ["apply", "ask"])
def test_rule_23_a_write_that_was_begun_ends_though_its_handler_is_cancelled(shop: Shop, when: str) -> None:
    """What was answered is known, and what was never called is in no doubt."""
    called: list[int] = []
    held, hold = threading.Event(), threading.Event()

    async def send() -> str:
        called.append(1)
        return "receipt"

    @shop.app.job(lease=5)
    async def work(run: Run) -> str:
        return await run.effect("send", on_doubt="hold")(send)

    async def scene() -> str:
        async with running(shop.plan()) as worker:
            def stop() -> None:
                del shop.meddler.before[when]
                held.set()
                hold.wait(30)

            shop.meddler.before[when] = stop
            job = await work.aenqueue()
            await asyncio.to_thread(held.wait, 30)
            worker.stop()
            worker.release()
            await asyncio.sleep(0)
            hold.set()
        return job.id

    id = asyncio.run(scene())
    receipts = [(one.name, one.applied) for one in shop.app.database.store().receipts(id)]
    # A claim that was under way may have taken it once more: then it was sent there.
    sent = when == "apply" or len(shop.app.executions(id)) == 2
    assert (receipts, called) == (([("send", True)], [1]) if sent else ([], []))
    assert shop.app.get(id).phase in ("pending", "succeeded")


def test_rule_23_a_receipt_that_waits_for_its_turn_is_written_though_its_handler_is_cancelled(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call was answered while another's write had the only thread."""
    monkeypatch.setattr("interlock.boot.WRITERS", 1)
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
        async with running(shop.plan()) as worker:
            job = await work.aenqueue()
            await asyncio.wait_for(shop.begun.wait(), 30)
            shop.meddler.before["remember"] = keep
            await busy.aenqueue()
            await asyncio.to_thread(held.wait, 30)
            shop.go.set()
            for _ in range(20):  # turns of the loop in which the answer comes to the ledger
                await asyncio.sleep(0)
            worker.stop()
            worker.release()
            for _ in range(20):
                await asyncio.sleep(0)
            hold.set()
        return job.id

    id = asyncio.run(scene())
    assert [(one.name, one.applied, one.value) for one in shop.app.database.store().receipts(id)] == [("send", True, '"receipt"')]


def test_jobs_whose_hook_raises_take_no_thread_from_others(shop: Shop) -> None:
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
        """Needs a thread of the commits."""

    class Slow(Hurry):
        async def asleep(self, seconds: float, /) -> None:
            await (asyncio.Event().wait() if seconds > 60 else asyncio.sleep(0))

    async def scene() -> None:
        plan = replace(shop.plan(), waits=Slow())
        shop.app.enqueue_many(bad.call(n) for n in range(12))
        async with running(plan) as worker:
            job = await good.aenqueue()
            assert await good.aresult(job.id, timeout=30) == 1
            worker.stop()
            for task in asyncio.all_tasks():
                if "_settle_alone" in repr(task):
                    task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlock.worker.worker.DRAIN", 0.1)
        patch.setattr("interlock.worker.worker.GRACE", 0.1)
        asyncio.run(scene())


def test_an_embedded_worker_says_at_once_that_its_database_is_not_migrated(place: Place) -> None:
    place.open(real_time=True).migrate([], [])
    app: App[Tx] = App(place.url, schema=place.schema)

    @app.job()
    async def work(run: Run) -> None:
        """Never called."""

    async def scene() -> None:
        async with app.worker():
            raise AssertionError("the block is not entered")

    with pytest.raises(NotMigrated, match="interlock migrate"):
        asyncio.run(scene())


@pytest.mark.parametrize("pause", [0.0, 900.0])
def test_rule_29_a_hook_that_raises_is_not_tried_again_once_what_runs_is_to_be_given_back(shop: Shop, pause: float) -> None:
    """The job is left as it is, to whoever adopts it; a pause that was begun is not waited for."""
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
        async with running(replace(shop.plan(), waits=SystemWaits())) as worker:
            witness = Witness(shop.app.events)
            job = await work.aenqueue()
            await witness.until(HookFailed)
            worker.stop()
            worker.release()
            before = len(calls)
        return job.id, before, witness.arrows()

    id, before, arrows = asyncio.run(scene())
    assert len(calls) <= before + (pause == 0)
    assert ("ReportingFailure", "Polling") in arrows
    assert (shop.app.get(id).state, [one.status for one in shop.app.executions(id)]) == ("RUNNING", ["IN_PROGRESS"])
