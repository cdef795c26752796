"""Slots: a worker never runs more jobs at once than it has slots, wherever they come from."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest

from interlock import App, Completed, External, Run, SyncRun, Tx
from interlock.core.decide import decide
from interlock.core.outcome import CancelRequested, Outcome, Requeued, Returned
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution, Stop
from interlock.engine.reporter import Reporter
from interlock.engine.settle import Settler
from interlock.store import OpenStore
from interlock.store.types import Lease
from interlock.telemetry.events import AttemptEnded, SlotStateChanged, WorkerStateChanged
from interlock.worker.assembly import run_worker
from interlock.worker.attempt import Attempts
from interlock.worker.lost_claims import return_lost_claims
from interlock.worker.plan import Plan
from interlock.worker.subprocess.children import Children
from tests.kit import Place
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder, InterceptedStore

MANY = 40


class Shop:
    """An app that counts how many of its functions run at once."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.now = self.most = 0
        self.gate: asyncio.Event | None = None
        """If set, functions wait for it."""
        self.crowd, self.crowded = 1, asyncio.Event()
        """Set when this many functions run at once."""
        self.finished: dict[str, int] = {}
        self.adopted: list[int] = []

        @self.app.job(lease=30)
        async def bill(run: Run, n: int) -> int:
            await self.enter()
            return n

        @bill.finish
        async def tell(run: Run, value: int) -> None:
            await self.enter()
            self.finished[run.job_id] = value

        @self.app.job(lease=30)
        async def order(run: Run, n: int) -> External[int]:
            return External(str(n))

        @order.reconcile(every=0.1)
        async def ask(ids: Sequence[str]) -> Mapping[str, Completed[int]]:
            return {id: Completed(int(id)) for id in ids}

        @order.finish
        async def thank(run: Run, value: int) -> None:
            await self.enter()
            self.finished[run.job_id] = value

        @self.app.job(lease=30)
        def sum_up(run: SyncRun, n: int) -> int:
            return n

        @self.app.job(lease=30)
        async def suspect(run: Run, n: int) -> tuple[int, int]:
            before = self.now
            await self.enter()
            return before, self.now

        self.bill, self.order, self.sum_up, self.suspect = bill, order, sum_up, suspect
        self.app.migrate()
        self.store = self.app.database.store()

    async def enter(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self.crowd:
            self.crowded.set()
        if self.gate is not None:
            await self.gate.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1

    def committed_by_the_dead(self, count: int) -> set[str]:
        """Create committed executions whose worker died before it finished them; return their job ids."""
        spec = self.bill.spec
        claim_rules = [replace(rule, lease=0.0) for rule in spec.claim_rules(spec.version(self.store))]
        self.app.enqueue_many([self.bill.request(n) for n in range(count)])
        leases = self.store.queue.claim("dead#1", claim_rules, ["default"], count)
        moves = [
            decide(
                spec.lifecycle,
                lease.job,
                lease,
                Returned("1", boundary=True),
                spec.policy,
                0.5,
                actor="dead#1",
            )
            for lease in leases
        ]
        assert (len(leases), self.store.transitions.move(moves)) == (count, [])
        return {lease.job.id for lease in leases}

    def plan(self, slots: int) -> Plan:
        """Return the plan of a worker with this many slots; record how many executions it adopts at once."""
        adopt, intercepted = self.store.leases.adopt, InterceptedStore(self.store)

        def noted(*args: Any, **kwargs: Any) -> list[Lease]:
            leases = adopt(*args, **kwargs)
            self.adopted.append(len(leases))
            return leases

        intercepted.leases.adopt = noted  # type: ignore[attr-defined]
        return replace(self.app.plan(), find_store=lambda: cast(OpenStore, intercepted), slots=slots)


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    shop = Shop(place)
    yield shop
    shop.app.close()


async def work(shop: Shop, count: int, plan: Plan) -> None:
    """Run a worker until this many attempts have ended."""
    async with run_worker(plan):
        witness = EventRecorder(shop.app.events)
        await witness.until(
            AttemptEnded, lambda _: sum(isinstance(event, AttemptEnded) for event in witness.seen) >= count
        )


def test_worker_finishes_executions_of_a_dead_worker_only_in_its_slots(shop: Shop) -> None:
    """It also adopts no more than it has slots, so that other workers can take the rest."""
    shop.committed_by_the_dead(MANY)

    asyncio.run(work(shop, MANY, shop.plan(slots=2)))
    assert (len(shop.finished), shop.most, max(shop.adopted)) == (MANY, 2, 2)


def test_slot_that_becomes_free_during_a_round_ends_the_pause(shop: Shop) -> None:
    """A worker that waits for a slot does not miss one that became free before it began to wait."""

    async def scene() -> None:
        async with run_worker(shop.plan(slots=2)) as worker:
            witness = EventRecorder(shop.app.events)
            await witness.until(WorkerStateChanged, lambda event: event.target == "Idle")
            worker._starved = True
            worker._wake.clear()
            worker._slots.slot_freed.set()
            async with asyncio.timeout(TIME_LIMIT / 6):
                await worker._idle(10 * TIME_LIMIT)

    asyncio.run(scene())


def test_worker_finishes_executions_of_a_dead_worker_before_it_claims_more(shop: Shop) -> None:
    """This holds even with thousands of jobs in the queue."""
    left = shop.committed_by_the_dead(10)
    shop.app.enqueue_many([shop.bill.request(n) for n in range(3000)])

    async def scene() -> int:
        async with run_worker(shop.plan(slots=2)):
            witness = EventRecorder(shop.app.events)
            await witness.until(
                AttemptEnded,
                lambda _: left <= {event.job_id for event in witness.seen if isinstance(event, AttemptEnded)},
            )
            return shop.store.inspect.counts()["standard"]["PENDING"]

    waiting = asyncio.run(scene())
    assert (shop.most, waiting > 0) == (2, True)


def test_jobs_that_a_reconciler_commits_are_finished_in_slots(shop: Shop) -> None:
    """A whole batch of answers arrives at once. The worker renews their leases while they wait for a slot."""
    shop.app.enqueue_many([shop.order.request(n) for n in range(MANY)])

    # Each job ends two attempts: when it is handed over, and when it is done.
    asyncio.run(work(shop, 2 * MANY, shop.plan(slots=2)))
    assert (len(shop.finished), shop.most) == (MANY, 2)


def test_async_and_sync_kinds_share_the_slots(shop: Shop) -> None:
    """With few threads, async and sync kinds are claimed by separate statements. Together they never exceed the slots."""
    shop.app.enqueue_many([shop.bill.request(n) for n in range(MANY)] + [shop.sum_up.request(n) for n in range(MANY)])
    busy: list[int] = []

    async def scene() -> None:
        async with run_worker(replace(shop.plan(slots=4), threads=1)) as worker:
            witness = EventRecorder(shop.app.events)
            shop.app.events.subscribe(lambda _: busy.append(worker.busy), SlotStateChanged)
            await witness.until(
                AttemptEnded, lambda _: sum(isinstance(event, AttemptEnded) for event in witness.seen) >= 2 * MANY
            )

    asyncio.run(scene())
    assert max(busy) <= 4


# ---------------------------------------------------------------- suspects if no child can start
def lost(shop: Shop, place: Place, ids: Sequence[str], losses: int) -> None:
    for id in ids:
        place.raw("UPDATE {jobs} SET lease_losses = :losses, updated_at = {later} WHERE id = :id", losses=losses, id=id)


def test_without_children_suspects_with_one_loss_run_concurrently(shop: Shop, place: Place) -> None:
    """A suspect with a second loss runs alone."""
    lost(shop, place, [job.id for job in shop.app.enqueue_many([shop.bill.request(n) for n in range(MANY)])], 1)

    shop.crowd = 10
    shop.gate = shop.crowded
    asyncio.run(work(shop, MANY, shop.plan(slots=10)))
    assert shop.most == 10


def test_without_children_a_suspect_with_two_losses_runs_alone(shop: Shop, place: Place) -> None:
    """It does not wait forever, because the worker claims no other job meanwhile."""
    lonely = [job.id for job in shop.app.enqueue_many([shop.suspect.request(n) for n in range(3)])]
    lost(shop, place, lonely, 2)
    shop.app.enqueue_many([shop.bill.request(n) for n in range(MANY)])

    asyncio.run(work(shop, MANY + len(lonely), shop.plan(slots=10)))
    assert [shop.suspect.result(id) for id in lonely] == [(0, 0)] * 3
    assert shop.most > 1


@pytest.mark.parametrize(
    ("why", "outcome"),
    [
        ("shutdown", Requeued("its worker is stopping", started=False)),
        ("cancel", CancelRequested(None, "me#1")),
        ("lost", Requeued("its worker could not renew the lease in time", started=False)),
    ],
    ids=["shutdown", "cancel", "lost"],
)
def test_sync_handler_that_is_stopped_before_its_start_does_not_run(shop: Shop, why: Stop, outcome: Outcome) -> None:
    """Otherwise a suspect might run beside other jobs, and a stopping worker would leave the handler midway.

    If the job returns to its queue, it keeps its place.
    """
    begun: list[str] = []

    @shop.app.job()
    def late(run: SyncRun) -> None:
        begun.append(run.job_id)

    shop.app.migrate()
    late.enqueue()
    spec, store = late.spec, shop.store
    (lease,) = store.queue.claim("me#1", spec.claim_rules(spec.version(store)), ["default"], 1)
    context = WorkerContext("me#1", lambda: store, {"late": spec})

    async def scene(threads: Executor) -> Outcome | None:
        settler = Settler(context)
        attempts = Attempts(
            context,
            settler,
            Reporter(settler, threads, threads),
            threads=threads,
            writers=threads,
            children=Children(context, None),
        )
        execution = HeldExecution(lease, spec, spec.lifecycle, asked_at=context.sleeper.monotonic())
        execution.halt(why)
        return (await attempts.prepare(execution))[0]

    with ThreadPoolExecutor(1) as threads:
        assert asyncio.run(scene(threads)) == outcome
    assert begun == []


def test_jobs_of_a_claim_whose_reply_was_lost_keep_their_tries_and_their_place(shop: Shop) -> None:
    spec, store = shop.bill.spec, shop.store
    jobs = shop.app.enqueue_many([shop.bill.request(n) for n in range(3)])
    assert len(store.queue.claim("me#1", spec.claim_rules(spec.version(store)), ["default"], 3)) == 3
    assert return_lost_claims(WorkerContext("me#1", lambda: store, {"bill": spec}), [], {}) == 3
    for job in map(shop.app.get, (job.id for job in jobs)):
        assert (job.state, job.tries_left, job.due_at) == ("PENDING", job.tries, job.created_at)
