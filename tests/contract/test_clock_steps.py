"""The database's clock may be set back or forward by hours: no verb fails, and nothing looks corrupt."""

from collections.abc import Callable

import pytest

from interlock.core.outcome import Errored, Handed, Held, Lost, Returned, Started
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.postgres.store import PostgresStore
from interlock.store.types import Decision, Fence, Heartbeat, Lease, WorkerFacts
from tests.contract.flow_kit import get, node, put
from tests.contract.kit import claim, claimed, close, commit, decided, fail, finish, settle, started, stored, taken
from tests.kit import SettableClock

BACK, FORTH = -3 * 3600.0, 8 * 3600.0
Step = Callable[[], None]


def end_at_once(store: Store, lease: Lease, step: Step) -> None:
    finish(store, lease)


def give_up(store: Store, lease: Lease, step: Step) -> None:
    fail(store, lease)


def succeed(store: Store, lease: Lease, step: Step) -> None:
    committed = commit(store, lease)
    step()
    close(store, committed)


def retry(store: Store, lease: Lease, step: Step) -> None:
    settle(store, lease, Errored("busy", retryable=True))


def lose(store: Store, lease: Lease, step: Step) -> None:
    settle(store, lease, Lost())


def hold(store: Store, lease: Lease, step: Step) -> None:
    fence = Fence(lease.job.id, lease.job.attempt, lease.holder)
    assert store.receipts.begin_effect(fence, "pay", "h")
    settle(store, lease, Held("in doubt"))
    step()
    assert store.control.release(lease.job.id, by="operator:olga", reason="looked", decision=Decision(True, "1"))


def hand_over(store: Store, lease: Lease, step: Step) -> None:
    settle(store, lease, Handed("outside-1", 60.0))
    step()
    assert store.control.request_cancel(lease.job.id, by="operator:olga", reason=None)
    (recalled,) = store.leases.recall("rec", [lease.job.kind], 30.0, 1, external_id="outside-1")
    step()
    fail(store, recalled)


@pytest.mark.parametrize("seconds", [BACK, FORTH])
@pytest.mark.parametrize("end", [end_at_once, succeed, retry, lose, hold, give_up])
@pytest.mark.parametrize("kind", ["mail", "model", "chore", "paint"])
def test_job_finishes_although_the_clock_steps(
    store: Store,
    clock: SettableClock,
    kind: str,
    end: Callable[..., object],
    seconds: float,
) -> None:
    """The clock steps between all stages: the store accepts every verb, and `verify` reports nothing."""

    def step() -> None:
        clock.advance(seconds)

    lease = claimed(store, kind)
    step()
    assert store.leases.renew([Heartbeat(Fence(lease.job.id, 1, 1), 30.0)]).lost == []
    lease = lease if lease.status == "IN_PROGRESS" else settle(store, lease, Started())
    step()
    end(store, lease, step)
    assert verify(store).violations == []


@pytest.mark.parametrize("seconds", [BACK, FORTH])
def test_handed_over_work_survives_a_clock_step(store: Store, clock: SettableClock, seconds: float) -> None:
    hand_over(store, started(store), lambda: clock.advance(seconds) and None)
    assert verify(store).violations == []


def test_waiting_job_is_cancelled_after_the_clock_went_back(store: Store, clock: SettableClock) -> None:
    """By the clock, the job is cancelled before it was created."""
    job = stored(store)
    clock.advance(BACK)
    assert store.transitions.take([taken(job)]) == []
    assert verify(store).violations == []


def test_lease_given_after_the_clock_went_back_expires_on_time(store: Store, clock: SettableClock) -> None:
    """The holder dies: others can adopt the lease before the clock has caught up."""
    clock.advance(BACK)
    lease = started(store)
    clock.advance(31)
    assert [each.job.id for each in store.leases.adopt("maintenance", ["mail"], 30.0, 10)] == [lease.job.id]


def test_live_holder_renews_after_the_clock_went_forward(store: Store, clock: SettableClock) -> None:
    """Ownership is the fence, not time: until another process adopts the lease, renewals and moves are accepted."""
    lease = started(store)
    clock.advance(FORTH)
    fence = Fence(lease.job.id, 1, 1)
    assert store.leases.renew([Heartbeat(fence, 30.0)]).renewed == [fence]
    assert store.leases.adopt("maintenance", ["mail"], 30.0, 10) == []
    assert store.transitions.move([decided(lease, Returned("1", boundary=False))]) == []


def test_status_figures_are_correct_after_the_clock_went_back(store: Store, clock: SettableClock) -> None:
    """A job that was due before the step is due once the clock catches up; no execution or worker looks stuck."""
    stored(store)
    store.workers.report(WorkerFacts("ann", "here", 1, "Idle", 1, 0, ("mail",), ("default",)))
    clock.advance(BACK)
    (depth,) = store.inspect.depths()
    assert (depth.due, depth.later) == (0, 1)
    assert store.inspect.stuck(10) == []
    assert store.workers.forget(60.0) == 0
    assert claim(store) == []
    clock.advance(-BACK)
    assert len(claim(store)) == 1


def test_uptime_is_unknown_if_the_clock_is_before_the_servers_start(store: Store) -> None:
    """A negative uptime would make every maintenance wait for the clock to catch up."""
    if isinstance(store, PostgresStore):
        earlier = "(clock_timestamp() - interval '1000 hours')"
        store.session.queries["uptime"] = store.session.queries["uptime"].replace("clock_timestamp()", earlier)
    assert store.inspect.uptime() is None


@pytest.mark.parametrize("ended_before", [True, False])
def test_dependents_do_not_wait_for_the_clock(store: Store, clock: SettableClock, ended_before: bool) -> None:
    """After it went back: neither of a job that ends then, nor of one that had ended before."""
    first = node()
    last = node([first])
    put(store, [first] if ended_before else [first, last])
    (lease,) = claim(store)
    if ended_before:
        finish(store, lease)
        store.queue.enqueue([last])
    clock.advance(BACK)
    if not ended_before:
        finish(store, lease)
    store.flow.resolve()
    assert get(store, last).blocked_at is None
