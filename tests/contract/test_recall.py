"""recall: which process may take handed-over work, and when."""

from datetime import timedelta
from typing import Any

import pytest

from interlock.core.job import Execution
from interlock.core.outcome import (
    CancelRequested,
    FailedFinally,
    GoneExternally,
    Handed,
    Looked,
    Outcome,
    Returned,
    Started,
    Unrecorded,
)
from interlock.store.contract import Store
from interlock.store.types import Heartbeat, Lease
from tests.contract.kit import (
    check,
    claimed,
    decided,
    refused,
    settle,
    started,
)
from tests.kit import EPOCH, Raw, SettableClock


def handed(
    store: Store, external_id: str = "hash-1", check_in: float = 15.0, kind: str = "fetch", **fields: Any
) -> Lease:
    """Create a job whose work is handed over; its first check is due after `check_in` seconds."""
    lease = claimed(store, kind, **fields)
    begun = lease if lease.status == "IN_PROGRESS" else settle(store, lease, Started(walks=False))
    return settle(store, begun, Handed(external_id, check_in))


def asked_to_stop(store: Store, *leases: Lease) -> None:
    for lease in leases:
        store.control.request_cancel(lease.job.id, by="olga", reason="enough")


def due(store: Store, *, kinds: tuple[str, ...] = ("fetch",), by: str = "rec", limit: int = 9) -> list[Lease]:
    """Adopt as a reconciler does."""
    return store.leases.adopt(by, kinds, 30.0, limit, external=True)


def execution(store: Store, lease: Lease) -> Execution:
    return store.inspect.executions(lease.job.id)[-1]


def after(seconds: float) -> Any:
    return EPOCH + timedelta(seconds=seconds)


# ---------------------------------------------------------------- recall: cancel requests
def test_cancel_requested_job_is_recalled_before_its_check_is_due(store: Store) -> None:
    """Owner, lease and holder change in one write, as in every adoption."""
    lease = handed(store, check_in=600.0)
    asked_to_stop(store, lease)
    (recalled,) = store.leases.recall("rec", ["fetch"], 20.0, 9)
    assert (recalled.job.id, recalled.external_id, recalled.holder, recalled.owner, recalled.status) == (
        lease.job.id,
        "hash-1",
        2,
        "rec",
        "IN_PROGRESS",
    )
    assert recalled.job.cancel_requested_by == "olga"
    found = execution(store, lease)
    assert (found.lease_owner, found.holder, found.lease_expires_at) == ("rec", 2, after(20))
    check(store, lease.job.id)


def test_job_without_a_cancel_request_is_not_recalled(store: Store, clock: SettableClock, raw: Raw) -> None:
    """However late its check is; late checks are found by `adopt`."""
    handed(store)
    clock.advance(3600)
    before = raw.dump()
    assert store.leases.recall("rec", ["fetch"], 30.0, 9) == []
    assert raw.dump() == before


def test_job_that_a_worker_runs_is_never_recalled(store: Store, clock: SettableClock) -> None:
    """Its worker sees the request, or its lease expires."""
    lease = started(store, "fetch")
    asked_to_stop(store, lease)
    clock.advance(3600)
    assert store.leases.recall("rec", ["fetch"], 30.0, 9) == []


def test_work_that_a_reconciler_holds_is_recalled_only_after_its_lease(
    store: Store, other: Store, clock: SettableClock
) -> None:
    """A reconciler holds it while it asks. After the lease has expired, only a recall by external id finds it;
    otherwise the check that is then due does.
    """
    lease = handed(store, check_in=0.0)
    asked_to_stop(store, lease)
    assert len(due(store)) == 1
    clock.advance(29.999)
    assert [other.leases.recall("another", ["fetch"], 30.0, 9, external_id=id) for id in (None, "hash-1")] == [[], []]
    clock.advance(0.001)
    assert other.leases.recall("another", ["fetch"], 30.0, 9) == []
    (recalled,) = other.leases.recall("another", ["fetch"], 30.0, 9, external_id="hash-1")
    assert recalled.holder == 3


@pytest.mark.parametrize("external_id", [None, "hash-1"])
def test_only_one_process_recalls_a_job(store: Store, other: Store, external_id: str | None) -> None:
    """The second call finds it leased."""
    asked_to_stop(store, handed(store))
    assert len(store.leases.recall("one", ["fetch"], 30.0, 9, external_id=external_id)) == 1
    assert other.leases.recall("two", ["fetch"], 30.0, 9, external_id=external_id) == []


def test_oldest_cancel_requests_are_recalled_first(store: Store, clock: SettableClock) -> None:
    """At most as many as the limit."""
    leases = [handed(store, f"hash-{n}") for n in range(4)]
    for lease in (leases[2], leases[0], leases[3], leases[1]):
        asked_to_stop(store, lease)
        clock.advance(1)
    found = [{lease.external_id for lease in store.leases.recall("rec", ["fetch"], 30.0, 2)} for _ in range(3)]
    assert found == [{"hash-2", "hash-0"}, {"hash-3", "hash-1"}, set()]


def test_job_whose_state_allows_no_cancel_is_not_recalled(store: Store, clock: SettableClock) -> None:
    """It could not be cancelled there; its checks continue."""
    paint, fetch = handed(store, "p", kind="paint"), handed(store, "f")
    asked_to_stop(store, paint, fetch)
    assert [lease.external_id for lease in store.leases.recall("rec", ["paint", "fetch"], 30.0, 9)] == ["f"]
    clock.advance(15)
    assert [lease.external_id for lease in due(store, kinds=("paint",))] == ["p"]


