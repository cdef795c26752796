"""adopt: the only way to take over another worker's execution."""

from datetime import timedelta

import pytest

from interlock.core.outcome import Handed, Lost, Returned, Started
from interlock.store.contract import Store
from interlock.store.types import Heartbeat
from tests.contract.kit import (
    check,
    claim,
    claimed,
    close,
    commit,
    decided,
    finish,
    lose,
    many,
    refused,
    settle,
    started,
)
from tests.kit import EPOCH, Raw, SettableClock


def test_unexpired_lease_is_not_adopted(store: Store, clock: SettableClock, raw: Raw) -> None:
    """A lease is not adopted before its expiry."""
    claimed(store, lease=30.0)
    clock.advance(29.999)
    before = raw.dump()
    assert store.leases.adopt("bob", ["mail"], 30.0, 9) == []
    assert raw.dump() == before


def test_expired_lease_is_adopted(store: Store, other: Store, clock: SettableClock) -> None:
    """One write sets owner, lease and holder; attempt, status, state and history stay."""
    lease = claimed(store, by="ann", lease=30.0)
    history = store.inspect.history(lease.job.id)
    clock.advance(30)
    (adopted,) = other.leases.adopt("bob", ["mail"], 20.0, 9)
    assert (adopted.job, adopted.holder, adopted.owner, adopted.status, adopted.seconds) == (
        lease.job,
        2,
        "bob",
        "IN_PROGRESS",
        20.0,
    )
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.lease_owner, execution.holder, execution.attempt) == ("bob", 2, 1)
    assert execution.lease_expires_at == EPOCH + timedelta(seconds=50)
    assert store.inspect.history(lease.job.id) == history
    check(store, lease.job.id)


def test_concurrent_sweeps_adopt_each_execution_once(store: Store, other: Store, clock: SettableClock) -> None:
    """Two maintenance sweeps at the same time adopt each execution once."""
    store.queue.enqueue(many(10))
    claim(store, lease=30.0)
    clock.advance(31)
    first, second = store.leases.adopt("k1", ["mail"], 30.0, 6), other.leases.adopt("k2", ["mail"], 30.0, 6)
    assert (len(first), len(second)) == (6, 4)
    assert not {lease.job.id for lease in first} & {lease.job.id for lease in second}


def test_longest_expired_leases_are_adopted_first(store: Store, clock: SettableClock) -> None:
    """Each call returns at most its limit, over all kinds together."""
    for lease, kind in ((25.0, "mail"), (15.0, "chore"), (5.0, "mail"), (20.0, "chore"), (10.0, "mail")):
        claimed(store, kind, lease=lease)
    clock.advance(30)
    ended = [[EPOCH + timedelta(seconds=seconds) for seconds in page] for page in ((5, 10), (15, 20), (25,), ())]
    before = {
        each.job_id: each.lease_expires_at for job in store.inspect.jobs() for each in store.inspect.executions(job.id)
    }
    found = [
        sorted(before[lease.job.id] for lease in store.leases.adopt("k", ["mail", "chore"], 60.0, 2)) for _ in range(4)
    ]
    assert found == ended


def test_adopt_can_leave_out_committed_executions_by_kind(store: Store, clock: SettableClock) -> None:
    """Executions of the left-out kinds are adopted if they are not committed."""
    mail, chore = commit(store, claimed(store, "mail")), commit(store, claimed(store, "chore"))
    lost = claimed(store, "mail")
    clock.advance(31)
    taken = store.leases.adopt("bob", ["mail", "chore"], 30.0, 9, committed=["chore"])
    assert {lease.job.id for lease in taken} == {chore.job.id, lost.job.id}
    assert store.leases.adopt("bob", ["mail", "chore"], 30.0, 9, committed=[]) == []
    assert [lease.job.id for lease in store.leases.adopt("bob", ["mail", "chore"], 30.0, 9)] == [mail.job.id]


def test_adopt_takes_only_known_kinds(store: Store, clock: SettableClock) -> None:
    """Protocol 4: maintenance touches no kind that it does not know."""
    claimed(store, "mail")
    claimed(store, "paint")
    clock.advance(31)
    assert [lease.job.kind for lease in store.leases.adopt("k", ["paint"], 30.0, 9)] == ["paint"]
    assert store.leases.adopt("k", [], 30.0, 9) == []
    assert store.leases.adopt("k", ["unheard_of"], 30.0, 9) == []


def test_execution_that_never_started_is_adopted(store: Store, clock: SettableClock) -> None:
    """FM_005: the worker died between claim and start."""
    lease = claimed(store, "deliver", lease=30.0)
    clock.advance(31)
    (adopted,) = store.leases.adopt("k", ["deliver"], 30.0, 9)
    assert adopted.status == "LEASED"
    assert settle(store, adopted, Lost()).job.state == "QUEUED"
    check(store, lease.job.id)


def test_committed_execution_is_adopted_with_its_value(store: Store, clock: SettableClock) -> None:
    """FM_025: the adopter of a COMMITTED execution finishes it with the committed value and repeats nothing."""
    commit(store, claimed(store, lease=30.0), '{"kept":1}')
    clock.advance(31)
    (adopted,) = store.leases.adopt("k", ["mail"], 30.0, 9)
    assert (adopted.status, adopted.result) == ("COMMITTED", '{"kept":1}')
    assert close(store, adopted).job.result == {"kept": 1}


