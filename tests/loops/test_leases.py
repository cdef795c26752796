"""Leases in a worker: kept by list, trusted for no longer than they last, and given back in good order."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from interlock import App, JobFailed, LeaseLost, Retry, Run, SyncRun, Tx
from interlock.boot import Plan, booted, running
from interlock.events import AttemptEnded, Batch, Claimed, Trouble, WorkerMoved
from interlock.events import LeaseLost as Lost
from interlock.records import Beat, Lease, Renewal, Way, WorkerFacts
from interlock.stores import OpenStore
from interlock.worker.desk import Desk
from interlock.worker.grip import Grip
from interlock.worker.leases import Leases, Watch
from interlock.worker.rooms import Rooms
from tests.contract.kit import LIFECYCLES, claimed
from tests.kit import Place
from tests.loops.watching import Hurry, Meddler, Witness, away, once


class SetWaits(Hurry):
    """A monotonic clock that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Hand:
    """A worker's hand: the store, a clock, and grips on what was claimed."""

    def __init__(self, store: OpenStore) -> None:
        app: App[Tx] = App("sqlite:///nowhere.db")

        @app.job(kind="mail", lifecycle=LIFECYCLES["standard"], lease=30, max_runtime=100)
        async def mail(run: Run) -> None:
            """Never called."""

        self.declaration = mail.declaration
        self.waits = SetWaits()
        self.store = Meddler(store)
        self.desk = Desk("me#1", lambda: cast(OpenStore, self.store), {"mail": mail.declaration}, waits=self.waits)
        self.grips: dict[int, Grip] = {}
        self.hung: list[float] = []
        self.answered = self.waits.now
        self.leases = Leases(self.desk, self.grips, lambda: WorkerFacts("me#1", "host", 1, "Idle", 1, 0, (), ()), 10.0)
        self.watch = Watch(self.desk, self.grips, self.leases, answered=lambda: self.answered, patience=60.0, hung=self.hung.append)

    def grip(self, lease: Lease) -> Grip:
        grip = Grip(lease, self.declaration, LIFECYCLES["standard"], asked_at=self.waits.now)
        self.grips[id(grip)] = grip
        return grip

    def held(self, store: OpenStore) -> Grip:
        return self.grip(replace(claimed(store), seconds=30.0))


@pytest.fixture
def hand(store: OpenStore) -> Hand:
    return Hand(store)


# ---------------------------------------------------------------- renewing
def test_rule_6_all_that_is_due_is_renewed_in_one_statement(hand: Hand, store: OpenStore) -> None:
    grips = [hand.held(store) for _ in range(5)]
    sent: list[int] = []
    renew = store.renew

    def counted(beats: list[Beat]) -> Renewal:
        sent.append(len(beats))
        return renew(beats)

    hand.store.store = cast(OpenStore, _With(store, renew=counted))
    hand.waits.now += 5
    hand.leases.beat()
    hand.waits.now += 10
    hand.leases.beat()
    assert sent == [5, 5]
    assert {grip.asked_at for grip in grips} == {hand.waits.now}


class _With:
    def __init__(self, store: OpenStore, **verbs: Callable[..., object]) -> None:
        self._store, self._verbs = store, verbs

    def __getattr__(self, name: str) -> object:
        return self._verbs.get(name) or getattr(self._store, name)


