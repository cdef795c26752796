"""Slots: a worker never runs more at once than it has slots, wherever the work comes from."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest

from interlock import App, Complete, External, Run, SyncRun, Tx
from interlock.boot import Plan, running
from interlock.events import AttemptEnded, SlotMoved
from interlock.move import decide
from interlock.outcome import Cancelled, Finished, Outcome, Released, Returned
from interlock.records import Lease
from interlock.stores import OpenStore
from interlock.waits import SystemWaits
from interlock.worker.attempt import Attempts
from interlock.worker.children import Children
from interlock.worker.desk import Desk
from interlock.worker.grip import Grip, Stop
from interlock.worker.process import Died
from interlock.worker.report import Reporter
from interlock.worker.rooms import must_run_alone
from interlock.worker.settle import Settler
from interlock.worker.slots import Slots
from tests.kit import Place
from tests.loops.watching import Meddler, Witness

MANY = 40


class Shop:
    """An app that counts how many of its functions run at once."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.now = self.most = 0
        self.gate: asyncio.Event | None = None
        """Where functions wait, if a test wants them to."""
        self.crowd, self.crowded = 1, asyncio.Event()
        """Set when so many are there at once."""
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
        async def ask(ids: Sequence[str]) -> Mapping[str, Complete[int]]:
            return {id: Complete(int(id)) for id in ids}

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
        """Executions past their commit, whose worker died before it finished them."""
        declaration = self.bill.declaration
        ways = [replace(way, lease=0.0) for way in declaration.ways(declaration.version(self.store))]
        self.app.enqueue_many([self.bill.call(n) for n in range(count)])
        leases = self.store.claim("dead#1", ways, ["default"], count)
        moves = [decide(declaration.lifecycle, lease.job, lease, Returned("1", boundary=True), declaration.policy, 0.5, actor="dead#1") for lease in leases]
        assert (len(leases), self.store.move(moves)) == (count, [])
        return {lease.job.id for lease in leases}

    def plan(self, slots: int) -> Plan:
        """A worker with so many slots, and a note of how many executions it adopts at once."""
        adopt, meddler = self.store.adopt, Meddler(self.store)

        def noted(*args: Any, **kwargs: Any) -> list[Lease]:
            leases = adopt(*args, **kwargs)
            self.adopted.append(len(leases))
            return leases

        meddler.adopt = noted  # type: ignore[attr-defined]
        return replace(self.app.plan(), find_store=lambda: cast(OpenStore, meddler), slots=slots)


@pytest.fixture
def shop(place: Place) -> Shop:
    return Shop(place)


async def work(shop: Shop, count: int, plan: Plan) -> None:
    """A worker, until so many attempts have ended."""
    async with running(plan):
        witness = Witness(shop.app.events)
        await witness.until(AttemptEnded, lambda _: sum(isinstance(event, AttemptEnded) for event in witness.seen) >= count)


def test_a_worker_finishes_no_more_of_a_dead_one_at_once_than_it_has_slots(shop: Shop) -> None:
    """It adopts no more either, so that others can take their share."""
    shop.committed_by_the_dead(MANY)

    asyncio.run(work(shop, MANY, shop.plan(slots=2)))
    assert (len(shop.finished), shop.most, max(shop.adopted)) == (MANY, 2, 2)


def test_a_full_worker_finishes_what_a_dead_one_left_before_it_claims_more(shop: Shop) -> None:
    """However much waits in the queue."""
    left = shop.committed_by_the_dead(10)
    shop.app.enqueue_many([shop.bill.call(n) for n in range(3000)])

    async def scene() -> int:
        async with running(shop.plan(slots=2)):
            witness = Witness(shop.app.events)
            await witness.until(AttemptEnded, lambda _: left <= {event.job_id for event in witness.seen if isinstance(event, AttemptEnded)})
            return shop.store.counts()["standard"]["PENDING"]

    waiting = asyncio.run(scene())
    assert (shop.most, waiting > 0) == (2, True)


def test_jobs_that_a_reconciler_commits_are_finished_in_slots(shop: Shop) -> None:
    """A whole batch of answers comes at once; the worker keeps their leases while they wait."""
    shop.app.enqueue_many([shop.order.call(n) for n in range(MANY)])

    # Each ends twice: when it is handed over, and when it is done.
    asyncio.run(work(shop, 2 * MANY, shop.plan(slots=2)))
    assert (len(shop.finished), shop.most) == (MANY, 2)


