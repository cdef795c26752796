"""Time to live, retention, and the maintenance rounds that apply them."""

import itertools
from typing import Any

import pytest

from interlock import Job, Lifecycle, SyncRun
from interlock.core.outcome import FailedFinally, Returned, Started
from interlock.errors import Unavailable, UsageError
from interlock.store.types import WorkerFacts
from interlock.telemetry.events import Recovered, WorkerError
from tests.kit import Place, Raw
from tests.loops.maintenance_bench import Bench, Timer
from tests.loops.test_maintenance import DAY, IMAGE, Shop, shop

__all__ = ["shop"]


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("the database is unreachable")


# ---------------------------------------------------------------- time to live
def test_job_expires_after_its_time_to_live(shop: Shop) -> None:
    """One round expires many jobs. A job with time left stays."""
    old = [shop.mail.using(ttl=10).enqueue().id for _ in range(130)]
    young = shop.mail.using(ttl=60).enqueue().id
    shop.advance(11)
    assert shop.maintenance().run_once() == 130
    assert {shop.store.inspect.get(id).state for id in old} == {"EXPIRED"}
    assert shop.store.inspect.get(young).state == "PENDING"
    assert shop.store.inspect.history(old[0])[-1].actor == "w1#boot/maintenance"


def test_hook_runs_in_the_transaction_of_the_expiry(shop: Shop) -> None:
    """The hook gets the job in its expired state."""
    id = shop.paint.using(ttl=10).enqueue().id
    shop.advance(11)
    assert shop.maintenance().run_once() == 1
    assert shop.store.inspect.get(id).state == "expired"
    assert shop.entered == [(id, "expired")]


def test_expiry_with_a_failing_hook_is_retried_and_stops_no_other(shop: Shop) -> None:
    """Rule 27: the job does not expire until its hook succeeds. The pauses grow, and one failure is recorded."""
    shop.broken = True
    id, other = shop.paint.using(ttl=10).enqueue().id, shop.mail.using(ttl=11).enqueue().id
    shop.advance(11)
    maintenance = shop.maintenance()
    assert maintenance.run_once() == 1
    assert (shop.store.inspect.get(id).state, shop.store.inspect.get(other).state) == ("queued", "EXPIRED")
    tried = []
    for _ in range(5):
        shop.advance(1)
        maintenance.run_once()
        tried.append(len(shop.entered))
    assert tried == [1, 1, 1, 2, 2]
    shop.broken = False
    shop.advance(7)
    assert maintenance.run_once() == 1
    assert shop.store.inspect.get(id).state == "expired"
    assert [entry.event for entry in shop.store.inspect.history(id) if entry.n] == ["hook_failed"]


def test_expiry_whose_hook_cannot_reach_a_database_stops_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance's own database is reachable, so the error counts as a hook error and not as an outage."""

    def enter(job: Job) -> None:
        raise Unavailable("the other server is unreachable")

    monkeypatch.setattr(shop, "enter", enter)
    id, other = shop.paint.using(ttl=10).enqueue().id, shop.mail.using(ttl=11).enqueue().id
    shop.advance(11)
    assert shop.maintenance().run_once() == 1
    assert (shop.store.inspect.get(id).state, shop.store.inspect.get(other).state) == ("queued", "EXPIRED")


def test_ttl_needs_an_expire_transition_from_every_waiting_state(place: Place) -> None:
    """A job past its TTL is never claimed. Without an `expire` transition it would stay there forever."""
    bench = Bench(place)
    arrows = [
        (arrow.source, arrow.event, arrow.target)
        for arrow in IMAGE.arrows
        if (arrow.source, arrow.event) != ("failed", "expire")
    ]

    @bench.app.job(lifecycle=Lifecycle("image", transitions=arrows))
    def paint(run: SyncRun) -> None: ...

    with pytest.raises(UsageError, match="has no `expire` transition from failed"):
        paint.using(ttl=10)


# ---------------------------------------------------------------- retention
def test_rule_34_retention_deletes_old_successes_and_keeps_failures(shop: Shop) -> None:
    """The audit of deleted jobs stays."""
    good, bad = shop.held(shop.mail), shop.held(shop.mail)
    shop.move(good, Returned("null", boundary=False))
    shop.move(bad, FailedFinally("broken"))
    shop.advance(7 * DAY + 1)
    fresh = shop.held(shop.mail)
    shop.move(fresh, Returned("null", boundary=False))
    assert shop.maintenance(retention={"succeeded": 7 * DAY}).run_once() == 1
    assert {job.id for job in shop.store.inspect.jobs()} == {bad.job.id, fresh.job.id}
    assert shop.store.inspect.history(good.job.id)


