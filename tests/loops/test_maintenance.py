"""The maintenance: what others left behind is taken up, once, and by those who know it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from interlock import Backoff, Job, Lifecycle, Run, SyncRun
from interlock.core.outcome import Handed
from interlock.operate.verify import verify
from interlock.store.types import Lease
from interlock.telemetry.events import AttemptEnded, FinishFailed, Recovered, WorkerError
from tests.kit import Place
from tests.loops.maintenance_bench import Bench

IMAGE = Lifecycle(
    "image",
    transitions=[
        ("queued", "claim", "running"),
        ("queued", "expire", "expired"),
        ("queued", "cancel", "canceled"),
        ("running", "succeed", "completed"),
        ("running", "fail", "failed"),
        ("running", "lose", "queued"),
        ("failed", "retry", "queued"),
        ("failed", "expire", "expired"),
        ("failed", "bury", "dead_letter"),
    ],
)
DAY = 86_400.0


class Shop(Bench):
    """Kinds of every sort that a maintenance meets."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.entered: list[tuple[str, str]] = []
        self.broken = False

        @self.app.job(tries=2)
        def mail(run: SyncRun) -> None: ...

        @self.app.job(on_lost_lease="hold")
        def parcel(run: SyncRun) -> None: ...

        @self.app.job()
        async def bill(run: Run) -> str:
            return ""

        @bill.finish
        async def tell(run: Run, value: str) -> None: ...

        @self.app.job(lifecycle=IMAGE, tries=1, backoff=Backoff(first=4, jitter=False))
        def paint(run: SyncRun) -> None: ...

        @paint.on_enter("dead_letter")
        def bury(tx: Any, job: Job) -> None:
            self.enter(job)

        @paint.on_enter("expired")
        def expire(tx: Any, job: Job) -> None:
            self.enter(job)

        self.mail, self.parcel, self.bill, self.paint = mail, parcel, bill, paint

    def enter(self, job: Job) -> None:
        self.entered.append((job.id, job.state))
        if self.broken:
            raise RuntimeError("the hook is broken")


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    made = Shop(place)
    made.begin()
    yield made
    made.app.close()


# ---------------------------------------------------------------- leases that ended
def test_rule_02_a_lost_lease_is_adopted_then_lost_by_its_new_holder(shop: Shop) -> None:
    """The job waits again at once, a try poorer, and the audit names the maintenance."""
    lease = shop.held(shop.mail)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    job, (execution,) = shop.job(lease), shop.store.inspect.executions(lease.job.id)
    assert (job.state, job.phase, job.tries_left, job.due_at) == ("PENDING", "pending", 1, shop.store.inspect.now())
    assert (execution.status, execution.ended_by, execution.holder, execution.lease_owner) == (
        "ABORTED",
        "lose",
        2,
        "w1#boot/maintenance",
    )
    assert shop.store.inspect.history(job.id)[-1].actor == "w1#boot/maintenance"
    assert [(event.kind, event.job_id, event.how) for event in shop.told(Recovered)] == [("mail", job.id, "lose")]
    # Only the worker that is gone knows how long the attempt waited and ran.
    assert [(event.outcome, event.waited, event.ran) for event in shop.told(AttemptEnded)] == [("lose", None, None)]


def test_a_lease_that_has_not_ended_is_left_alone(shop: Shop) -> None:
    """Not one moment before."""
    lease = shop.held(shop.mail)
    shop.advance(29.9)
    assert shop.maintenance().run_once() == 0
    assert shop.store.inspect.executions(lease.job.id)[0].holder == 1


def test_rule_31_a_job_that_loses_every_lease_fails_after_its_tries(shop: Shop) -> None:
    """Each loss is counted, so that the next attempt is a suspect's."""
    lease = shop.held(shop.mail)
    seen = []
    for _ in range(2):
        shop.advance(31)
        shop.maintenance().run_once()
        seen.append((shop.job(lease).state, shop.job(lease).lease_losses))
        shop.claim(shop.mail)
    assert seen == [("PENDING", 1), ("FAILED", 2)]
    assert [event.how for event in shop.told(Recovered)] == ["lose", "fail"]


