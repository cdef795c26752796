"""The claim capacity of a worker, and the leases of a whole worker in real time."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from interlock import App, JobFailed, Retry, Run, SyncRun, Tx
from interlock.engine.held_execution import HeldExecution
from interlock.store import OpenStore
from interlock.store.types import ClaimRule
from interlock.telemetry.events import AttemptEnded, Claimed, DatabaseCall, WorkerError, WorkerStateChanged
from interlock.telemetry.events import ExecutionLost as Lost
from interlock.worker.assembly import run_worker, start_worker
from interlock.worker.capacity import Capacity
from interlock.worker.plan import Plan
from tests.kit import Place
from tests.loops.test_leases import Hand, _With, hand
from tests.loops.worker_doubles import EventRecorder, InstantSleeper, InterceptedStore, away

__all__ = ["hand"]


# ---------------------------------------------------------------- capacity
class _Room:
    def __init__(self, *, importable: bool = True, warm: bool = True) -> None:
        self.importable, self.warm, self.most, self.most_alone = importable, warm, 2, 3


class _Busy:
    def __init__(self, *executions: HeldExecution) -> None:
        self.executions = executions

    @property
    def free(self) -> int:
        return 10 - len(self.executions)

    def room(self, runner: str, *, in_advance: bool) -> int:
        assert not in_advance
        return min(self.free, 4) if runner == "threads" else self.free

    def running(self, chosen: Callable[[HeldExecution], bool]) -> int:
        return sum(map(chosen, self.executions))

    running_suspects = running


def _kinds() -> App[Tx]:
    app: App[Tx] = App("sqlite:///nowhere.db")

    @app.job()
    async def quick(run: Run) -> None:
        """Run in the event loop."""

    @app.job()
    def slow(run: SyncRun) -> None:
        """Run in a thread."""

    @app.job(process=True)
    def heavy(run: SyncRun) -> None:
        """Run in a process."""

    return app


def _claim_rules(app: App[Tx]) -> list[ClaimRule]:
    return [rule for kind in app.kinds.values() for rule in kind.spec.claim_rules(1)]


def _split(capacity: Capacity, claim_rules: list[ClaimRule]) -> list[tuple[Sequence[ClaimRule], int]]:
    groups = capacity.split(claim_rules, in_advance=False)
    return [(group, capacity.room(group, in_advance=False)) for group in groups]


def test_one_statement_claims_all_kinds_if_there_is_capacity_for_all(hand: Hand, store: OpenStore) -> None:
    app = _kinds()
    specs = {name: kind.spec for name, kind in app.kinds.items()}
    busy = _Busy(*[hand.held(store) for _ in range(8)])
    claim_rules = _claim_rules(app)
    assert _split(Capacity(specs, busy, _Room()), claim_rules) == [(claim_rules, 2)]


def test_sync_jobs_are_claimed_only_for_free_threads() -> None:
    app = _kinds()
    capacity = Capacity({name: kind.spec for name, kind in app.kinds.items()}, _Busy(), _Room())
    assert [
        ({rule.kind for rule in claim_rules}, limit) for claim_rules, limit in _split(capacity, _claim_rules(app))
    ] == [
        ({"quick"}, 10),
        ({"heavy"}, 2),
        ({"slow"}, 4),
    ]


def test_async_sync_and_process_kinds_take_turns_if_capacity_is_short() -> None:
    """Otherwise one of them could take every slot that becomes free."""
    app = _kinds()
    capacity = Capacity({name: kind.spec for name, kind in app.kinds.items()}, _Busy(), _Room())
    assert [_split(capacity, _claim_rules(app))[0][0][0].kind for _ in range(4)] == [
        "quick",
        "heavy",
        "slow",
        "quick",
    ]


def test_rule_31_suspects_are_claimed_only_if_all_could_run_alone(hand: Hand, store: OpenStore) -> None:
    """Suspects that share a process do not count. If no process is free for a suspect that must run alone, only those
    that may share one are claimed.
    """
    executions = [hand.held(store) for _ in range(4)]
    capacity = Capacity({}, _Busy(*executions), _Room())
    assert capacity.suspects(50) == (3, True)
    for execution in executions:
        execution.job.lease_losses = 1
    assert capacity.suspects(50) == (3, True)
    executions[0].job.lease_losses = 2
    assert capacity.suspects(50) == (2, True)
    executions[1].job.tries_left = executions[2].job.tries_left = 1
    assert capacity.suspects(50) == (50, False)


def test_rule_31_one_suspect_is_claimed_until_a_process_for_suspects_runs(hand: Hand, store: OpenStore) -> None:
    """A worker that dies before its first child has started loses that one suspect again, and no others."""
    execution = hand.held(store)
    capacity = Capacity({}, _Busy(execution), _Room(warm=False))
    assert capacity.suspects(50) == (1, True)
    execution.job.lease_losses = 1
    assert capacity.suspects(50) == (0, True)


def test_rule_31_suspect_of_an_app_that_cannot_be_imported_has_the_worker_alone(hand: Hand, store: OpenStore) -> None:
    """A suspect that may share a process runs as any other job. While one that must run alone runs, nothing is claimed."""
    app, execution = _kinds(), hand.held(store)
    specs = {name: kind.spec for name, kind in app.kinds.items()}
    capacity = Capacity(specs, _Busy(execution), _Room(importable=False))
    execution.job.lease_losses = 1
    assert (capacity.suspects(50), capacity.free_slots()) == ((1, True), 9)
    execution.job.lease_losses = 2
    assert (capacity.suspects(50), capacity.free_slots(), _split(capacity, _claim_rules(app))) == ((50, False), 0, [])


# ---------------------------------------------------------------- a whole worker, in real time
class Shop:
    """An app whose handlers wait until a test lets them continue."""

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
        self.intercepted = InterceptedStore(self.app.database.store())

    def plan(self, **chosen: object) -> Plan:
        return replace(self.app.plan(), find_store=lambda: cast(OpenStore, self.intercepted), **chosen)  # type: ignore[arg-type]


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    shop = Shop(place)
    yield shop
    shop.app.close()


def test_jobs_that_end_during_a_batch_write_form_the_next_batch(shop: Shop) -> None:
    """This is group commit: the more jobs end, the larger the batches."""
    shop.app.enqueue_many(shop.quick.request(n) for n in range(300))

    async def scene() -> EventRecorder:
        async with start_worker(shop.plan(until_idle=True, slots=300)) as worker:
            witness = EventRecorder(shop.app.events)
            await worker.run()
            return witness

    witness = asyncio.run(scene())
    sizes = [event.size for event in witness.seen if isinstance(event, DatabaseCall)]
    assert sum(sizes) == 300
    assert max(sizes) > 10
    assert max(event.count for event in witness.seen if isinstance(event, Claimed)) == 300


def test_rule_10_report_without_a_reply_is_sent_again(shop: Shop) -> None:
    """The transition was stored. The repeated report finds it and counts as done."""
    real, lost = shop.intercepted.store.transitions.move, [True]

    def deaf(moves: object) -> object:
        answer = real(moves)  # type: ignore[arg-type]
        if lost and lost.pop():
            raise away()
        return answer

    shop.intercepted.store = cast(OpenStore, _With(shop.intercepted.store, move=deaf))
    job = shop.quick.enqueue(1)

    async def scene() -> None:
        async with run_worker(shop.plan(sleeper=InstantSleeper())):
            assert await shop.quick.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue", "claim", "succeed"]
    assert len(shop.app.executions(job.id)) == 1


def test_rule_6_job_of_a_claim_without_a_reply_is_returned_with_all_its_tries(shop: Shop) -> None:
    real, lost = shop.intercepted.store.queue.claim, [True]

    def deaf(*args: object, **kwargs: object) -> object:
        answer = real(*args, **kwargs)  # type: ignore[arg-type]
        if answer and lost and lost.pop():
            raise away()
        return answer

    shop.intercepted.store = cast(OpenStore, _With(shop.intercepted.store, claim=deaf))
    job = shop.quick.enqueue(1)

    async def scene() -> None:
        async with run_worker(shop.plan(sleeper=InstantSleeper())):
            assert await shop.quick.aresult(job.id, timeout=30) == 1

    asyncio.run(scene())
    assert [(one.attempt, one.ended_by) for one in shop.app.executions(job.id)] == [(1, "lose"), (2, "succeed")]
    assert shop.app.get(job.id).tries_left == 3
    assert shop.app.get(job.id).lease_losses == 0


def test_worker_that_cannot_renew_claims_no_jobs(shop: Shop) -> None:
    async def scene() -> None:
        async with run_worker(shop.plan(sleeper=InstantSleeper())) as worker:
            witness = EventRecorder(shop.app.events)
            first = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)

            def refuse() -> None:
                raise away()

            shop.intercepted.before["renew"] = refuse
            await witness.until(WorkerError, lambda trouble: trouble.where == "renew")
            await witness.until(WorkerStateChanged, lambda moved: moved.target == "ErrorWait")
            second = await shop.quick.aenqueue(2)
            await witness.until(Lost, lambda lost: lost.job_id == first.id)
            assert (await shop.app.aget(second.id)).phase == "pending"
            del shop.intercepted.before["renew"]
            shop.go.set()
            assert await shop.quick.aresult(second.id, timeout=30) == 2
            assert await shop.wait.aresult(first.id, timeout=30) == 1
            assert worker.exit_code == 0

    asyncio.run(scene())
    assert shop.app.verify().ok


async def _idles(witness: EventRecorder) -> None:
    """Wait until the worker has claimed its one job and found no other."""
    claimed = await witness.until(Claimed, lambda event: event.count == 1)
    await witness.until(WorkerStateChanged, lambda moved: moved.target == "Idle", after=witness.seen.index(claimed))


def test_stopping_worker_lets_its_running_jobs_finish(shop: Shop) -> None:
    async def scene() -> None:
        async with run_worker(shop.plan()) as worker:
            witness = EventRecorder(shop.app.events)
            job = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)
            await _idles(witness)
            worker.stop()
            later = await shop.quick.aenqueue(2)
            shop.go.set()
        assert (await shop.app.aget(job.id)).state == "SUCCEEDED"
        assert (await shop.app.aget(later.id)).state == "PENDING"

    asyncio.run(scene())


def test_rule_29_job_that_does_not_stop_in_time_is_returned_with_all_its_tries(shop: Shop) -> None:
    async def scene() -> str:
        async with run_worker(shop.plan()) as worker:
            witness = EventRecorder(shop.app.events)
            job = await shop.wait.aenqueue(1)
            await asyncio.wait_for(shop.begun.wait(), 30)
            await _idles(witness)
            worker.stop()
            worker.return_jobs()
            await witness.until(AttemptEnded)
        return job.id

    id = asyncio.run(scene())
    assert [(one.status, one.ended_by) for one in shop.app.executions(id)] == [("ABORTED", "lose")]
    assert (shop.app.get(id).state, shop.app.get(id).tries_left) == ("PENDING", 3)


def test_rule_28_cancel_request_just_before_the_report_is_respected(shop: Shop) -> None:
    """The handler raised `Retry`. The cancel request came after the job was read and before the retry was stored."""

    @shop.app.job(lease=3)
    async def again(run: Run) -> None:
        raise Retry("once more")

    shop.app.migrate()
    job = again.enqueue()
    cancel = shop.app.database.store().control.request_cancel
    shop.intercepted.before["move"] = lambda: cancel(job.id, by="operator:anna", reason=None) and None

    async def scene() -> None:
        async with run_worker(shop.plan(sleeper=InstantSleeper())):
            with pytest.raises(JobFailed):
                await again.aresult(job.id, timeout=30)

    asyncio.run(scene())
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue", "claim", "cancel_requested", "cancel"]
    assert shop.app.get(job.id).state == "CANCELLED"
