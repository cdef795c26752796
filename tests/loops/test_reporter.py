"""Reports: if one job of a batch fails to settle, the others are still reported, and every slot becomes free."""

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from interlock import Run
from interlock.core.ids import uuid7
from interlock.core.outcome import Advanced, Returned
from interlock.engine.reporter import Reporter
from interlock.engine.settle import Settler
from interlock.engine.settlement import Settlement
from interlock.store.types import Fence, Lease, Refusal
from interlock.telemetry.events import SlotStateChanged, WorkerError
from interlock.testing import KitWorker
from interlock.worker.worker import Worker
from tests.loops.handler_bench import DELIVERY, Bench
from tests.loops.worker_doubles import TIME_LIMIT


def jobs(bench: Bench, count: int) -> list[str]:
    """Enqueue jobs that end at once, all in one batch."""

    @bench.app.job(tries=1)
    async def quick(run: Run) -> str:
        return "fine"

    bench.migrate()
    return [each.id for each in bench.app.enqueue_many([quick.request() for _ in range(count)])]


def freed(bench: Bench) -> bool:
    """Return whether every slot that took a job is free again."""
    moved = bench.heard(SlotStateChanged)
    taken = {event.slot for event in moved if event.target == "Processing"}
    last = {event.slot: event.target for event in moved}
    return bool(taken) and all(last[slot] in ("Polling", "Connecting") for slot in taken)


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), StopIteration()], ids=repr)
def test_error_while_a_batch_is_settled_frees_every_slot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The worker reports the error, and the jobs are recovered when their leases expire."""
    errors, settle = [error], Settler.settle_batch

    def once(self: Settler, items: Sequence[Settlement]) -> None:
        if errors:
            raise errors.pop()
        settle(self, items)

    monkeypatch.setattr(Settler, "settle_batch", once)
    ids = jobs(bench, 5)
    bench.run()
    assert freed(bench)
    assert {event.where for event in bench.heard(WorkerError)} >= {f"job {id}" for id in ids}
    bench.clock.advance(60)
    bench.run()
    assert {bench.app.get(id).phase for id in ids} <= {"succeeded", "failed"}


def test_error_while_one_job_is_settled_alone_frees_its_slot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, settle = [SystemExit(3)], Settler.settle_one

    def once(self: Settler, item: Settlement) -> None:
        if errors:
            raise errors.pop()
        settle(self, item)

    @bench.app.job(tries=2)
    async def booked(run: Run) -> str:
        return "fine"

    @booked.commit
    def book(tx: Any, job: Any, value: str) -> None: ...

    monkeypatch.setattr(Settler, "settle_one", once)
    id = bench.add(booked)
    bench.run()
    assert freed(bench)
    bench.clock.advance(60)
    bench.run()
    assert bench.app.get(id).state == "SUCCEEDED"


def test_error_in_one_refusal_leaves_the_rest_of_the_batch_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the store returns a refusal for a job that was not in the batch."""
    ids, told = jobs(bench, 5), list[str]()

    def broken(self: Settler, item: Settlement, move: Any, refusal: Refusal) -> None:
        told.append(refusal.job_id)
        raise ValueError("broken")

    store, original = bench.store, type(bench.store.transitions).move

    def move(self: Any, moves: Sequence[Any]) -> list[Refusal]:
        refused = [each for each in moves if each.job_id == ids[0] and not told]
        answer = original(self, [each for each in moves if each not in refused])
        strange = (
            [Refusal("00000000-0000-7000-8000-000000000000", 1, 1, "DONE", "succeed", "SUCCEEDED")] if refused else []
        )
        return [*strange, *answer, *(Refusal(each.job_id, 1, 9, "DONE", "succeed", "SUCCEEDED") for each in refused)]

    monkeypatch.setattr(type(store.transitions), "move", move)
    monkeypatch.setattr(Settler, "_handle_refusal", broken)
    bench.run()
    assert told == [ids[0]]
    assert [bench.app.get(id).state for id in ids] == ["RUNNING", *["SUCCEEDED"] * 4]
    assert freed(bench)


class RecordedThread(ThreadPoolExecutor):
    """One thread that records when it gets a batch."""

    def __init__(self, order: list[str]) -> None:
        super().__init__(1)
        self._order = order

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self._order.append("batch begins")
        return super().submit(*args, **kwargs)