def test_pruning_runs_once_a_minute_and_continues_while_jobs_are_left(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round deletes a limited number of jobs."""
    asked: list[float] = []
    left = [25_000]

    def prune(*, phase: str, age: float, limit: int, kinds: list[str]) -> int:
        asked.append(shop.sleeper.at)
        gone = min(left[0], limit)
        left[0] -= gone
        return gone

    monkeypatch.setattr(shop.store.retention, "prune", prune)
    maintenance = shop.maintenance(retention={"succeeded": DAY})
    done = []
    for _ in range(63):
        done.append(maintenance.run_once())
        shop.advance(1)
    assert done == [10_000, 10_000, 5_000, *[0] * 60]
    assert len(asked) == 10 + 10 + 6 + 1


def test_ended_windows_of_unique_keys_are_deleted_once_a_minute(shop: Shop, raw: Raw) -> None:
    maintenance = shop.maintenance(retention={})
    shop.move(shop.held(shop.mail.using(unique_key="u", unique_for=100)), Returned("null", boundary=False))
    for seconds, left in ((0, 1), (120, 1), (61, 0)):
        shop.advance(seconds)
        maintenance.run_once()
        assert raw("SELECT count(*) FROM {unique_windows}") == [(left,)]


def test_worker_without_a_heartbeat_is_deleted_after_a_day(shop: Shop) -> None:
    """It is not deleted before."""
    shop.store.workers.report(WorkerFacts("w0#old", "host", 1, "Idle", 1, 0, ("mail",), ("default",)))
    shop.advance(DAY - 1)
    maintenance = shop.maintenance()
    maintenance.run_once()
    assert len(shop.store.workers.all()) == 1
    shop.advance(61)
    maintenance.run_once()
    assert shop.store.workers.all() == []


# ---------------------------------------------------------------- rounds
def test_rule_33_maintenance_has_its_own_timer(shop: Shop) -> None:
    """A round runs at once, then every second with jitter, until the worker stops. The event loop takes no part."""
    shop.held(shop.mail)
    shop.advance(1)
    shop.held(shop.mail)
    shop.advance(29.5)
    recovered: list[int] = []

    def a_second_passes() -> None:
        recovered.append(len(shop.told(Recovered)))
        shop.advance(1)

    context, timer = shop.context(), Timer(3, a_second_passes)
    draws = itertools.count()
    context.stopped, context.random = timer, lambda: next(draws) % 10 / 10
    shop.maintenance(context=context).run()
    assert recovered == [1, 2, 2]
    assert all(0.75 <= pause < 1.25 for pause in timer.pauses)
    assert len(set(timer.pauses)) > 1


def test_failing_task_of_maintenance_stops_no_other_task(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported, and the task runs again in the next round."""
    waiting = shop.mail.using(ttl=5).enqueue().id
    shop.advance(6)
    monkeypatch.setattr(shop.store.inspect, "maintenance_due", lambda *_, **__: 1 / 0)
    maintenance = shop.maintenance()
    assert maintenance.run_once() == 1
    assert shop.store.inspect.get(waiting).state == "EXPIRED"
    assert [(event.where, type(event.error)) for event in shop.told(WorkerError)] == [
        ("maintenance: recover", ZeroDivisionError)
    ]
    shop.advance(1)
    assert maintenance.recover() == 0


def test_database_outage_is_reported_and_delays_recovery(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer round reports the outage. The sweep of the loop raises it, because the loop must wait. After the outage,
    live workers get time to renew their leases.
    """
    shop.held(shop.mail)
    shop.advance(31)
    maintenance = shop.maintenance()
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.leases, "adopt", away)
        assert maintenance.run_once() == 0
        assert isinstance(shop.told(WorkerError)[0].error, Unavailable)
        other = shop.maintenance("w2#b")
        with pytest.raises(Unavailable):
            other.recover()
    for _ in range(4):
        shop.advance(2)
        assert (maintenance.run_once(), other.run_once()) == (0, 0)
    shop.advance(2)
    assert (maintenance.run_once(), other.run_once()) == (1, 0)


def test_rule_03_short_leases_also_leave_workers_time_to_reconnect(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live worker may notice only after a third of its lease that the database is reachable again."""
    bench = Bench(place)

    @bench.app.job(lease=3)
    def brief(run: SyncRun) -> None: ...

    bench.begin()
    bench.held(brief)
    bench.advance(4)
    maintenance = bench.maintenance()
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.leases, "adopt", away)
        assert maintenance.run_once() == 0
    seen = []
    for _ in range(5):
        bench.advance(1)
        seen.append(maintenance.run_once())
    bench.app.close()
    assert seen == [0, 0, 0, 1, 0]


def test_sweep_of_the_loop_is_skipped_within_a_second_of_the_last(shop: Shop) -> None:
    """A busy loop enters Recovery many times per second."""
    maintenance = shop.maintenance()
    shop.held(shop.mail)
    assert maintenance.recover() == 0
    asked: list[str] = []
    ask = shop.store.inspect.maintenance_due
    shop.store.inspect.maintenance_due = lambda kinds: asked.append("due") or ask(kinds)  # type: ignore[method-assign,func-returns-value]
    shop.advance(0.9)
    maintenance.recover()
    assert asked == []
    shop.advance(0.1)
    maintenance.recover()
    assert asked == ["due"]


def test_sweep_of_the_loop_does_not_wait_for_a_sweep_of_the_timer(shop: Shop) -> None:
    """One maintenance instance never runs two sweeps at once."""
    shop.held(shop.mail)
    shop.advance(31)
    maintenance = shop.maintenance()
    adopt, inside = shop.store.leases.adopt, []

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        inside.append(maintenance.recover())
        return adopt(*args, **kwargs)

    shop.store.leases.adopt = meanwhile  # type: ignore[method-assign]
    assert maintenance.run_once() == 1
    assert inside == [0]


def test_leased_job_that_did_not_start_is_recovered(place: Place) -> None:
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
    assert bench.maintenance().run_once() == 1
    assert bench.job(lease).state == "PENDING"
    (again,) = bench.claim(mail)
    bench.move(again, Started())
    bench.app.close()
