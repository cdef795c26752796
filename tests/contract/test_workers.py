"""The workers table and stuck executions: which workers are alive, which are silent, and which work makes no progress."""

from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.core.outcome import Handed, Returned
from interlock.store.contract import Store
from interlock.store.types import Heartbeat, WorkerFacts
from tests.contract.kit import claim, claimed, finish, many, settle, started
from tests.kit import EPOCH, SettableClock

ANN = WorkerFacts("ann#1", "höst", 4711, "Polling", 8, 3, ("mail", "a \"b\" \\ 'c'"), ("default", "slow"))


# ---------------------------------------------------------------- workers
def test_worker_row_shows_its_last_report(store: Store, other: Store, clock: SettableClock) -> None:
    """Its heartbeat is the last report; its start is the first report."""
    assert store.workers.all() == []
    store.workers.report(ANN)
    clock.advance(10)
    other.workers.report(replace(ANN, state="Idle", busy=0, kinds=()))
    clock.advance(2.5)
    (seen,) = store.workers.all()
    assert seen.facts == replace(ANN, state="Idle", busy=0, kinds=())
    assert (seen.started_at, seen.heartbeat_at, seen.silent) == (
        EPOCH,
        EPOCH + timedelta(seconds=10),
        pytest.approx(2.5),
    )


def test_workers_are_ordered_by_name(store: Store) -> None:
    """In code point order, on both stores."""
    for name in ("b#2", "B#1", "a#9", "ä#1"):
        store.workers.report(replace(ANN, name=name))
    assert [seen.facts.name for seen in store.workers.all()] == ["B#1", "a#9", "b#2", "ä#1"]


def test_removed_worker_is_not_listed(store: Store) -> None:
    """Only that worker is removed; an unknown name is ignored."""
    store.workers.report(ANN)
    store.workers.report(replace(ANN, name="bob#1"))
    store.workers.remove("ann#1")
    store.workers.remove("nobody")
    assert [seen.facts.name for seen in store.workers.all()] == ["bob#1"]


def test_silent_worker_is_deleted(store: Store, clock: SettableClock) -> None:
    """After exactly that many seconds without a heartbeat; the call returns how many were deleted."""
    store.workers.report(ANN)
    store.workers.report(replace(ANN, name="bob#1"))
    clock.advance(59)
    store.workers.report(replace(ANN, name="cid#1"))
    assert store.workers.forget(60) == 0
    clock.advance(1)
    assert store.workers.forget(60) == 2
    assert [seen.facts.name for seen in store.workers.all()] == ["cid#1"]


# ---------------------------------------------------------------- stuck executions
def test_execution_without_heartbeat_for_two_leases_is_stuck(store: Store, clock: SettableClock) -> None:
    """Not earlier; by each execution's own lease, started or not."""
    short, long = claimed(store, lease=10.25), claimed(store, "deliver", lease=30)
    clock.advance(20.5)
    assert store.inspect.stuck(9) == []
    clock.advance(0.000001)
    assert store.inspect.stuck(9) == store.inspect.executions(short.job.id)
    clock.advance(40)
    assert [each.job_id for each in store.inspect.stuck(9)] == [short.job.id, long.job.id]
    assert store.inspect.stuck(9)[1] == store.inspect.executions(long.job.id)[0]


def test_stuck_executions_are_ordered_by_age(store: Store, clock: SettableClock) -> None:
    """By their last heartbeat, with a limit per kind: many of one kind do not hide another."""
    order: list[str] = []
    for kind, lease in (("paint", 1), ("mail", 9), ("chore", 4), ("mail", 2)):
        order.append(claimed(store, kind, lease=lease).job.id)
        clock.advance(5)
    clock.advance(100)
    assert [each.job_id for each in store.inspect.stuck(9)] == order
    assert [each.job_id for each in store.inspect.stuck(2)] == order
    assert [each.job_id for each in store.inspect.stuck(1)] == order[:3]
    assert store.inspect.stuck(0) == []


def test_renewed_or_ended_execution_is_not_stuck(store: Store, clock: SettableClock) -> None:
    """A heartbeat restarts the time."""
    store.queue.enqueue(many(2))
    kept, ended = claim(store, lease=10)
    clock.advance(15)
    store.leases.renew([Heartbeat(kept.fence, 10)])
    finish(store, ended)
    clock.advance(15)
    assert store.inspect.stuck(9) == []
    clock.advance(6)
    assert [each.job_id for each in store.inspect.stuck(9)] == [kept.job.id]


def test_handed_over_work_is_never_stuck(store: Store, clock: SettableClock) -> None:
    """It has no worker's heartbeat, also after its commit; other committed work that is not finished has one."""
    settle(store, started(store, "fetch", lease=10), Handed("x1", 5.0))
    clock.advance(5)
    (adopted,) = store.leases.adopt("rita", ["fetch"], 10, 1, external=True)
    settle(store, adopted, Returned("1", boundary=True))
    settle(store, started(store, "fetch", lease=10), Handed("x2", 5.0))
    committed = settle(store, started(store, "mail", lease=10), Returned("1", boundary=True))
    clock.advance(1000)
    assert [each.job_id for each in store.inspect.stuck(9)] == [committed.job.id]