def test_next_batch_begins_before_the_callbacks_of_the_previous_one_run() -> None:
    """The database works on one batch while the event loop deals with the other."""
    order, storing, posted = list[str](), asyncio.Event(), threading.Event()

    def execution() -> Any:
        spec, job = SimpleNamespace(settles_alone=False), SimpleNamespace(id=str(uuid7()))
        return SimpleNamespace(spec=spec, job=job, settling=False)

    async def report() -> None:
        loop = asyncio.get_running_loop()

        def settle_batch(batch: Sequence[Settlement]) -> None:
            loop.call_soon_threadsafe(storing.set)
            assert posted.wait(TIME_LIMIT)

        settler: Any = SimpleNamespace(settle_batch=settle_batch)
        with RecordedThread(order) as thread:
            reporter = Reporter(settler, thread, thread)
            reporter.post(
                execution(), Returned("null", boundary=False), lambda _: order.append("callback of the first")
            )
            await asyncio.wait_for(storing.wait(), TIME_LIMIT)
            reporter.post(
                execution(), Returned("null", boundary=False), lambda _: order.append("callback of the second")
            )
            posted.set()
            await reporter.drain()
            assert order == ["batch begins", "batch begins", "callback of the first", "callback of the second"]

    asyncio.run(report())


def test_context_of_a_handler_that_advances_does_not_reach_other_jobs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `advance` begins a batch. The end of the other job joins the next batch of the same task."""
    tenant: contextvars.ContextVar[str | None] = contextvars.ContextVar("tenant", default=None)
    seen, storing, settle = list[tuple[str | None, str | None]](), asyncio.Event(), Settler.settle_batch
    ended = threading.Event()

    @bench.app.job(lifecycle=DELIVERY)
    async def staged(run: Run) -> None:
        tenant.set("of the handler")
        await run.advance("STREAMING")

    @bench.app.job()
    async def other(run: Run) -> None:
        await storing.wait()

    def slowly(self: Settler, items: Sequence[Settlement]) -> None:
        if any(isinstance(item.outcome, Advanced) for item in items):
            items[0].execution.task.get_loop().call_soon_threadsafe(storing.set)  # type: ignore[union-attr]
            assert ended.wait(TIME_LIMIT)
        settle(self, items)

    def note(event: SlotStateChanged) -> None:
        if event.target.startswith("Reporting") and event.job_id == id:
            ended.set()
        if event.why == "stored":
            seen.append((event.job_id, tenant.get()))

    bench.app.events.subscribe(note, SlotStateChanged)
    monkeypatch.setattr(Settler, "settle_batch", slowly)
    bench.add(staged)
    id = bench.add(other)
    bench.run()
    assert [found for job, found in seen if job == id] == [None]


def test_worker_forgets_an_abandoned_job_after_another_worker_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of abandoned jobs does not grow forever. A job whose lease has not expired stays in it."""
    made: list[Worker] = []
    make = Worker.__init__

    def remembered(self: Worker, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        make(self, *args, **kwargs)

    monkeypatch.setattr(Worker, "__init__", remembered)
    recovered = [Fence(str(uuid7()), 1, 1) for _ in range(3)]

    @bench.app.job(queue="side")
    async def broken(run: Run) -> None: ...

    @bench.app.job()
    async def trouble(run: Run) -> None:
        (worker,) = made

        def claimed() -> Lease:
            broken.enqueue()
            (lease,) = bench.store.queue.claim(worker.name, broken.spec.claim_rules(1), ["side"], 1)
            return lease

        # Runs in the worker's claim thread, so that no claim of its own comes in between.
        lease = await worker._connection.call(claimed)
        worker._slots.abandoned |= dict.fromkeys([Fence(lease.job.id, 1, lease.holder), *recovered])
        worker._context.database_down.set()
        await worker._connection.check()

    job = bench.add(trouble)
    KitWorker(bench.app, bench.clock).run_until_idle()
    assert bench.app.get(job).state == "SUCCEEDED"
    (fence,) = made[0]._slots.abandoned
    assert (bench.app.get(fence.job_id).kind, bench.app.get(fence.job_id).state) == ("broken", "RUNNING")
