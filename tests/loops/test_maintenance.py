"""The keeper: what others left behind is taken up, once, and by those who know it."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from interlock import Backoff, Job, Lifecycle, Run, SyncRun
from interlock.errors import Unavailable, UsageError
from interlock.events import AttemptEnded, FinishFailed, HookFailed, Recovered, Trouble
from interlock.outcome import Failed, Handed, Returned, Started
from interlock.records import Beat, Lease, WorkerFacts
from interlock.stores import OpenStore
from interlock.verify import verify
from tests.kit import Place
from tests.loops.keepers import Bench, Timer

IMAGE = Lifecycle("image", transitions=[
    ("queued", "claim", "running"), ("queued", "expire", "expired"), ("queued", "cancel", "canceled"), ("running", "succeed", "completed"),
    ("running", "fail", "failed"), ("running", "lose", "queued"), ("failed", "retry", "queued"), ("failed", "expire", "expired"),
    ("failed", "bury", "dead_letter"),
])
DAY = 86_400.0


class Shop(Bench):
    """Kinds of every sort that a keeper meets."""

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


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("the database is away")


# ---------------------------------------------------------------- leases that ended
def test_rule_02_a_lost_lease_is_adopted_then_lost_by_its_new_holder(shop: Shop) -> None:
    """The job waits again at once, a try poorer, and the audit names the keeper."""
    lease = shop.held(shop.mail)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    job, (execution,) = shop.job(lease), shop.store.executions(lease.job.id)
    assert (job.state, job.phase, job.tries_left, job.due_at) == ("PENDING", "pending", 1, shop.store.now())
    assert (execution.status, execution.ended_by, execution.holder, execution.lease_owner) == ("ABORTED", "lose", 2, "w1#boot/keeper")
    assert shop.store.history(job.id)[-1].actor == "w1#boot/keeper"
    assert [(event.kind, event.job_id, event.how) for event in shop.told(Recovered)] == [("mail", job.id, "lose")]
    # Only the worker that is gone knows how long the attempt waited and ran.
    assert [(event.outcome, event.waited, event.ran) for event in shop.told(AttemptEnded)] == [("lose", None, None)]


def test_a_lease_that_has_not_ended_is_left_alone(shop: Shop) -> None:
    """Not one moment before."""
    lease = shop.held(shop.mail)
    shop.advance(29.9)
    assert shop.keeper().run_once() == 0
    assert shop.store.executions(lease.job.id)[0].holder == 1


def test_rule_31_a_job_that_loses_every_lease_fails_after_its_tries(shop: Shop) -> None:
    """Each loss is counted, so that the next attempt is a suspect's."""
    lease = shop.held(shop.mail)
    seen = []
    for _ in range(2):
        shop.advance(31)
        shop.keeper().run_once()
        seen.append((shop.job(lease).state, shop.job(lease).lease_losses))
        shop.claim(shop.mail)
    assert seen == [("PENDING", 1), ("FAILED", 2)]
    assert [event.how for event in shop.told(Recovered)] == ["lose", "fail"]


def test_a_kind_that_holds_what_was_lost_waits_for_an_operator(shop: Shop) -> None:
    """It is not claimed again by itself."""
    lease = shop.held(shop.parcel)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    assert (shop.job(lease).phase, shop.job(lease).held_reason) == ("pending", "lease lost")
    assert shop.claim(shop.parcel) == []
    assert [event.how for event in shop.told(Recovered)] == ["hold"]


def test_rule_28_a_lost_job_that_was_asked_to_stop_is_cancelled(shop: Shop) -> None:
    """It does not come back."""
    lease = shop.held(shop.mail)
    shop.app.cancel(lease.job.id, by="olga")
    shop.advance(31)
    shop.keeper().run_once()
    assert shop.job(lease).state == "CANCELLED"


def test_more_than_one_batch_is_recovered_in_one_round(shop: Shop) -> None:
    """A worker of many slots that died leaves more than a hundred."""
    shop.app.enqueue_many([shop.mail.call() for _ in range(230)])
    assert len(shop.claim(shop.mail, 500)) == 230
    shop.advance(31)
    assert shop.keeper().run_once() == 230
    assert shop.store.counts()["standard"] == {"PENDING": 230}


