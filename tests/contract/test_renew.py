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
    """As long as the beat says, counted from the store's now; the heartbeat is seen."""
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
    """Beat by beat a job is kept for as long as its holder lives."""
    lease = claimed(store, lease=30.0)
    for _ in range(5):
        clock.advance(20)
        assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]
        assert store.leases.adopt("maintenance", ["mail"], 30.0, 9) == []


def test_renewal_changes_only_the_execution(store: Store, raw: Raw, clock: SettableClock) -> None:
    """It writes to the execution alone: no state, no version, no audit."""
    lease = claimed(store)
    before = raw.dump()
    clock.advance(10)
    store.leases.renew(heartbeats(lease))
    after = raw.dump()
    assert {name for name in before if before[name] != after[name]} == {"executions"}
    assert again(store, lease).job == lease.job


def test_only_listed_leases_are_renewed(store: Store, clock: SettableClock) -> None:
    """Protocol 6: by list, never by owner; what its owner did not list is named as a stray."""
    store.queue.enqueue(many(2))
    first, second = claim(store, by="ann", lease=30.0)
    clock.advance(10)
    renewal = store.leases.renew(heartbeats(first))
    assert (renewal.renewed, store.leases.lost_claims("ann", [first.fence])) == ([first.fence], [second.fence])
    assert ends(store, second) == EPOCH + timedelta(seconds=30)


def test_lost_claims_are_named_even_if_nothing_is_listed(store: Store) -> None:
    """A worker that lost the reply to its only claim learns of it at its next beat; another's are none of its
    affair.
    """
    lease = claimed(store, by="ann")
    store.queue.enqueue(many(1))
    claim(store, by="bob")
    assert store.leases.lost_claims("ann", []) == [lease.fence]


def test_ended_execution_is_reported_lost(store: Store) -> None:
    """Finished, failed or waiting again: there is nothing to renew, and no stray either."""
    store.queue.enqueue(many(3))
    leases = claim(store)
    finish(store, leases[0])
    fail(store, leases[1])
    settle(store, leases[2], Errored("busy", retryable=True))
    renewal = store.leases.renew(heartbeats(*leases))
    assert (sorted(renewal.lost, key=str), renewal.renewed) == (sorted((each.fence for each in leases), key=str), [])


def test_execution_of_another_holder_is_reported_lost(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Protocol 1: adopted or claimed anew, even by a worker of the same name; the new holder's lease is not touched."""
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
    """Neither a job that never was nor an attempt that has not come."""
    lease = claimed(store)
    unknown = [Fence(many(1)[0].id, 1, 1), Fence(lease.job.id, 2, 1), Fence(lease.job.id, 1, 2)]
    for fence in unknown:
        assert store.leases.renew([Heartbeat(fence, 30.0)]).lost == [fence]


def test_expired_lease_that_no_process_adopted_is_renewed(store: Store, clock: SettableClock) -> None:
    """Protocol 3: an ended lease that nobody took is renewed."""
    lease = claimed(store, lease=30.0)
    clock.advance(3600)
    assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]
    assert ends(store, lease) == EPOCH + timedelta(seconds=3630)


@pytest.mark.parametrize("status", ["LEASED", "IN_PROGRESS", "COMMITTED"])
def test_every_live_status_is_renewed(store: Store, status: str) -> None:
    """Before its start, at work, and past its commit."""
    lease = claimed(store, "deliver") if status == "LEASED" else started(store)
    if status == "COMMITTED":
        lease = commit(store, lease)
    assert again(store, lease).status == status
    assert store.leases.renew(heartbeats(lease)).renewed == [lease.fence]


def test_renewal_returns_cancel_requests(store: Store) -> None:
    """A cancel request is heard at the next renewal, and at each one after it."""
    store.queue.enqueue(many(2))
    first, second = claim(store)
    assert store.control.request_cancel(first.job.id, by="olga", reason=None)
    for _ in range(2):
        renewal = store.leases.renew(heartbeats(first, second))
        assert (renewal.cancels, len(renewal.renewed)) == ([first.fence], 2)


def test_progress_and_usage_are_stored_with_the_heartbeat(store: Store, other: Store) -> None:
    """What the handler shows is stored with the renewal, kept by a beat that shows nothing, and readable on the job."""
    lease = claimed(store)
    store.leases.renew([Heartbeat(lease.fence, 30.0, progress='[3,10,"page ☃"]', usage='{"tokens":12.5}')])
    store.leases.renew(heartbeats(lease))
    assert other.inspect.get(lease.job.id).progress == (3, 10, "page ☃")
    assert other.inspect.executions(lease.job.id)[0].usage == {"tokens": 12.5}


def test_late_heartbeat_does_not_delay_the_check_of_handed_over_work(store: Store) -> None:
    """The worker that handed it over may have sent one before it heard so; nobody holds it any more."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    before = store.inspect.executions(lease.job.id)
    renewal = store.leases.renew(heartbeats(lease))
    assert (renewal.renewed, renewal.lost, renewal.busy) == ([], [], [lease.fence])
    assert store.inspect.executions(lease.job.id) == before


def test_reconciler_renews_work_that_it_adopted(store: Store, clock: SettableClock) -> None:
    """An external execution that was adopted is held like any other, until it is given back."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    assert store.leases.lost_claims("ann", []) == []
    clock.advance(15)
    (adopted,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    assert store.leases.renew(heartbeats(lease)).lost == [lease.fence]
    assert store.leases.renew(heartbeats(adopted)).renewed == [adopted.fence]


def test_every_heartbeat_of_a_long_list_is_answered_once(store: Store, clock: SettableClock) -> None:
    """Of a long list, in any order, each fence stands in exactly one answer."""
    store.queue.enqueue(many(300))
    leases = claim(store, limit=300, lease=30.0)
    assert store.transitions.move([]) == []
    for lease in leases[::3]:
        settle(store, lease, Lost())
    renewal = store.leases.renew(heartbeats(*reversed(leases)))
    assert set(renewal.lost) == {lease.fence for lease in leases[::3]}
    assert len(renewal.renewed) == 200
    assert not renewal.busy
