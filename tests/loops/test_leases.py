"""Leases in a worker: renewed in one statement, trusted only while they last, and returned when the worker stops."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from interlock import App, LeaseLost, Run, Tx
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution
from interlock.store import OpenStore
from interlock.store.contract import PARTS
from interlock.store.types import Heartbeat, Lease, Renewal, WorkerFacts
from interlock.worker.heartbeat import LeaseRenewer
from interlock.worker.watchdog import Watchdog
from tests.contract.kit import LIFECYCLES, claimed
from tests.loops.worker_doubles import InstantSleeper, InterceptedStore, away, once


class SetWaits(InstantSleeper):
    """A monotonic clock that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Hand:
    """The parts of a worker that hold leases: a store, a clock, and claimed executions."""

    def __init__(self, store: OpenStore) -> None:
        app: App[Tx] = App("sqlite:///nowhere.db")

        @app.job(kind="mail", lifecycle=LIFECYCLES["standard"], lease=30, max_runtime=100)
        async def mail(run: Run) -> None:
            """Never called."""

        self.spec = mail.spec
        self.sleeper = SetWaits()
        self.store = InterceptedStore(store)
        self.context = WorkerContext(
            "me#1", lambda: cast(OpenStore, self.store), {"mail": mail.spec}, sleeper=self.sleeper
        )
        self.executions: dict[int, HeldExecution] = {}
        self.hung: list[float] = []
        self.answered = self.sleeper.now
        self.leases = LeaseRenewer(
            self.context, self.executions, lambda: WorkerFacts("me#1", "host", 1, "Idle", 1, 0, (), ()), 10.0
        )
        self.watch = Watchdog(
            self.context,
            self.executions,
            self.leases,
            last_pulse=lambda: self.answered,
            hang_timeout=60.0,
            on_hang=self.hung.append,
        )

    def execution(self, lease: Lease) -> HeldExecution:
        execution = HeldExecution(lease, self.spec, LIFECYCLES["standard"], asked_at=self.sleeper.now)
        self.executions[id(execution)] = execution
        return execution

    def held(self, store: OpenStore) -> HeldExecution:
        return self.execution(replace(claimed(store), seconds=30.0))


@pytest.fixture
def hand(store: OpenStore) -> Hand:
    return Hand(store)


# ---------------------------------------------------------------- renewal
def test_rule_6_all_due_leases_are_renewed_in_one_statement(hand: Hand, store: OpenStore) -> None:
    executions = [hand.held(store) for _ in range(5)]
    sent: list[int] = []
    renew = store.leases.renew

    def counted(heartbeats: list[Heartbeat]) -> Renewal:
        sent.append(len(heartbeats))
        return renew(heartbeats)

    hand.store.store = cast(OpenStore, _With(store, renew=counted))
    hand.sleeper.now += 5
    hand.leases.heartbeat()
    hand.sleeper.now += 10
    hand.leases.heartbeat()
    assert sent == [5, 5]
    assert {execution.asked_at for execution in executions} == {hand.sleeper.now}


class _With:
    def __init__(self, store: object, **verbs: Callable[..., object]) -> None:
        self._store, self._verbs = store, verbs

    def __getattr__(self, name: str) -> object:
        value = getattr(self._store, name)
        return _With(value, **self._verbs) if name in PARTS else self._verbs.get(name) or value


def test_heartbeat_on_its_way_leaves_no_row_of_a_worker_that_has_ended(hand: Hand, store: OpenStore) -> None:
    """The worker has removed its row meanwhile; the row would count as a live worker for 30 s."""

    def end() -> None:
        hand.context.stopped.set()
        store.workers.remove("me#1")

    hand.leases.heartbeat()
    assert [seen.facts.name for seen in store.workers.all()] == ["me#1"]
    hand.store.before["report"] = end
    hand.leases.heartbeat()
    assert store.workers.all() == []


def test_short_job_is_never_renewed(hand: Hand, store: OpenStore) -> None:
    execution = hand.held(store)
    asked = execution.asked_at
    hand.leases.heartbeat()
    assert execution.asked_at == asked


def test_execution_taken_by_another_worker_is_stopped(hand: Hand, store: OpenStore, clock: object) -> None:
    execution = hand.held(store)
    clock.advance(31)  # type: ignore[attr-defined]
    store.leases.adopt("another", [execution.job.kind], 30, 10)
    told: list[str] = []
    execution.on_halt(lambda: told.append("now"))
    hand.sleeper.now += 25
    hand.leases.heartbeat()
    assert (execution.stop, told) == ("lost", ["now"])
    with pytest.raises(LeaseLost, match="its worker lost the lease"):
        execution.check()


