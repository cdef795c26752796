"""report_worker, remove_worker, workers, forget_workers, stuck: who works, who is silent, and whose work stands still."""

from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.outcome import Handed, Returned
from interlock.records import Beat, WorkerFacts
from interlock.store import Store
from tests.contract.kit import claim, claimed, finish, many, settle, started
from tests.kit import EPOCH, SettableClock

ANN = WorkerFacts("ann#1", "höst", 4711, "Polling", 8, 3, ("mail", "a \"b\" \\ 'c'"), ("default", "slow"))


# ---------------------------------------------------------------- who works
def test_a_worker_is_as_it_said_last(store: Store, other: Store, clock: SettableClock) -> None:
    """Its beat is now; when it began is kept from its first report."""
    assert store.workers() == []
    store.report_worker(ANN)
    clock.advance(10)
    other.report_worker(replace(ANN, state="Idle", busy=0, kinds=()))
    clock.advance(2.5)
    (seen,) = store.workers()
    assert seen.facts == replace(ANN, state="Idle", busy=0, kinds=())
    assert (seen.started_at, seen.beat_at, seen.silent) == (EPOCH, EPOCH + timedelta(seconds=10), pytest.approx(2.5))


def test_workers_stand_by_name(store: Store) -> None:
    """In the order of their letters, the same in both stores."""
    for name in ("b#2", "B#1", "a#9", "ä#1"):
        store.report_worker(replace(ANN, name=name))
    assert [seen.facts.name for seen in store.workers()] == ["B#1", "a#9", "b#2", "ä#1"]


def test_a_worker_that_has_gone_in_good_order_is_gone(store: Store) -> None:
    """It alone; who was never there is not missed."""
    store.report_worker(ANN)
    store.report_worker(replace(ANN, name="bob#1"))
    store.remove_worker("ann#1")
    store.remove_worker("nobody")
    assert [seen.facts.name for seen in store.workers()] == ["bob#1"]


def test_a_silent_worker_is_forgotten(store: Store, clock: SettableClock) -> None:
    """After exactly so many seconds without a beat; the answer says how many were."""
    store.report_worker(ANN)
    store.report_worker(replace(ANN, name="bob#1"))
    clock.advance(59)
    store.report_worker(replace(ANN, name="cid#1"))
    assert store.forget_workers(60) == 0
    clock.advance(1)
    assert store.forget_workers(60) == 2
    assert [seen.facts.name for seen in store.workers()] == ["cid#1"]


# ---------------------------------------------------------------- whose work stands still
def test_what_has_not_beaten_for_twice_its_lease_is_stuck(store: Store, clock: SettableClock) -> None:
    """Not a moment before; by the lease of each, begun or not."""
    short, long = claimed(store, lease=10.25), claimed(store, "deliver", lease=30)
    clock.advance(20.5)
    assert store.stuck(9) == []
    clock.advance(0.000001)
    assert store.stuck(9) == store.executions(short.job.id)
    clock.advance(40)
    assert [each.job_id for each in store.stuck(9)] == [short.job.id, long.job.id]
    assert store.stuck(9)[1] == store.executions(long.job.id)[0]


def test_the_oldest_come_first_of_all_kinds(store: Store, clock: SettableClock) -> None:
    """By their last heartbeat, and of each kind no more than asked: a crowd of one does not hide another."""
    order: list[str] = []
    for kind, lease in (("paint", 1), ("mail", 9), ("chore", 4), ("mail", 2)):
        order.append(claimed(store, kind, lease=lease).job.id)
        clock.advance(5)
    clock.advance(100)
    assert [each.job_id for each in store.stuck(9)] == order
    assert [each.job_id for each in store.stuck(2)] == order
    assert [each.job_id for each in store.stuck(1)] == order[:3]
    assert store.stuck(0) == []


def test_what_is_renewed_or_has_ended_is_not_stuck(store: Store, clock: SettableClock) -> None:
    """A beat begins the time anew."""
    store.enqueue(many(2))
    kept, ended = claim(store, lease=10)
    clock.advance(15)
    store.renew([Beat(kept.fence, 10)])
    finish(store, ended)
    clock.advance(15)
    assert store.stuck(9) == []
    clock.advance(6)
    assert [each.job_id for each in store.stuck(9)] == [kept.job.id]


def test_handed_over_work_is_never_stuck(store: Store, clock: SettableClock) -> None:
    """It has no worker's heartbeat, also where it is past the boundary; other work that is committed and not finished has."""
    settle(store, started(store, "fetch", lease=10), Handed("x1", 5.0))
    clock.advance(5)
    (adopted,) = store.adopt("rita", ["fetch"], 10, 1, external=True)
    settle(store, adopted, Returned("1", boundary=True))
    settle(store, started(store, "fetch", lease=10), Handed("x2", 5.0))
    committed = settle(store, started(store, "mail", lease=10), Returned("1", boundary=True))
    clock.advance(1000)
    assert [each.job_id for each in store.stuck(9)] == [committed.job.id]
