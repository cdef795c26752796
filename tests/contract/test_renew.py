"""renew: a worker renews the leases that it lists."""

from datetime import timedelta

import pytest

from interlock.core.outcome import Errored, Handed, Lost, Started
from interlock.store.contract import Store
from interlock.store.types import Fence, Heartbeat, Lease
from tests.contract.kit import again, claim, claimed, commit, fail, finish, many, settle, started
from tests.kit import EPOCH, Raw, SettableClock


def heartbeats(*leases: Lease, lease: float = 30.0) -> list[Heartbeat]:
    return [Heartbeat(each.fence, lease) for each in leases]


def ends(store: Store, lease: Lease) -> object:
    return store.inspect.executions(lease.job.id)[-1].lease_expires_at


def test_renewal_extends_the_lease_from_now(store: Store, clock: SettableClock) -> None:
    """For as long as the heartbeat says, by the store's clock; the heartbeat time is stored."""
    lease = claimed(store, lease=30.0)
    clock.advance(10)
    renewal = store.leases.renew(heartbeats(lease, lease=45.0))
    assert (renewal.renewed, renewal.lost, renewal.busy, renewal.cancels) == ([lease.fence], [], [], [])
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.heartbeat_at, execution.lease_expires_at) == (
        EPOCH + timedelta(seconds=10),
        EPOCH + timedelta(seconds=55),
    )


def test_renewed_lease_is_not_adopted(store: Store, clock: SettableClock) -> None:
    """A job is kept for as long as its holder sends heartbeats."""
    lease = claimed(store, lease=30.0)
    for _ in range(5):
        clock.advance(20)
        assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]
        assert store.leases.adopt("maintenance", ["mail"], 30.0, 9) == []


def test_renewal_changes_only_the_execution(store: Store, raw: Raw, clock: SettableClock) -> None:
    """No state, no version and no audit changes."""
    lease = claimed(store)
    before = raw.dump()
    clock.advance(10)
    store.leases.renew(heartbeats(lease))
    after = raw.dump()
    assert {name for name in before if before[name] != after[name]} == {"executions"}
    assert again(store, lease).job == lease.job


def test_only_listed_leases_are_renewed(store: Store, clock: SettableClock) -> None:
    """Protocol 6: an execution that its owner did not list is not renewed and is reported as a lost claim."""
    store.queue.enqueue(many(2))
    first, second = claim(store, by="ann", lease=30.0)
    clock.advance(10)
    renewal = store.leases.renew(heartbeats(first))
    assert (renewal.renewed, store.leases.lost_claims("ann", [first.fence])) == ([first.fence], [second.fence])
    assert ends(store, second) == EPOCH + timedelta(seconds=30)


def test_lost_claims_are_named_even_if_nothing_is_listed(store: Store) -> None:
    """A worker that lost the reply to its only claim learns of it at its next heartbeat; claims of other workers are
    not reported.
    """
    lease = claimed(store, by="ann")
    store.queue.enqueue(many(1))
    claim(store, by="bob")
    assert store.leases.lost_claims("ann", []) == [lease.fence]


def test_ended_execution_is_reported_lost(store: Store) -> None:
    """Finished, failed and retried executions cannot be renewed."""
    store.queue.enqueue(many(3))
    leases = claim(store)
    finish(store, leases[0])
    fail(store, leases[1])
    settle(store, leases[2], Errored("busy", retryable=True))
    renewal = store.leases.renew(heartbeats(*leases))
    assert (sorted(renewal.lost, key=str), renewal.renewed) == (sorted((each.fence for each in leases), key=str), [])