def test_sorts_of_kinds_share_the_slots(shop: Shop) -> None:
    """Coroutines and functions are claimed by statements of their own where there are few threads; together they fill the slots, and no more."""
    shop.app.enqueue_many([shop.bill.call(n) for n in range(MANY)] + [shop.sum_up.call(n) for n in range(MANY)])
    busy: list[int] = []

    async def scene() -> None:
        async with running(replace(shop.plan(slots=4), threads=1)) as worker:
            witness = Witness(shop.app.events)
            shop.app.events.subscribe(lambda _: busy.append(worker.busy), SlotMoved)
            await witness.until(AttemptEnded, lambda _: sum(isinstance(event, AttemptEnded) for event in witness.seen) >= 2 * MANY)

    asyncio.run(scene())
    assert max(busy) <= 4


# ---------------------------------------------------------------- suspects where no child can be started
def lost(shop: Shop, place: Place, ids: Sequence[str], losses: int) -> None:
    for id in ids:
        place.raw("UPDATE {jobs} SET lease_losses = :losses, updated_at = {later} WHERE id = :id", losses=losses, id=id)


def test_where_no_child_can_be_started_suspects_run_beside_others_after_a_first_loss(shop: Shop, place: Place) -> None:
    """They recover together; what dies with them a second time runs alone."""
    lost(shop, place, [job.id for job in shop.app.enqueue_many([shop.bill.call(n) for n in range(MANY)])], 1)

    shop.crowd = 10
    shop.gate = shop.crowded
    asyncio.run(work(shop, MANY, shop.plan(slots=10)))
    assert shop.most == 10


def test_where_no_child_can_be_started_a_suspect_that_must_run_alone_waits_until_it_is(shop: Shop, place: Place) -> None:
    """It does not wait for ever: nothing else is claimed meanwhile."""
    lonely = [job.id for job in shop.app.enqueue_many([shop.suspect.call(n) for n in range(3)])]
    lost(shop, place, lonely, 2)
    shop.app.enqueue_many([shop.bill.call(n) for n in range(MANY)])

    asyncio.run(work(shop, MANY + len(lonely), shop.plan(slots=10)))
    assert [shop.suspect.result(id) for id in lonely] == [(0, 0)] * 3
    assert shop.most > 1


@pytest.mark.parametrize(("why", "outcome"), [("release", Released), ("cancel", Cancelled), ("lost", Released)])
def test_a_def_handler_that_was_told_to_stop_while_it_waited_for_its_turn_does_not_begin(shop: Shop, why: Stop, outcome: type[Outcome]) -> None:
    """A suspect would run beside others after all, and a worker that ends would be left in the middle of it."""
    begun: list[str] = []

    @shop.app.job()
    def late(run: SyncRun) -> None:
        begun.append(run.job_id)

    shop.app.migrate()
    late.enqueue()
    declaration, store = late.declaration, shop.store
    (lease,) = store.claim("me#1", declaration.ways(declaration.version(store)), ["default"], 1)
    desk = Desk("me#1", lambda: store, {"late": declaration})

    async def scene(threads: Executor) -> Outcome | None:
        settler = Settler(desk)
        attempts = Attempts(
            desk, settler, Reporter(settler, threads, threads), threads=threads, writers=threads, children=Children(desk, None))
        grip = Grip(lease, declaration, declaration.lifecycle, asked_at=desk.waits.monotonic())
        grip.halt(why)
        return (await attempts.prepare(grip))[0]

    with ThreadPoolExecutor(1) as threads:
        assert isinstance(asyncio.run(scene(threads)), outcome)
    assert begun == []


# ---------------------------------------------------------------- what follows a commit, in a child that dies
class Deaths:
    """Attempts and a reporter in one: each finish dies as it is told to, and the outcome is noted."""

    def __init__(self, deaths: list[Died]) -> None:
        self.deaths = deaths
        self.alone: list[bool] = []
        self.outcomes: list[Outcome] = []
        self.told = asyncio.Event()

    async def finish(self, grip: Grip) -> BaseException | None:
        self.alone.append(must_run_alone(grip))
        return self.deaths.pop(0) if self.deaths else None

    async def pause(self, grip: Grip, seconds: float) -> None:
        """No time passes."""

    def post(self, grip: Grip, outcome: Outcome, done: object) -> None:
        self.outcomes.append(outcome)
        self.told.set()