def test_ended_execution_is_not_adopted(store: Store, clock: SettableClock) -> None:
    """Done, aborted and taken executions cannot be adopted."""
    store.queue.enqueue(many(2))
    first, second = claim(store, lease=1.0)
    finish(store, first)
    settle(store, second, Lost())
    clock.advance(3600)
    assert store.leases.adopt("k", ["mail"], 30.0, 9) == []


def test_recovery_races_completion_and_one_wins(store: Store, other: Store, clock: SettableClock) -> None:
    """FM_023: the first write wins; the other is refused, and nothing is half done."""
    store.queue.enqueue(many(2))
    first, second = claim(store, lease=30.0)
    clock.advance(31)
    assert finish(store, first).job.state == "SUCCEEDED"
    (adopted,) = other.leases.adopt("k", ["mail"], 30.0, 9)
    assert adopted.job.id == second.job.id
    assert refused(store, decided(second, Returned("1", boundary=False))).holder == 2
    assert settle(other, adopted, Lost()).job.state == "PENDING"
    for lease in (first, second):
        check(store, lease.job.id)


def test_execution_of_a_dead_adopter_is_adopted_again(store: Store, clock: SettableClock) -> None:
    """Each adoption increases the holder, and only the last holder moves the job."""
    lease = claimed(store, lease=30.0)
    holders = [lease]
    for name in ("k1", "k2", "k1"):
        clock.advance(31)
        holders += store.leases.adopt(name, ["mail"], 30.0, 9)
    assert [each.holder for each in holders] == [1, 2, 3, 4]
    for stale in holders[:-1]:
        assert refused(store, decided(stale, Lost())).holder == 4
    assert settle(store, holders[-1], Lost()).job.lease_losses == 1


def test_job_that_loses_every_lease_fails_after_its_tries(store: Store, clock: SettableClock) -> None:
    """A job that loses every lease fails after exactly its tries."""
    claimed(store, tries=2)
    states = []
    for _ in range(2):
        clock.advance(31)
        states += [lease.job.state for lease in lose(store)]
        claim(store)
    assert states == ["PENDING", "FAILED"]


# ---------------------------------------------------------------- work in an external system
@pytest.fixture
def outside(store: Store, clock: SettableClock) -> str:
    """Return a job whose work was handed over and whose check is due."""
    lease = settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    clock.advance(15)
    return lease.job.id


def test_maintenance_never_adopts_handed_over_work(store: Store, outside: str, clock: SettableClock) -> None:
    """Protocol 5: a lease sweep never adopts work of an external system, however late its check is."""
    clock.advance(100_000)
    assert store.leases.adopt("k", ["fetch"], 30.0, 9) == []


def test_reconciler_adopts_handed_over_work_when_its_check_is_due(store: Store, outside: str) -> None:
    """The reconciler returns it, with its next check, in the move that stores the answer."""
    (lease,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    assert (lease.job.id, lease.external_id, lease.holder) == (outside, "hash-1", 2)
    assert store.leases.adopt("rec2", ["fetch"], 30.0, 9, external=True) == []
    settle(store, lease, Handed("hash-1", 60.0))
    (execution,) = store.inspect.executions(outside)
    assert (execution.lease_owner, execution.next_check_at) == ("external:fetch", EPOCH + timedelta(seconds=75))
    assert store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True) == []


def test_reconciler_adopts_nothing_before_its_check_is_due(store: Store, clock: SettableClock) -> None:
    """The reconciler never adopts executions that a worker holds."""
    settle(store, settle(store, claimed(store, "fetch"), Started(walks=False)), Handed("hash-1", 15.0))
    claimed(store, "fetch", lease=1.0)
    clock.advance(14)
    assert store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True) == []


def test_committed_external_execution_is_adopted_by_maintenance(
    store: Store, outside: str, clock: SettableClock
) -> None:
    """After the commit boundary there is nothing to ask the external system: maintenance finishes the job."""
    (lease,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    commit(store, settle(store, lease, Started()))
    clock.advance(31)
    assert store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True) == []
    (adopted,) = store.leases.adopt("k", ["fetch"], 30.0, 9)
    assert close(store, adopted).job.state == "completed"
    check(store, outside)


def test_work_of_a_dead_reconciler_is_adopted_by_the_next(store: Store, outside: str, clock: SettableClock) -> None:
    """A late answer of the dead reconciler is refused, even if the next one has the same name."""
    (old,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    clock.advance(31)
    (new,) = store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    assert (old.holder, new.holder) == (2, 3)
    assert refused(store, decided(old, Handed("hash-1", 15.0))).holder == 3
    assert store.leases.renew([Heartbeat(old.fence, 30.0)]).lost == [old.fence]


def test_started_download_that_loses_its_lease_fails(store: Store, clock: SettableClock) -> None:
    """The lifecycle has no `lose` from `downloading`, and no job waits there."""
    lease = started(store, "fetch")
    assert lease.job.state == "downloading"
    clock.advance(31)
    (lost,) = lose(store, "fetch")
    assert lost.job.state == "failed"
    check(store, lease.job.id)