def test_a_short_job_is_never_renewed(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    asked = grip.asked_at
    hand.leases.beat()
    assert grip.asked_at == asked


def test_an_execution_that_another_has_taken_is_told_to_stop(hand: Hand, store: OpenStore, clock: object) -> None:
    grip = hand.held(store)
    clock.advance(31)  # type: ignore[attr-defined]
    store.adopt("another", [grip.job.kind], 30, 10)
    told: list[str] = []
    grip.on_halt(lambda: told.append("now"))
    hand.waits.now += 25
    hand.leases.beat()
    assert (grip.stop, told) == ("lost", ["now"])
    with pytest.raises(LeaseLost, match="not ours"):
        grip.check()


def test_what_is_just_being_reported_is_not_taken_for_lost(hand: Hand, store: OpenStore, clock: object) -> None:
    """Its own report has ended it, or will say what has."""
    grip = hand.held(store)
    clock.advance(31)  # type: ignore[attr-defined]
    store.adopt("another", [grip.job.kind], 30, 10)
    grip.settling = True
    hand.waits.now += 25
    hand.leases.beat()
    assert grip.stop is None


def test_a_request_to_stop_comes_back_with_the_renewal(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    store.request_cancel(grip.job.id, by="operator:anna", reason=None)
    hand.waits.now += 25
    hand.leases.beat()
    assert grip.stop == "cancel"


def test_what_a_handler_has_to_show_travels_with_the_renewal(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    grip.progress(1, 4, "one of four")
    grip.measure("bytes", 3)
    grip.measure("bytes", 4)
    hand.waits.now += 25
    hand.leases.beat()
    (execution,) = store.executions(grip.job.id)
    assert (execution.progress, execution.usage) == ((1.0, 4.0, "one of four"), {"bytes": 7.0})


def test_a_worker_that_cannot_renew_says_so_until_it_can(hand: Hand, store: OpenStore) -> None:
    hand.held(store)
    hand.store.before["renew"] = once(away())
    hand.waits.now += 25
    hand.leases.beat()
    assert hand.leases.failing
    hand.leases.beat()
    assert not hand.leases.failing


# ---------------------------------------------------------------- trust
def test_a_handler_is_stopped_before_its_lease_ends(hand: Hand, store: OpenStore) -> None:
    """Trust is measured on the monotonic clock, from the moment of asking."""
    grip = hand.held(store)
    hand.waits.now += 28.9
    hand.watch.look()
    assert grip.stop is None
    hand.waits.now += 0.2
    hand.watch.look()
    assert grip.stop == "lost"
    assert hand.waits.now < grip.asked_at + 30


def test_rule_3_an_execution_that_no_worker_took_is_renewed_after_trust_has_ended(hand: Hand, store: OpenStore, clock: object) -> None:
    """The database was unreachable for longer than a lease. The handler has stopped; the worker still owns the job."""
    grip, taken = hand.held(store), hand.held(store)
    hand.waits.now += 31
    clock.advance(31)  # type: ignore[attr-defined]
    hand.watch.look()
    assert (grip.stop, taken.stop) == ("lost", "lost")
    store.adopt("another", [grip.job.kind], 30, 1)
    hand.leases.beat()
    assert {each.asked_at == hand.waits.now for each in (grip, taken)} == {True, False}
    (left,) = [each for each in (grip, taken) if each.asked_at == hand.waits.now]
    assert (left.doubted, left.stop) == (True, "lost")
    assert sum(each.doubted for each in (grip, taken)) == 1
    assert store.adopt("another", [grip.job.kind], 30, 9) == []


def test_rule_32_past_its_max_runtime_an_execution_is_stopped_and_no_longer_renewed(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    hand.waits.now += 101
    grip.asked_at, hand.answered = hand.waits.now - 1, hand.waits.now
    hand.watch.look()
    assert (grip.stop, grip.renews) == ("runtime", False)
    asked = grip.asked_at
    hand.waits.now += 20
    hand.leases.beat()
    assert grip.asked_at == asked


def test_rule_32_an_event_loop_that_does_not_answer_keeps_its_leases_for_a_while_and_then_no_longer(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    hand.waits.now += 59
    hand.watch.look()
    assert (hand.hung, grip.renews) == ([], True)
    hand.waits.now += 2
    hand.watch.look()
    assert (hand.hung, grip.renews) == ([61.0], False)


def test_the_first_reason_to_stop_holds_but_a_loss_outweighs_it(hand: Hand, store: OpenStore) -> None:
    grip = hand.held(store)
    assert grip.halt("cancel")
    assert not grip.halt("release")
    assert grip.stop == "cancel"
    grip.halt("lost")
    assert grip.stop == "lost"


# ---------------------------------------------------------------- room
class _Room:
    def __init__(self, *, importable: bool = True, warm: bool = True) -> None:
        self.importable, self.warm, self.most, self.most_alone = importable, warm, 2, 3


class _Busy:
    def __init__(self, *grips: Grip) -> None:
        self.grips = grips

    @property
    def free(self) -> int:
        return 10 - len(self.grips)

    def running(self, chosen: Callable[[Grip], bool]) -> int:
        return sum(map(chosen, self.grips))


def _kinds() -> App[Tx]:
    app: App[Tx] = App("sqlite:///nowhere.db")

    @app.job()
    async def quick(run: Run) -> None:
        """In the loop."""

    @app.job()
    def slow(run: SyncRun) -> None:
        """In a thread."""

    @app.job(process=True)
    def heavy(run: SyncRun) -> None:
        """In a process."""

    return app


def _ways(app: App[Tx]) -> list[Way]:
    return [way for kind in app.kinds.values() for way in kind.ways(1)]


def test_one_statement_claims_for_all_where_there_is_room_for_all() -> None:
    app = _kinds()
    declarations = {name: kind.declaration for name, kind in app.kinds.items() if name != "heavy"}
    ways = [way for way in _ways(app) if way.kind != "heavy"]
    assert Rooms(declarations, _Busy(), _Room(), threads=32).split(ways, 10) == [(ways, 10)]


def test_no_more_functions_are_claimed_than_there_are_threads_for_them() -> None:
    app = _kinds()
    rooms = Rooms({name: kind.declaration for name, kind in app.kinds.items()}, _Busy(), _Room(), threads=4)
    assert [({way.kind for way in ways}, limit) for ways, limit in rooms.split(_ways(app), 10)] == [({"quick"}, 10), ({"heavy"}, 2), ({"slow"}, 4)]


def test_sorts_of_kinds_take_turns_where_there_is_not_room_for_all() -> None:
    """Else one of them could take every slot that comes free."""
    app = _kinds()
    rooms = Rooms({name: kind.declaration for name, kind in app.kinds.items()}, _Busy(), _Room(), threads=4)
    assert [rooms.split(_ways(app), 10)[0][0][0].kind for _ in range(4)] == ["quick", "heavy", "slow", "quick"]


def test_rule_31_no_more_suspects_are_claimed_than_could_all_run_alone(hand: Hand, store: OpenStore) -> None:
    """Those that share a process do not count. Where no place is left, only such come."""
    grips = [hand.held(store) for _ in range(4)]
    rooms = Rooms({}, _Busy(*grips), _Room(), threads=1)
    assert rooms.suspects(50) == (3, True)
    for grip in grips:
        grip.job.lease_losses = 1
    assert rooms.suspects(50) == (3, True)
    grips[0].job.lease_losses = 2
    assert rooms.suspects(50) == (2, True)
    grips[1].job.tries_left = grips[2].job.tries_left = 1
    assert rooms.suspects(50) == (50, False)


def test_rule_31_one_suspect_is_claimed_until_a_process_for_suspects_runs(hand: Hand, store: OpenStore) -> None:
    """A worker that dies before its first child has started loses that one suspect again, and no others."""
    grip = hand.held(store)
    rooms = Rooms({}, _Busy(grip), _Room(warm=False), threads=1)
    assert rooms.suspects(50) == (1, True)
    grip.job.lease_losses = 1
    assert rooms.suspects(50) == (0, True)


def test_rule_31_where_the_app_cannot_be_imported_a_suspect_has_the_worker_to_itself(hand: Hand, store: OpenStore) -> None:
    """One that may share a process runs there as any other; for one that must run alone nothing else is claimed."""
    app, grip = _kinds(), hand.held(store)
    declarations = {name: kind.declaration for name, kind in app.kinds.items()}
    rooms = Rooms(declarations, _Busy(grip), _Room(importable=False), threads=1)
    grip.job.lease_losses = 1
    assert (rooms.suspects(50), rooms.left()) == ((1, True), 9)
    grip.job.lease_losses = 2
    assert (rooms.suspects(50), rooms.left(), rooms.split(_ways(app), 10)) == ((50, False), 0, [])


# ---------------------------------------------------------------- a whole worker, in real time
class Shop:
    """An app whose handlers wait until they are let go."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.thread_go = threading.Event()

        @self.app.job(lease=3)
        async def wait(run: Run, n: int) -> int:
            self.begun.set()
            await self.go.wait()
            return n

        @self.app.job(lease=3)
        async def quick(run: Run, n: int) -> int:
            return n

        self.wait, self.quick = wait, quick
        self.app.migrate()
        self.meddler = Meddler(self.app.database.store())

    def plan(self, **chosen: object) -> Plan:
        return replace(self.app.plan(), find_store=lambda: cast(OpenStore, self.meddler), **chosen)  # type: ignore[arg-type]


@pytest.fixture
def shop(place: Place) -> Shop:
    return Shop(place)


def test_what_finishes_while_a_batch_is_written_forms_the_next(shop: Shop) -> None:
    """Natural group commit: the more there is to report, the larger the batches."""
    shop.app.enqueue_many(shop.quick.call(n) for n in range(300))

    async def scene() -> Witness:
        async with booted(shop.plan(until_idle=True, slots=300)) as worker:
            witness = Witness(shop.app.events)
            await worker.run()
            return witness

    witness = asyncio.run(scene())
    sizes = [event.size for event in witness.seen if isinstance(event, Batch)]
    assert sum(sizes) == 300
    assert max(sizes) > 10
    assert max(event.count for event in witness.seen if isinstance(event, Claimed)) == 300


def test_rule_10_a_report_whose_reply_was_lost_is_sent_again(shop: Shop) -> None:
    """The move was stored; the same move again finds that it was."""
    real, lost = shop.meddler.store.move, [True]

    def deaf(moves: object) -> object:
        answer = real(moves)  # type: ignore[arg-type]
        if lost and lost.pop():
            raise away()
        return answer

    shop.meddler.store = cast(OpenStore, _With(shop.meddler.store, move=deaf))
    job = shop.quick.enqueue(1)

    async def scene() -> None:
        async with running(shop.plan(waits=Hurry())):
            assert await shop.quick.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue", "claim", "succeed"]
    assert len(shop.app.executions(job.id)) == 1


def test_rule_6_a_claim_whose_reply_was_lost_is_given_back_and_spends_no_try(shop: Shop) -> None:
    real, lost = shop.meddler.store.claim, [True]

    def deaf(*args: object, **kwargs: object) -> object:
        answer = real(*args, **kwargs)  # type: ignore[arg-type]
        if answer and lost and lost.pop():
            raise away()
        return answer

    shop.meddler.store = cast(OpenStore, _With(shop.meddler.store, claim=deaf))
    job = shop.quick.enqueue(1)

    async def scene() -> None:
        async with running(shop.plan(waits=Hurry())):
            assert await shop.quick.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())
    assert [(one.attempt, one.ended_by) for one in shop.app.executions(job.id)] == [(1, "lose"), (2, "succeed")]
    assert shop.app.get(job.id).tries_left == 3
    assert shop.app.get(job.id).lease_losses == 0


def test_a_worker_that_cannot_renew_claims_nothing(shop: Shop) -> None:
    async def scene() -> None:
        async with running(shop.plan(waits=Hurry())) as worker:
            witness = Witness(shop.app.events)
            first = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)

            def refuse() -> None:
                raise away()

            shop.meddler.before["renew"] = refuse
            await witness.until(Trouble, lambda trouble: trouble.where == "renew")
            await witness.until(WorkerMoved, lambda moved: moved.target == "ErrorWait")
            second = await shop.quick.aenqueue(2)
            await witness.until(Lost, lambda lost: lost.job_id == first.id)
            assert (await shop.app.aget(second.id)).phase == "pending"
            del shop.meddler.before["renew"]
            shop.go.set()
            assert await shop.quick.aresult(second.id, timeout=30) == 2
            assert await shop.wait.aresult(first.id, timeout=30) == 1
            assert worker.exit_code == 0

    asyncio.run(scene())
    assert shop.app.verify().ok


async def _idles(witness: Witness) -> None:
    """The worker has claimed its one job, looked again, and found nothing."""
    claimed = await witness.until(Claimed, lambda event: event.count == 1)
    await witness.until(WorkerMoved, lambda moved: moved.target == "Idle", after=witness.seen.index(claimed))


def test_a_worker_that_stops_lets_what_runs_end(shop: Shop) -> None:
    async def scene() -> None:
        async with running(shop.plan()) as worker:
            witness = Witness(shop.app.events)
            job = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)
            await _idles(witness)
            worker.stop()
            later = await shop.quick.aenqueue(2)
            shop.go.set()
        assert (await shop.app.aget(job.id)).state == "SUCCEEDED"
        assert (await shop.app.aget(later.id)).state == "PENDING"

    asyncio.run(scene())


def test_rule_29_what_does_not_end_in_time_is_given_back_and_spends_no_try(shop: Shop) -> None:
    async def scene() -> str:
        async with running(shop.plan()) as worker:
            witness = Witness(shop.app.events)
            job = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)
            await _idles(witness)
            worker.stop()
            worker.release()
            await witness.until(AttemptEnded)
        return job.id

    id = asyncio.run(scene())
    assert [(one.status, one.ended_by) for one in shop.app.executions(id)] == [("ABORTED", "lose")]
    assert (shop.app.get(id).state, shop.app.get(id).tries_left) == ("PENDING", 3)


def test_rule_28_a_wish_to_stop_that_comes_just_before_the_report_is_heard(shop: Shop) -> None:
    """The handler asked for another try; the job was asked to stop after it was read and before that was stored."""
    @shop.app.job(lease=3)
    async def again(run: Run) -> None:
        raise Retry("once more")

    shop.app.migrate()
    job = again.enqueue()
    cancel = shop.app.database.store().request_cancel
    shop.meddler.before["move"] = lambda: cancel(job.id, by="operator:anna", reason=None) and None

    async def scene() -> None:
        async with running(shop.plan(waits=Hurry())):
            with pytest.raises(JobFailed):
                await again.aresult(job.id, timeout=30)

    asyncio.run(scene())
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue", "claim", "cancel_requested", "cancel"]
    assert shop.app.get(job.id).state == "CANCELLED"