def test_a_kind_that_holds_what_was_lost_waits_for_an_operator(shop: Shop) -> None:
    """It is not claimed again by itself."""
    lease = shop.held(shop.parcel)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).phase, shop.job(lease).held_reason) == ("pending", "lease lost")
    assert shop.claim(shop.parcel) == []
    assert [event.how for event in shop.told(Recovered)] == ["hold"]


def test_rule_28_a_lost_job_that_was_asked_to_stop_is_cancelled(shop: Shop) -> None:
    """It does not come back."""
    lease = shop.held(shop.mail)
    shop.app.cancel(lease.job.id, by="olga")
    shop.advance(31)
    shop.maintenance().run_once()
    assert shop.job(lease).state == "CANCELLED"


def test_more_than_one_batch_is_recovered_in_one_round(shop: Shop) -> None:
    """A worker of many slots that died leaves more than a hundred."""
    shop.app.enqueue_many([shop.mail.request() for _ in range(230)])
    assert len(shop.claim(shop.mail, 500)) == 230
    shop.advance(31)
    assert shop.maintenance().run_once() == 230
    assert shop.store.inspect.counts()["standard"] == {"PENDING": 230}


def test_two_maintenance_recover_each_execution_once(shop: Shop) -> None:
    """There is no leader, and no try is spent twice."""
    shop.app.enqueue_many([shop.mail.request() for _ in range(150)])
    shop.claim(shop.mail, 500)
    shop.advance(31)
    maintenance = [shop.maintenance("w1#a"), shop.maintenance("w2#b")]
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda maintenance=maintenance: done.append(maintenance.run_once()))
        for maintenance in maintenance
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 150
    assert {job.tries_left for job in shop.store.inspect.jobs(limit=500)} == {1}
    assert verify(shop.store).ok


def test_rule_04_a_maintenance_leaves_kinds_that_it_does_not_know_alone(shop: Shop, place: Place) -> None:
    """Neither its leases nor its time to live are another app's affair."""
    stranger = Bench(place)

    @stranger.app.job()
    def foreign(run: SyncRun) -> None: ...

    stranger.join(shop)
    lease = stranger.held(foreign)
    waiting = foreign.using(ttl=1).enqueue().id
    shop.advance(3600)
    before = place.raw.dump()
    assert shop.maintenance().run_once() == 0
    assert place.raw.dump() == before
    assert shop.told(WorkerError) == []
    assert stranger.maintenance("s#1").run_once() == 2
    assert (stranger.job(lease).state, stranger.store.inspect.get(waiting).state) == ("PENDING", "EXPIRED")
    stranger.app.close()


def test_rule_05_maintenance_leaves_handed_over_work_alone(place: Place) -> None:
    """The work is elsewhere: however late its check, no sweep of leases takes it."""
    bench = Bench(place)

    @bench.app.job()
    def fetch(run: SyncRun) -> None: ...

    bench.begin()
    lease = bench.held(fetch)
    bench.move(lease, Handed("hash-1", 15.0))
    bench.advance(DAY)
    assert bench.maintenance().run_once() == 0
    assert bench.job(lease).phase == "running"
    bench.app.close()


