"""Maintenance: each execution with an expired lease is recovered once, by a worker that knows its kind."""

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
    """An app with all sorts of kinds."""

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


# ---------------------------------------------------------------- expired leases
def test_rule_02_expired_lease_is_adopted_and_then_lost_by_its_new_holder(shop: Shop) -> None:
    """The job is due at once with one try less, and the audit names maintenance as the actor."""
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
    # Only the dead worker knew how long the attempt waited and ran.
    assert [(event.outcome, event.waited, event.ran) for event in shop.told(AttemptEnded)] == [("lose", None, None)]


def test_lease_that_has_not_expired_is_left_alone(shop: Shop) -> None:
    """0.1 seconds before it expires, maintenance does nothing."""
    lease = shop.held(shop.mail)
    shop.advance(29.9)
    assert shop.maintenance().run_once() == 0
    assert shop.store.inspect.executions(lease.job.id)[0].holder == 1


def test_rule_31_job_that_loses_every_lease_fails_after_its_tries(shop: Shop) -> None:
    """Each loss is counted, and the job is a suspect in its next attempt."""
    lease = shop.held(shop.mail)
    seen = []
    for _ in range(2):
        shop.advance(31)
        shop.maintenance().run_once()
        seen.append((shop.job(lease).state, shop.job(lease).lease_losses))
        shop.claim(shop.mail)
    assert seen == [("PENDING", 1), ("FAILED", 2)]
    assert [event.how for event in shop.told(Recovered)] == ["lose", "fail"]


def test_lost_job_with_on_lost_lease_hold_is_held(shop: Shop) -> None:
    """It is not claimed until an operator releases it."""
    lease = shop.held(shop.parcel)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).phase, shop.job(lease).held_reason) == ("pending", "lease lost")
    assert shop.claim(shop.parcel) == []
    assert [event.how for event in shop.told(Recovered)] == ["hold"]


def test_rule_28_lost_job_with_a_cancel_request_is_cancelled(shop: Shop) -> None:
    """It does not run again."""
    lease = shop.held(shop.mail)
    shop.app.cancel(lease.job.id, by="olga")
    shop.advance(31)
    shop.maintenance().run_once()
    assert shop.job(lease).state == "CANCELLED"


def test_one_round_recovers_more_than_one_batch(shop: Shop) -> None:
    """A dead worker with many slots leaves more than a hundred executions."""
    shop.app.enqueue_many([shop.mail.request() for _ in range(230)])
    assert len(shop.claim(shop.mail, 500)) == 230
    shop.advance(31)
    assert shop.maintenance().run_once() == 230
    assert shop.store.inspect.counts()["standard"] == {"PENDING": 230}


def test_two_maintenance_instances_recover_each_execution_once(shop: Shop) -> None:
    """There is no leader, and no try is charged twice."""
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


def test_rule_04_maintenance_ignores_unknown_kinds(shop: Shop, place: Place) -> None:
    """It neither recovers nor expires jobs of another app."""
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
    """The external system does the work, so no sweep takes the job, however late its check."""
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
    """The error is reported, and the job waits until its new lease expires."""
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


# ---------------------------------------------------------------- after the commit
def test_rule_30_committed_execution_is_finished_and_not_run_again(shop: Shop) -> None:
    """Finish runs in the same execution, with the committed value."""
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


def test_committed_execution_without_finish_succeeds_at_once(shop: Shop) -> None:
    """No function has to run."""
    lease = shop.committed(shop.mail)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).state, shop.job(lease).result) == ("SUCCEEDED", "kept")
    assert shop.finished == []
    assert [event.how for event in shop.told(Recovered)] == ["succeed"]


def test_rule_30_finish_that_kills_every_worker_is_given_up(shop: Shop) -> None:
    """It is given up after as many runs as the kind has tries. The job has still succeeded."""
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


def test_committed_execution_stays_if_the_worker_cannot_take_it(shop: Shop) -> None:
    """The event loop may be closing. Other executions are still recovered."""
    committed, lost = shop.committed(shop.bill), shop.held(shop.mail)
    shop.advance(31)

    def closed(lease: Lease, asked_at: float) -> None:
        raise RuntimeError("the event loop is closed")

    shop.finish = closed
    assert shop.maintenance().run_once() == 1
    assert (shop.job(committed).phase, shop.job(lost).phase) == ("running", "pending")
    assert shop.store.inspect.executions(committed.job.id)[0].status == "COMMITTED"


def test_committed_executions_are_adopted_only_for_free_slots(shop: Shop) -> None:
    """The rest is left to other workers. Running executions and those without finish are always recovered."""
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


def test_adopted_lease_is_trusted_from_the_time_of_its_request(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a slow answer does not count; by then another worker may have adopted the execution."""
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