def test_execution_that_is_being_reported_is_not_treated_as_lost(hand: Hand, store: OpenStore, clock: object) -> None:
    """Its own report has ended it, or will learn why it was refused."""
    execution = hand.held(store)
    clock.advance(31)  # type: ignore[attr-defined]
    store.leases.adopt("another", [execution.job.kind], 30, 10)
    execution.settling = True
    hand.sleeper.now += 25
    hand.leases.heartbeat()
    assert execution.stop is None


def test_renewal_returns_a_cancel_request(hand: Hand, store: OpenStore) -> None:
    held = hand.held(store)
    store.control.request_cancel(held.job.id, by="operator:anna", reason=None)
    hand.sleeper.now += 25
    hand.leases.heartbeat()
    assert held.stop == "cancel"


def test_renewal_stores_progress_and_measures(hand: Hand, store: OpenStore) -> None:
    held = hand.held(store)
    held.progress(1, 4, "one of four")
    held.measure("bytes", 3)
    held.measure("bytes", 4)
    hand.sleeper.now += 25
    hand.leases.heartbeat()
    (execution,) = store.inspect.executions(held.job.id)
    assert (execution.progress, execution.usage) == ((1.0, 4.0, "one of four"), {"bytes": 7.0})


def test_renewal_is_marked_as_failing_until_it_succeeds(hand: Hand, store: OpenStore) -> None:
    hand.held(store)
    hand.store.before["renew"] = once(away())
    hand.sleeper.now += 25
    hand.leases.heartbeat()
    assert hand.leases.failing
    hand.leases.heartbeat()
    assert not hand.leases.failing


# ---------------------------------------------------------------- when a lease is trusted
def test_handler_is_stopped_before_its_lease_expires(hand: Hand, store: OpenStore) -> None:
    """The time is measured by the monotonic clock, from the moment the lease was requested."""
    execution = hand.held(store)
    hand.sleeper.now += 28.9
    hand.watch.check()
    assert execution.stop is None
    hand.sleeper.now += 0.2
    hand.watch.check()
    assert execution.stop == "lost"
    assert hand.sleeper.now < execution.asked_at + 30


def test_rule_3_expired_lease_that_no_worker_took_is_renewed(hand: Hand, store: OpenStore, clock: object) -> None:
    """The database was unreachable for longer than a lease. The handler has stopped; the worker still owns the job."""
    execution, taken = hand.held(store), hand.held(store)
    hand.sleeper.now += 31
    clock.advance(31)  # type: ignore[attr-defined]
    hand.watch.check()
    assert (execution.stop, taken.stop) == ("lost", "lost")
    store.leases.adopt("another", [execution.job.kind], 30, 1)
    hand.leases.heartbeat()
    assert {each.asked_at == hand.sleeper.now for each in (execution, taken)} == {True, False}
    (left,) = [each for each in (execution, taken) if each.asked_at == hand.sleeper.now]
    assert (left.lease_doubtful, left.stop) == (True, "lost")
    assert sum(each.lease_doubtful for each in (execution, taken)) == 1
    assert store.leases.adopt("another", [execution.job.kind], 30, 9) == []


def test_rule_32_execution_past_max_runtime_is_stopped_and_not_renewed(hand: Hand, store: OpenStore) -> None:
    execution = hand.held(store)
    hand.sleeper.now += 101
    execution.asked_at, hand.answered = hand.sleeper.now - 1, hand.sleeper.now
    hand.watch.check()
    assert (execution.stop, execution.renews) == ("runtime", False)
    asked = execution.asked_at
    hand.sleeper.now += 20
    hand.leases.heartbeat()
    assert execution.asked_at == asked


def test_rule_32_blocked_event_loop_keeps_its_leases_only_until_the_hang_timeout(hand: Hand, store: OpenStore) -> None:
    execution = hand.held(store)
    hand.sleeper.now += 59
    hand.watch.check()
    assert (hand.hung, execution.renews) == ([], True)
    hand.sleeper.now += 2
    hand.watch.check()
    assert (hand.hung, execution.renews) == ([61.0], False)


def test_first_stop_reason_is_kept_unless_the_lease_is_lost(hand: Hand, store: OpenStore) -> None:
    execution = hand.held(store)
    assert execution.halt("cancel")
    assert not execution.halt("shutdown")
    assert execution.stop == "cancel"
    execution.halt("lost")
    assert execution.stop == "lost"