def test_protocol_4_only_known_kinds_are_recalled(store: Store) -> None:
    """By cancel request or by external id."""
    asked_to_stop(store, handed(store), handed(store, kind="mail"))
    assert (
        store.leases.recall("rec", [], 30.0, 9)
        == store.leases.recall("rec", ["chore"], 30.0, 9)
        == store.leases.recall("rec", ["mail", "fetch"], 30.0, 0)
        == []
    )
    assert [lease.job.kind for lease in store.leases.recall("rec", ["fetch"], 30.0, 9, external_id="hash-1")] == [
        "fetch"
    ]
    assert [lease.job.kind for lease in store.leases.recall("rec", ["mail"], 30.0, 9)] == ["mail"]


# ---------------------------------------------------------------- recall: by external id
def test_work_is_recalled_by_its_external_id_before_its_check_is_due(store: Store) -> None:
    """Every job with that external id, and no other."""
    two = [handed(store, "same", 600.0), handed(store, "same", 5.0)]
    handed(store, "other", 0.0)
    found = store.leases.recall("callback", ["fetch"], 5.0, 9, external_id="same")
    assert {lease.job.id for lease in found} == {lease.job.id for lease in two}
    assert store.leases.recall("callback", ["fetch"], 5.0, 9, external_id="unheard of") == []


def test_ended_or_committed_work_is_not_found_by_its_external_id(store: Store, clock: SettableClock) -> None:
    """A second callback of the same provider finds nothing; maintenance finishes the committed job."""
    done, committed = handed(store, "done"), handed(store, "committed")
    for lease, boundary in ((done, False), (committed, True)):
        (held,) = store.leases.recall("callback", ["fetch"], 5.0, 9, external_id=execution(store, lease).external_id)
        settle(store, held, Returned("1", boundary=boundary, begins=True))
    clock.advance(3600)
    for name in ("done", "committed"):
        assert store.leases.recall("callback", ["fetch"], 5.0, 9, external_id=name) == []
        assert store.external.count("fetch", name) == 0
    assert [lease.job.id for lease in store.leases.adopt("maintenance", ["fetch"], 30.0, 9)] == [committed.job.id]


def test_handed_over_executions_are_counted_with_any_holder(store: Store) -> None:
    """So that a callback knows whether to wait."""
    handed(store, "same", 0.0)
    handed(store, "same", 600.0)
    handed(store, "same", kind="mail")
    assert len(due(store)) == 1
    assert [
        store.external.count(kind, id)
        for kind, id in (("fetch", "same"), ("mail", "same"), ("fetch", "other"), ("chore", "same"))
    ] == [2, 1, 0, 0]


# ---------------------------------------------------------------- adopt: due checks
def test_work_with_the_oldest_check_is_adopted_first(store: Store, clock: SettableClock) -> None:
    """Over all kinds together, and at most as many as the limit."""
    checks = {"a": 40.0, "b": 10.0, "c": 30.0, "d": 20.0, "e": 90.0}
    for id, seconds in checks.items():
        handed(store, id, seconds, kind="mail" if id in "bc" else "fetch")
    clock.advance(50)
    found = [{lease.external_id for lease in due(store, kinds=("fetch", "mail"), limit=2)} for _ in range(3)]
    assert found == [{"b", "d"}, {"c", "a"}, set()]


def test_protocol_5_returned_work_waits_for_its_next_check(store: Store, clock: SettableClock) -> None:
    """No process holds it: the owner is `external:fetch`, and the lease ends at the time of the check."""
    lease = handed(store, check_in=0.0)
    (held,) = due(store)
    assert execution(store, lease).lease_owner == "rec"
    clock.advance(3)
    settle(store, held, Looked(12.0, seen=True))
    found = execution(store, lease)
    assert (found.lease_owner, found.next_check_at, found.lease_expires_at, found.external_id) == (
        "external:fetch",
        after(15),
        after(15),
        "hash-1",
    )
    clock.advance(11.999)
    assert due(store) == []
    clock.advance(0.001)
    assert [one.holder for one in due(store)] == [3]
    check(store, lease.job.id)


ANSWERS: list[Outcome] = [
    Looked(15.0, seen=True),
    Looked(15.0, seen=True, begun=True),
    Looked(15.0, seen=False),
    Looked(0.0, seen=None),
    Unrecorded("late", retryable=True),
    Unrecorded("late", retryable=False),
    GoneExternally("late"),
    FailedFinally("late", seen=True),
    Returned("1", boundary=False, begins=True),
    Returned("1", boundary=True, begins=True),
    CancelRequested("late", "olga"),
]


@pytest.mark.parametrize("taken", ["adopted", "recalled", "given back"])
def test_protocol_1_answer_of_a_stale_reconciler_is_refused(
    store: Store, clock: SettableClock, raw: Raw, taken: str
) -> None:
    """Also if the new one has the same name, and also if the work was returned since: each adoption has its own holder."""
    lease = handed(store, check_in=0.0)
    asked_to_stop(store, lease)
    (old,) = due(store)
    clock.advance(31)
    (new,) = (
        due(store)
        if taken != "recalled"
        else store.leases.recall("rec", ["fetch"], 30.0, 9, external_id=old.external_id)
    )
    if taken == "given back":
        settle(store, new, Looked(15.0, seen=True))
    before = raw.dump()
    for outcome in ANSWERS:
        assert refused(store, decided(old, outcome)).holder == 3, outcome
        assert store.transitions.commit(decided(old, outcome), lambda tx, job: pytest.fail("it ran")) is not None
    assert store.leases.renew([Heartbeat(old.fence, 30.0)]).lost == [old.fence]
    assert raw.dump() == before