def test_execution_of_another_holder_is_reported_lost(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Protocol 1: adopted or claimed again, even by a worker of the same name; the new holder's lease is not changed."""
    store.queue.enqueue(many(2))
    old = claim(store, by="ann", lease=30.0)
    clock.advance(31)
    (lost,) = store.leases.adopt("maintenance", ["mail"], 30.0, 1)
    settle(store, lost, Lost())
    (anew,) = claim(store, by="ann")
    (adopted,) = store.leases.adopt("ann", ["mail"], 30.0, 9)
    before = raw.dump()
    renewal = store.leases.renew(heartbeats(*old))
    assert (set(renewal.lost), renewal.renewed) == ({lease.fence for lease in old}, [])
    assert raw.dump() == before
    assert set(store.leases.renew(heartbeats(anew, adopted)).renewed) == {anew.fence, adopted.fence}


def test_unknown_execution_is_lost(store: Store) -> None:
    """An unknown job, a future attempt and a wrong holder."""
    lease = claimed(store)
    unknown = [Fence(many(1)[0].id, 1, 1), Fence(lease.job.id, 2, 1), Fence(lease.job.id, 1, 2)]
    for fence in unknown:
        assert store.leases.renew([Heartbeat(fence, 30.0)]).lost == [fence]


def test_expired_lease_that_no_process_adopted_is_renewed(store: Store, clock: SettableClock) -> None:
    """Protocol 3: the worker still owns it."""
    lease = claimed(store, lease=30.0)
    clock.advance(3600)
    assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]
    assert ends(store, lease) == EPOCH + timedelta(seconds=3630)


@pytest.mark.parametrize("status", ["LEASED", "IN_PROGRESS", "COMMITTED"])
def test_every_live_status_is_renewed(store: Store, status: str) -> None:
    """Before the start, while it runs and after the commit."""
    lease = claimed(store, "deliver") if status == "LEASED" else started(store)
    if status == "COMMITTED":
        lease = commit(store, lease)
    assert again(store, lease).status == status
    assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]


def test_renewal_returns_cancel_requests(store: Store) -> None:
    """The next renewal returns the request, and so does each later one."""
    store.queue.enqueue(many(2))
    first, second = claim(store)
    assert store.control.request_cancel(first.job.id, by="olga", reason=None)
    for _ in range(2):
        renewal = store.leases.renew(heartbeats(first, second))
        assert (renewal.cancels, len(renewal.renewed)) == ([first.fence], 2)


def test_progress_and_usage_are_stored_with_the_heartbeat(store: Store, other: Store) -> None:
    """A heartbeat without them keeps the stored values, and the job shows its progress."""
    lease = claimed(store)
    store.leases.renew([Heartbeat(lease.fence, 30.0, progress='[3,10,"page ☃"]', usage='{"tokens":12.5}')])
    store.leases.renew(heartbeats(lease))
    assert other.inspect.get(lease.job.id).progress == (3, 10, "page ☃")
    assert other.inspect.executions(lease.job.id)[0].usage == {"tokens": 12.5}


def test_late_heartbeat_does_not_delay_the_check_of_handed_over_work(store: Store) -> None:
    """The worker may have sent it before the hand-over was stored; no worker holds the execution now."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    before = store.inspect.executions(lease.job.id)
    renewal = store.leases.renew(heartbeats(lease))
    assert (renewal.renewed, renewal.lost, renewal.busy) == ([], [], [lease.fence])
    assert store.inspect.executions(lease.job.id) == before


def test_reconciler_renews_work_that_it_adopted(store: Store, clock: SettableClock) -> None:
    """An adopted external execution is held like any other until it is returned."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    assert store.leases.lost_claims("ann", []) == []
    clock.advance(15)
    (adopted,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    assert store.leases.renew(heartbeats(lease)).lost == [lease.fence]
    assert store.leases.renew(heartbeats(adopted)).renewed == [adopted.fence]


def test_every_heartbeat_of_a_long_list_is_answered_once(store: Store, clock: SettableClock) -> None:
    """Of a long list in any order, each fence is in exactly one answer."""
    store.queue.enqueue(many(300))
    leases = claim(store, limit=300, lease=30.0)
    assert store.transitions.move([]) == []
    for lease in leases[::3]:
        settle(store, lease, Lost())
    renewal = store.leases.renew(heartbeats(*reversed(leases)))
    assert set(renewal.lost) == {lease.fence for lease in leases[::3]}
    assert len(renewal.renewed) == 200
    assert not renewal.busy