def test_rule_09_job_that_cannot_be_settled_stops_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and left to its new lease."""
    bad, good = shop.held(shop.paint), shop.held(shop.mail)
    shop.advance(31)
    lifecycle = shop.store.registry.lifecycle

    def broken(name: str, version: int) -> Lifecycle:
        if name == "image":
            raise ValueError("no such lifecycle")
        return lifecycle(name, version)

    monkeypatch.setattr(shop.store.registry, "lifecycle", broken)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(bad).phase, shop.job(good).phase) == ("running", "pending")
    assert [str(event.error) for event in shop.told(WorkerError)] == ["no such lifecycle"]


# ---------------------------------------------------------------- past the commit
def test_rule_30_what_was_committed_is_given_to_be_finished(shop: Shop) -> None:
    """By the same execution, with its value; and never run again."""
    lease = shop.committed(shop.bill)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    (given,) = shop.finished
    assert (given.fence.job_id, given.fence.attempt, given.holder, given.status, given.result) == (
        lease.job.id,
        1,
        2,
        "COMMITTED",
        '"kept"',
    )
    assert shop.job(lease).phase == "running"
    assert [event.how for event in shop.told(Recovered)] == ["finish"]


def test_what_was_committed_and_needs_no_finish_is_done_at_once(shop: Shop) -> None:
    """There is nothing left to run."""
    lease = shop.committed(shop.mail)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).state, shop.job(lease).result) == ("SUCCEEDED", "kept")
    assert shop.finished == []
    assert [event.how for event in shop.told(Recovered)] == ["succeed"]


def test_rule_30_a_finish_that_ends_its_worker_every_time_is_given_up(shop: Shop) -> None:
    """After as many times as the kind has tries; the job has succeeded all the same."""
    lease = shop.committed(shop.bill)
    for _ in range(4):
        shop.advance(31)
        shop.maintenance().run_once()
    assert len(shop.finished) == 3
    assert (shop.job(lease).state, shop.job(lease).result) == ("SUCCEEDED", "kept")
    (execution,) = shop.store.inspect.executions(lease.job.id)
    assert (execution.status, execution.attempt) == ("DONE", 1)
    assert "is not retried" in (execution.error or "")
    assert [event.failures for event in shop.told(FinishFailed)] == [4]


def test_a_worker_that_takes_nothing_to_finish_leaves_it_to_the_next(shop: Shop) -> None:
    """Its loop may be closing: the others are settled all the same."""
    committed, lost = shop.committed(shop.bill), shop.held(shop.mail)
    shop.advance(31)

    def closed(lease: Lease, asked_at: float) -> None:
        raise RuntimeError("the event loop is closed")

    shop.finish = closed
    assert shop.maintenance().run_once() == 1
    assert (shop.job(committed).phase, shop.job(lost).phase) == ("running", "pending")
    assert shop.store.inspect.executions(committed.job.id)[0].status == "COMMITTED"


def test_no_more_is_adopted_to_be_finished_than_there_is_room_for(shop: Shop) -> None:
    """The rest is left to others. What ran, and what needs no finish, is recovered whatever the room."""
    for _ in range(5):
        shop.committed(shop.bill)
    plain, lost = shop.committed(shop.mail), shop.held(shop.mail)
    shop.advance(31)
    shop.room = 2
    maintenance = shop.maintenance()
    assert maintenance.run_once() == 4
    assert (shop.job(plain).phase, shop.job(lost).phase) == ("succeeded", "pending")
    assert (len(shop.finished), maintenance.has_more) == (2, True)
    shop.room = 0
    assert (maintenance.run_once(), maintenance.has_more) == (0, True)
    shop.room = 9
    assert (maintenance.recover(), maintenance.has_more) == (3, False)
    assert (len(shop.finished), maintenance.recover()) == (5, 0)


def test_an_adopted_lease_is_trusted_from_when_it_was_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from when a slow database answered: by then others may have it."""
    shop.committed(shop.bill)
    shop.advance(31)
    asked, adopt = shop.sleeper.at, shop.store.leases.adopt

    def slow(*args: Any, **kwargs: Any) -> list[Lease]:
        leases = adopt(*args, **kwargs)
        if leases:
            shop.sleeper.at += 25
        return leases

    monkeypatch.setattr(shop.store.leases, "adopt", slow)
    assert shop.maintenance().run_once() == 1
    assert shop.trusted_from == [asked]