@pytest.mark.parametrize(("deaths", "alone", "given_up"), [
    ([Died("a", began=True, shared=True), Died("b", began=True)], [False, True], True),
    ([Died("a", began=True, shared=True)], [False, True], False),
    ([Died("a", began=True, ended=True)], [False, False], False),
])  # fmt: skip
def test_rule_30_a_finish_that_died_beside_others_is_charged_only_if_it_dies_alone(
    shop: Shop, deaths: list[Died], alone: list[bool], given_up: bool,
) -> None:
    """It has three tries, and its worker died of it once: with a death in a group and one alone it is given up."""
    shop.committed_by_the_dead(1)
    (lease,) = shop.store.adopt("me#1", ["bill"], 30.0, 1)
    desk = Desk("me#1", lambda: shop.store, {"bill": shop.bill.declaration})

    async def scene() -> Deaths:
        there = Deaths(list(deaths))
        slots = Slots(desk, cast(Attempts, there), cast(Reporter, there), 1, lambda _: None)
        slots.take(lease, shop.bill.declaration.lifecycle, desk.waits.monotonic(), apart=True)
        await there.told.wait()
        return there

    there = asyncio.run(scene())
    assert there.alone == alone
    assert [outcome.error is not None for outcome in there.outcomes if isinstance(outcome, Finished)] == [given_up]


class Outage(SystemWaits):
    """A lease is renewed, or taken by another, after a few looks."""

    def __init__(self, *, taken: bool) -> None:
        self.taken = taken
        self.looks = 0
        self.grip: Grip | None = None

    async def asleep(self, seconds: float, /) -> None:
        self.looks += 1
        if self.looks == 3 and self.grip is not None:
            self.grip.doubted = not self.taken
            self.grip.asked_at = self.monotonic()
        await asyncio.sleep(0)


@pytest.mark.parametrize("taken", [False, True])
def test_rule_3_a_finish_that_an_outage_stopped_runs_again_in_the_same_hands(shop: Shop, taken: bool) -> None:
    """Unless another worker has taken it. The outage costs no try."""
    shop.committed_by_the_dead(1)
    (lease,) = shop.store.adopt("me#1", ["bill"], 30.0, 1)
    waits = Outage(taken=taken)
    desk = Desk("me#1", lambda: shop.store, {"bill": shop.bill.declaration}, waits=waits)

    class Attempt(Deaths):
        async def finish(self, grip: Grip) -> BaseException | None:
            self.alone.append(False)
            if len(self.alone) == 1:
                waits.grip, grip.doubted = grip, True
                grip.asked_at -= 60
                grip.halt("lost")
            return None

    async def scene() -> tuple[Deaths, int]:
        there = Attempt([])
        slots = Slots(desk, cast(Attempts, there), cast(Reporter, there), 1, lambda _: None)
        slots.take(lease, shop.bill.declaration.lifecycle, waits.monotonic(), apart=True)
        (grip,) = slots.grips.values()
        assert grip.task is not None
        await grip.task
        return there, grip.failures

    there, failures = asyncio.run(scene())
    assert (len(there.alone), failures) == (1 if taken else 2, 1)
    assert there.outcomes == ([] if taken else [Finished()])


# ---------------------------------------------------------------- since when a lease is trusted
@pytest.mark.parametrize("verb", ["claim", "adopt", "commit by the reconciler"])
def test_a_lease_is_trusted_from_when_it_was_asked_for(shop: Shop, verb: str) -> None:
    """A slow database may answer when much of the lease is over: others may have the execution soon after."""
    waits, meddler = Slow(), Meddler(shop.store)
    if verb == "adopt":
        shop.committed_by_the_dead(1)
    else:
        (shop.bill if verb == "claim" else shop.order).enqueue(1)
    name = "move" if verb.startswith("commit") else verb
    real = getattr(shop.store, name)
    trusted: list[tuple[float, float]] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        asked, answer = waits.monotonic(), real(*args, **kwargs)
        if answer if name != "move" else args[0][0].to_status == "COMMITTED":
            waits.late += 20
            trusted.append((asked, asked + 5))
        return answer

    setattr(meddler, name, slow)
    plan = replace(shop.app.plan(), find_store=lambda: cast(OpenStore, meddler), waits=waits)

    async def scene() -> float:
        shop.gate = asyncio.Event()
        async with running(plan) as worker:
            await shop.crowded.wait()
            (grip,) = worker._slots.grips.values()
            shop.gate.set()
            return grip.asked_at

    asked_at = asyncio.run(scene())
    ((earliest, latest),) = trusted[:1]
    assert earliest - 5 <= asked_at <= latest


class Slow(SystemWaits):
    """A clock that can be made to jump."""

    late = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late