def test_two_keepers_recover_each_execution_once(shop: Shop) -> None:
    """There is no leader, and no try is spent twice."""
    shop.app.enqueue_many([shop.mail.call() for _ in range(150)])
    shop.claim(shop.mail, 500)
    shop.advance(31)
    keepers = [shop.keeper("w1#a"), shop.keeper("w2#b")]
    done: list[int] = []
    threads = [threading.Thread(target=lambda keeper=keeper: done.append(keeper.run_once())) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 150
    assert {job.tries_left for job in shop.store.jobs(limit=500)} == {1}
    assert verify(shop.store).ok


def test_rule_04_a_keeper_leaves_kinds_that_it_does_not_know_alone(shop: Shop, place: Place) -> None:
    """Neither its leases nor its time to live are another app's affair."""
    stranger = Bench(place)

    @stranger.app.job()
    def foreign(run: SyncRun) -> None: ...

    stranger.join(shop)
    lease = stranger.held(foreign)
    waiting = foreign.using(ttl=1).enqueue().id
    shop.advance(3600)
    before = place.raw.dump()
    assert shop.keeper().run_once() == 0
    assert place.raw.dump() == before
    assert shop.told(Trouble) == []
    assert stranger.keeper("s#1").run_once() == 2
    assert (stranger.job(lease).state, stranger.store.get(waiting).state) == ("PENDING", "EXPIRED")
    stranger.app.close()


def test_rule_05_handed_work_is_no_keepers_affair(place: Place) -> None:
    """The work is elsewhere: however late its check, no sweep of leases takes it."""
    bench = Bench(place)

    @bench.app.job()
    def fetch(run: SyncRun) -> None: ...

    bench.begin()
    lease = bench.held(fetch)
    bench.move(lease, Handed("hash-1", 15.0))
    bench.advance(DAY)
    assert bench.keeper().run_once() == 0
    assert bench.job(lease).phase == "running"
    bench.app.close()


def test_rule_09_one_that_cannot_be_settled_stops_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and left to its new lease."""
    bad, good = shop.held(shop.paint), shop.held(shop.mail)
    shop.advance(31)
    lifecycle = shop.store.lifecycle

    def broken(name: str, version: int) -> Lifecycle:
        if name == "image":
            raise ValueError("no such lifecycle")
        return lifecycle(name, version)

    monkeypatch.setattr(shop.store, "lifecycle", broken)
    assert shop.keeper().run_once() == 1
    assert (shop.job(bad).phase, shop.job(good).phase) == ("running", "pending")
    assert [str(event.error) for event in shop.told(Trouble)] == ["no such lifecycle"]


# ---------------------------------------------------------------- past the commit
def test_rule_30_what_was_committed_is_given_to_be_finished(shop: Shop) -> None:
    """By the same execution, with its value; and never run again."""
    lease = shop.committed(shop.bill)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    (given,) = shop.finished
    assert (given.fence.job_id, given.fence.attempt, given.holder, given.status, given.result) == (lease.job.id, 1, 2, "COMMITTED", '"kept"')
    assert shop.job(lease).phase == "running"
    assert [event.how for event in shop.told(Recovered)] == ["finish"]


def test_what_was_committed_and_needs_no_finish_is_done_at_once(shop: Shop) -> None:
    """There is nothing left to run."""
    lease = shop.committed(shop.mail)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    assert (shop.job(lease).state, shop.job(lease).result) == ("SUCCEEDED", "kept")
    assert shop.finished == []
    assert [event.how for event in shop.told(Recovered)] == ["succeed"]


def test_rule_30_a_finish_that_ends_its_worker_every_time_is_given_up(shop: Shop) -> None:
    """After as many times as the kind has tries; the job has succeeded all the same."""
    lease = shop.committed(shop.bill)
    for _ in range(4):
        shop.advance(31)
        shop.keeper().run_once()
    assert len(shop.finished) == 3
    assert (shop.job(lease).state, shop.job(lease).result) == ("SUCCEEDED", "kept")
    (execution,) = shop.store.executions(lease.job.id)
    assert (execution.status, execution.attempt) == ("DONE", 1)
    assert "given up" in (execution.error or "")
    assert [event.failures for event in shop.told(FinishFailed)] == [4]


def test_a_worker_that_takes_nothing_to_finish_leaves_it_to_the_next(shop: Shop) -> None:
    """Its loop may be closing: the others are settled all the same."""
    committed, lost = shop.committed(shop.bill), shop.held(shop.mail)
    shop.advance(31)

    def closed(lease: Lease, asked_at: float) -> None:
        raise RuntimeError("the event loop is closed")

    shop.finish = closed
    assert shop.keeper().run_once() == 1
    assert (shop.job(committed).phase, shop.job(lost).phase) == ("running", "pending")
    assert shop.store.executions(committed.job.id)[0].status == "COMMITTED"


def test_no_more_is_adopted_to_be_finished_than_there_is_room_for(shop: Shop) -> None:
    """The rest is left to others. What ran, and what needs no finish, is recovered whatever the room."""
    for _ in range(5):
        shop.committed(shop.bill)
    plain, lost = shop.committed(shop.mail), shop.held(shop.mail)
    shop.advance(31)
    shop.room = 2
    keeper = shop.keeper()
    assert keeper.run_once() == 4
    assert (shop.job(plain).phase, shop.job(lost).phase) == ("succeeded", "pending")
    assert (len(shop.finished), keeper.owed) == (2, True)
    shop.room = 0
    assert (keeper.run_once(), keeper.owed) == (0, True)
    shop.room = 9
    assert (keeper.recover(), keeper.owed) == (3, False)
    assert (len(shop.finished), keeper.recover()) == (5, 0)


def test_an_adopted_lease_is_trusted_from_when_it_was_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from when a slow database answered: by then others may have it."""
    shop.committed(shop.bill)
    shop.advance(31)
    asked, adopt = shop.waits.at, shop.store.adopt

    def slow(*args: Any, **kwargs: Any) -> list[Lease]:
        leases = adopt(*args, **kwargs)
        if leases:
            shop.waits.at += 25
        return leases

    monkeypatch.setattr(shop.store, "adopt", slow)
    assert shop.keeper().run_once() == 1
    assert shop.trusted_from == [asked]


# ---------------------------------------------------------------- hooks
def test_rule_27_the_hook_runs_with_the_move_that_a_keeper_makes(shop: Shop) -> None:
    """Both arrows of the last loss are walked, and the state's function sees the job there."""
    lease = shop.held(shop.paint)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    assert shop.job(lease).state == "dead_letter"
    assert shop.entered == [(lease.job.id, "dead_letter")]


def test_rule_27_a_hook_that_raises_is_tried_again_ever_later_and_stops_no_other(shop: Shop) -> None:
    """The move is not made meanwhile, and the keeper waits for nobody."""
    shop.broken = True
    lease, other = shop.held(shop.paint), shop.held(shop.mail)
    shop.advance(31)
    assert shop.keeper().run_once() == 1
    assert (shop.job(lease).state, shop.job(other).state) == ("running", "PENDING")
    tried = [1]
    for _ in range(11):
        shop.advance(1)
        shop.keeper().run_once()
        tried.append(len(shop.entered))
    assert tried == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    shop.broken = False
    shop.advance(1)
    assert shop.keeper().run_once() == 1
    assert (shop.job(lease).state, shop.job(lease).lease_losses) == ("dead_letter", 1)
    assert len(shop.told(HookFailed)) == 2
    assert [entry.event for entry in shop.store.history(lease.job.id) if entry.n].count("hook_failed") == 1


# ---------------------------------------------------------------- the living renew first
def test_rule_03_after_an_absence_nothing_is_swept_for_one_beat(shop: Shop) -> None:
    """Who renews meanwhile keeps the lease; who does not is dead."""
    alive, dead = shop.held(shop.mail), shop.held(shop.mail, by="bob")
    keeper = shop.keeper()
    keeper.run_once()
    shop.advance(60)
    keeper.was_away()
    assert (keeper.run_once(), keeper.recover()) == (0, 0)
    shop.advance(2.5)
    assert keeper.run_once() == 0
    assert shop.store.renew([Beat(alive.fence, 30.0)]).renewed == [alive.fence]
    for _ in range(3):
        shop.advance(2.5)
        keeper.run_once()
    assert (shop.job(alive).phase, shop.job(dead).phase) == ("running", "pending")
    shop.move(alive, Returned("null", boundary=False))


def test_rule_03_all_else_goes_on_meanwhile(shop: Shop) -> None:
    """Only other holders' leases need time."""
    waiting = shop.mail.using(ttl=5).enqueue().id
    shop.advance(6)
    keeper = shop.keeper()
    keeper.was_away()
    assert keeper.run_once() == 1
    assert shop.store.get(waiting).state == "EXPIRED"


def test_rule_03_a_keeper_that_stood_still_lets_a_beat_pass(shop: Shop) -> None:
    """It was frozen, or the database was: it cannot know which."""
    lease = shop.held(shop.mail)
    keeper = shop.keeper()
    keeper.run_once()
    shop.advance(31)
    assert keeper.run_once() == 0
    shop.advance(9)
    assert keeper.run_once() == 0
    shop.advance(1)
    assert keeper.run_once() == 1
    assert shop.job(lease).phase == "pending"


def test_rule_03_a_database_that_stood_still_is_noticed_before_it_is_told_to_take(shop: Shop) -> None:
    """The answer came, but half a minute late."""
    shop.held(shop.mail)

    def slowly() -> float | None:
        shop.store.up_for = lambda: None  # type: ignore[method-assign]
        shop.advance(31)
        return None

    shop.store.up_for = slowly  # type: ignore[method-assign]
    keeper = shop.keeper()
    assert keeper.run_once() == 0
    shop.advance(10)
    assert keeper.run_once() == 1


def test_a_keeper_that_is_always_late_recovers_all_the_same(shop: Shop) -> None:
    """On a machine without breath every second look is a sweep."""
    keeper = shop.keeper()
    keeper.run_once()
    found = []
    for _ in range(4):
        shop.held(shop.mail)
        shop.advance(31)
        found.append(keeper.run_once())
    assert found == [0, 2, 0, 2]


def test_rule_03_within_one_beat_of_the_servers_start_nothing_is_swept(shop: Shop) -> None:
    """Its clients are only just coming back."""
    shop.held(shop.mail)
    shop.advance(31)
    shop.up = 4.0
    keeper = shop.keeper()
    found = []
    for _ in range(4):
        found.append(keeper.run_once())
        shop.advance(2)
        shop.up += 2
    assert found == [0, 0, 0, 1]


@pytest.mark.parametrize("up", [-3600.0, float("-inf"), float("nan")])
def test_server_that_started_in_the_future_is_swept_at_once(shop: Shop, up: float) -> None:
    """Its clock was set back behind its own start, so its uptime says nothing, and recovery does not wait for it."""
    shop.held(shop.mail)
    shop.advance(31)
    shop.up = up
    assert shop.keeper().run_once() == 1


def test_a_worker_that_misses_the_database_does_not_sweep(shop: Shop) -> None:
    """Where our own renewals do not get through, neither do others'."""
    shop.held(shop.mail)
    shop.advance(31)
    desk = shop.desk()
    keeper = shop.keeper(desk=desk)
    desk.unwell.set()
    assert keeper.run_once() == 0
    desk.unwell.clear()
    shop.advance(2)
    assert keeper.run_once() == 0


def test_the_store_says_how_long_its_server_is_up(store: OpenStore, place: Place) -> None:
    """In real seconds, whatever the clock of leases says. A file has no server."""
    up = store.up_for()
    if place.url.startswith("sqlite"):
        assert up is None
    else:
        assert up is not None
        assert 0 < up <= (store.up_for() or 0) < up + 3600


# ---------------------------------------------------------------- time to live
def test_a_job_whose_time_to_live_has_ended_expires(shop: Shop) -> None:
    """Together with others like it; one that has time stays."""
    old = [shop.mail.using(ttl=10).enqueue().id for _ in range(130)]
    young = shop.mail.using(ttl=60).enqueue().id
    shop.advance(11)
    assert shop.keeper().run_once() == 130
    assert {shop.store.get(id).state for id in old} == {"EXPIRED"}
    assert shop.store.get(young).state == "PENDING"
    assert shop.store.history(old[0])[-1].actor == "w1#boot/keeper"


def test_the_hook_of_the_end_runs_in_the_transaction_of_the_expiry(shop: Shop) -> None:
    """With the job as it is there."""
    id = shop.paint.using(ttl=10).enqueue().id
    shop.advance(11)
    assert shop.keeper().run_once() == 1
    assert shop.store.get(id).state == "expired"
    assert shop.entered == [(id, "expired")]


def test_an_expiry_whose_hook_raises_is_tried_again_ever_later_and_stops_no_other(shop: Shop) -> None:
    """Rule 27: the move is not made meanwhile, and shown once."""
    shop.broken = True
    id, other = shop.paint.using(ttl=10).enqueue().id, shop.mail.using(ttl=11).enqueue().id
    shop.advance(11)
    keeper = shop.keeper()
    assert keeper.run_once() == 1
    assert (shop.store.get(id).state, shop.store.get(other).state) == ("queued", "EXPIRED")
    tried = []
    for _ in range(5):
        shop.advance(1)
        keeper.run_once()
        tried.append(len(shop.entered))
    assert tried == [1, 1, 1, 2, 2]
    shop.broken = False
    shop.advance(7)
    assert keeper.run_once() == 1
    assert shop.store.get(id).state == "expired"
    assert [entry.event for entry in shop.store.history(id) if entry.n] == ["hook_failed"]


def test_expiry_whose_hook_cannot_use_a_database_stops_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper's own database is reachable: the error belongs to the hook, and does not count as an outage."""

    def enter(job: Job) -> None:
        raise Unavailable("the other server is away")

    monkeypatch.setattr(shop, "enter", enter)
    id, other = shop.paint.using(ttl=10).enqueue().id, shop.mail.using(ttl=11).enqueue().id
    shop.advance(11)
    assert shop.keeper().run_once() == 1
    assert (shop.store.get(id).state, shop.store.get(other).state) == ("queued", "EXPIRED")


def test_a_ttl_needs_an_expire_wherever_the_job_may_wait(place: Place) -> None:
    """Past its TTL a job is never claimed: one that rests where no `expire` is drawn would stay there for ever."""
    bench = Bench(place)
    arrows = [(arrow.source, arrow.event, arrow.target) for arrow in IMAGE.arrows if (arrow.source, arrow.event) != ("failed", "expire")]

    @bench.app.job(lifecycle=Lifecycle("image", transitions=arrows))
    def paint(run: SyncRun) -> None: ...

    with pytest.raises(UsageError, match="draws no `expire` from failed"):
        paint.using(ttl=10)


# ---------------------------------------------------------------- retention
def test_rule_34_what_succeeded_goes_in_time_and_what_failed_is_kept(shop: Shop) -> None:
    """The audit stays."""
    good, bad = shop.held(shop.mail), shop.held(shop.mail)
    shop.move(good, Returned("null", boundary=False))
    shop.move(bad, Failed("broken"))
    shop.advance(7 * DAY + 1)
    fresh = shop.held(shop.mail)
    shop.move(fresh, Returned("null", boundary=False))
    assert shop.keeper(retention={"succeeded": 7 * DAY}).run_once() == 1
    assert {job.id for job in shop.store.jobs()} == {bad.job.id, fresh.job.id}
    assert shop.store.history(good.job.id)


def test_pruning_is_once_a_minute_and_goes_on_while_there_is_more(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded part of a round, however much there is."""
    asked: list[float] = []
    left = [25_000]

    def prune(*, phase: str, age: float, limit: int, kinds: list[str]) -> int:
        asked.append(shop.waits.at)
        gone = min(left[0], limit)
        left[0] -= gone
        return gone

    monkeypatch.setattr(shop.store, "prune", prune)
    keeper = shop.keeper(retention={"succeeded": DAY})
    done = []
    for _ in range(63):
        done.append(keeper.run_once())
        shop.advance(1)
    assert done == [10_000, 10_000, 5_000, *[0] * 60]
    assert len(asked) == 10 + 10 + 6 + 1


def test_a_worker_that_went_without_a_word_is_forgotten_after_a_day(shop: Shop) -> None:
    """And not before."""
    shop.store.report_worker(WorkerFacts("w0#old", "host", 1, "Idle", 1, 0, ("mail",), ("default",)))
    shop.advance(DAY - 1)
    keeper = shop.keeper()
    keeper.run_once()
    assert len(shop.store.workers()) == 1
    shop.advance(61)
    keeper.run_once()
    assert shop.store.workers() == []


# ---------------------------------------------------------------- rounds
def test_rule_33_the_keeper_has_its_own_timer(shop: Shop) -> None:
    """A round at once, then one a second, jittered, until its worker ends; no loop takes part."""
    shop.held(shop.mail)
    shop.advance(1)
    shop.held(shop.mail)
    shop.advance(29.5)
    recovered: list[int] = []

    def a_second_passes() -> None:
        recovered.append(len(shop.told(Recovered)))
        shop.advance(1)

    desk, timer = shop.desk(), Timer(3, a_second_passes)
    draws = itertools.count()
    desk.over, desk.draw = timer, lambda: next(draws) % 10 / 10
    shop.keeper(desk=desk).keep()
    assert recovered == [1, 2, 2]
    assert all(0.75 <= pause < 1.25 for pause in timer.pauses)
    assert len(set(timer.pauses)) > 1


def test_a_part_that_fails_stops_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and tried again in the next round."""
    waiting = shop.mail.using(ttl=5).enqueue().id
    shop.advance(6)
    monkeypatch.setattr(shop.store, "adopt", lambda *_, **__: 1 / 0)
    keeper = shop.keeper()
    assert keeper.run_once() == 1
    assert shop.store.get(waiting).state == "EXPIRED"
    assert [(event.where, type(event.error)) for event in shop.told(Trouble)] == [("keeper: recover", ZeroDivisionError)]
    shop.advance(1)
    assert keeper.recover() == 0


def test_a_database_that_is_away_is_told_and_gives_the_others_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer's round survives it; the loop's sweep says so, since the loop must wait."""
    shop.held(shop.mail)
    shop.advance(31)
    keeper = shop.keeper()
    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "adopt", away)
        assert keeper.run_once() == 0
        assert isinstance(shop.told(Trouble)[0].error, Unavailable)
        other = shop.keeper("w2#b")
        with pytest.raises(Unavailable):
            other.recover()
    for _ in range(4):
        shop.advance(2)
        assert (keeper.run_once(), other.run_once()) == (0, 0)
    shop.advance(2)
    assert (keeper.run_once(), other.run_once()) == (1, 0)


def test_rule_03_short_leases_too_leave_the_others_time_to_reconnect(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of their lease may be over before a live worker has noticed that the database is back."""
    bench = Bench(place)

    @bench.app.job(lease=3)
    def brief(run: SyncRun) -> None: ...

    bench.begin()
    bench.held(brief)
    bench.advance(4)
    keeper = bench.keeper()
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "adopt", away)
        assert keeper.run_once() == 0
    seen = []
    for _ in range(5):
        bench.advance(1)
        seen.append(keeper.run_once())
    bench.app.close()
    assert seen == [0, 0, 0, 1, 0]


def test_the_loops_sweep_is_skipped_where_one_was_just_made(shop: Shop) -> None:
    """A busy loop passes Recovery many times a second."""
    keeper = shop.keeper()
    shop.held(shop.mail)
    assert keeper.recover() == 0
    asked: list[str] = []
    adopt = shop.store.adopt
    shop.store.adopt = lambda *args, **kwargs: asked.append("adopt") or adopt(*args, **kwargs)  # type: ignore[method-assign]
    shop.advance(0.9)
    keeper.recover()
    assert asked == []
    shop.advance(0.1)
    keeper.recover()
    assert asked == ["adopt"]


def test_the_loop_does_not_wait_for_a_sweep_that_the_timer_makes(shop: Shop) -> None:
    """Two sweeps of one keeper are never made at once."""
    shop.held(shop.mail)
    shop.advance(31)
    keeper = shop.keeper()
    adopt, inside = shop.store.adopt, []

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        inside.append(keeper.recover())
        return adopt(*args, **kwargs)

    shop.store.adopt = meanwhile  # type: ignore[method-assign]
    assert keeper.run_once() == 1
    assert inside == [0]


def test_what_has_not_begun_is_recovered_like_what_has(place: Place) -> None:
    """Its worker died between claim and start."""
    bench = Bench(place)

    @bench.app.job()
    def mail(run: SyncRun) -> None: ...

    @mail.guard
    def guard(job: Job) -> None: ...

    bench.begin()
    lease = bench.held(mail)
    assert lease.status == "LEASED"
    bench.advance(31)
    assert bench.keeper().run_once() == 1
    assert bench.job(lease).state == "PENDING"
    (again,) = bench.claim(mail)
    bench.move(again, Started())
    bench.app.close()
