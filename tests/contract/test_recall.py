"""Handed-over work: who may take it and when, what is kept while nobody holds it, and how the outside fares."""

from datetime import timedelta
from typing import Any

import pytest

from interlock.job import Execution
from interlock.outcome import Cancelled, Failed, Gone, Handed, Looked, Outcome, Returned, Started, Unrecorded
from interlock.records import Beat, KindFacts, Lease, Outside
from interlock.store import Store
from tests.contract.kit import FACTS, LIFECYCLES, again, check, claimed, close, commit, decided, refused, settle, started, walked
from tests.kit import EPOCH, Raw, SettableClock, SqliteRaw

RECONCILED = [KindFacts("fetch", "download", every=15.0, batch=100), KindFacts("mail", "standard", every=5.0, batch=2)]


def handed(store: Store, external_id: str = "hash-1", check_in: float = 15.0, kind: str = "fetch", **fields: Any) -> Lease:
    """A fresh job whose work was handed over; its first check is due in so many seconds."""
    lease = claimed(store, kind, **fields)
    begun = lease if lease.status == "IN_PROGRESS" else settle(store, lease, Started(walks=False))
    return settle(store, begun, Handed(external_id, check_in))


def asked_to_stop(store: Store, *leases: Lease) -> None:
    for lease in leases:
        store.request_cancel(lease.job.id, by="olga", reason="enough")


def due(store: Store, *, kinds: tuple[str, ...] = ("fetch",), by: str = "rec", limit: int = 9) -> list[Lease]:
    """What a reconciler adopts."""
    return store.adopt(by, kinds, 30.0, limit, external=True)


def execution(store: Store, lease: Lease) -> Execution:
    return store.executions(lease.job.id)[-1]


def after(seconds: float) -> Any:
    return EPOCH + timedelta(seconds=seconds)


def told(store: Store) -> dict[str, Outside]:
    return {one.kind: one for one in store.outside()}


# ---------------------------------------------------------------- recall: asked to stop
def test_who_is_asked_to_stop_is_recalled_before_its_check_is_due(store: Store) -> None:
    """Owner, lease and holder in one write, as with any adoption."""
    lease = handed(store, check_in=600.0)
    asked_to_stop(store, lease)
    (recalled,) = store.recall("rec", ["fetch"], 20.0, 9)
    assert (recalled.job.id, recalled.external_id, recalled.holder, recalled.owner, recalled.status) == (lease.job.id, "hash-1", 2, "rec", "IN_PROGRESS")
    assert recalled.job.cancel_requested_by == "olga"
    found = execution(store, lease)
    assert (found.lease_owner, found.holder, found.lease_expires_at) == ("rec", 2, after(20))
    check(store, lease.job.id)


def test_who_is_not_asked_to_stop_rests(store: Store, clock: SettableClock, raw: Raw) -> None:
    """However late its check; that is `adopt`'s affair."""
    handed(store)
    clock.advance(3600)
    before = raw.dump()
    assert store.recall("rec", ["fetch"], 30.0, 9) == []
    assert raw.dump() == before


def test_a_workers_own_job_is_never_recalled(store: Store, clock: SettableClock) -> None:
    """Its worker hears of the request, or its lease ends."""
    lease = started(store, "fetch")
    asked_to_stop(store, lease)
    clock.advance(3600)
    assert store.recall("rec", ["fetch"], 30.0, 9) == []


def test_what_a_reconciler_holds_is_recalled_only_after_its_lease(store: Store, other: Store, clock: SettableClock) -> None:
    """It is in somebody's hands while a question is under way; where it is not named, it is left to the check that is then due."""
    lease = handed(store, check_in=0.0)
    asked_to_stop(store, lease)
    assert len(due(store)) == 1
    clock.advance(29.999)
    assert [other.recall("another", ["fetch"], 30.0, 9, external_id=id) for id in (None, "hash-1")] == [[], []]
    clock.advance(0.001)
    assert other.recall("another", ["fetch"], 30.0, 9) == []
    (recalled,) = other.recall("another", ["fetch"], 30.0, 9, external_id="hash-1")
    assert recalled.holder == 3


@pytest.mark.parametrize("external_id", [None, "hash-1"])
def test_one_recalls_and_the_other_does_not(store: Store, other: Store, external_id: str | None) -> None:
    """It has left its rest."""
    asked_to_stop(store, handed(store))
    assert len(store.recall("one", ["fetch"], 30.0, 9, external_id=external_id)) == 1
    assert other.recall("two", ["fetch"], 30.0, 9, external_id=external_id) == []


def test_the_longest_asked_are_recalled_first(store: Store, clock: SettableClock) -> None:
    """And never more than the limit."""
    leases = [handed(store, f"hash-{n}") for n in range(4)]
    for lease in (leases[2], leases[0], leases[3], leases[1]):
        asked_to_stop(store, lease)
        clock.advance(1)
    found = [{lease.external_id for lease in store.recall("rec", ["fetch"], 30.0, 2)} for _ in range(3)]
    assert found == [{"hash-2", "hash-0"}, {"hash-3", "hash-1"}, set()]


def test_a_state_that_draws_no_cancel_is_not_recalled(store: Store, clock: SettableClock) -> None:
    """Nobody could end it there; its check goes on as ever."""
    paint, fetch = handed(store, "p", kind="paint"), handed(store, "f")
    asked_to_stop(store, paint, fetch)
    assert [lease.external_id for lease in store.recall("rec", ["paint", "fetch"], 30.0, 9)] == ["f"]
    clock.advance(15)
    assert [lease.external_id for lease in due(store, kinds=("paint",))] == ["p"]


def test_protocol_4_only_known_kinds_are_recalled(store: Store) -> None:
    """By request or by name."""
    asked_to_stop(store, handed(store), handed(store, kind="mail"))
    assert store.recall("rec", [], 30.0, 9) == store.recall("rec", ["chore"], 30.0, 9) == store.recall("rec", ["mail", "fetch"], 30.0, 0) == []
    assert [lease.job.kind for lease in store.recall("rec", ["fetch"], 30.0, 9, external_id="hash-1")] == ["fetch"]
    assert [lease.job.kind for lease in store.recall("rec", ["mail"], 30.0, 9)] == ["mail"]


# ---------------------------------------------------------------- recall: by name
def test_what_the_outside_names_is_recalled_whatever_its_check(store: Store) -> None:
    """Every job that it knows by that id, and no other."""
    two = [handed(store, "same", 600.0), handed(store, "same", 5.0)]
    handed(store, "other", 0.0)
    found = store.recall("callback", ["fetch"], 5.0, 9, external_id="same")
    assert {lease.job.id for lease in found} == {lease.job.id for lease in two}
    assert store.recall("callback", ["fetch"], 5.0, 9, external_id="unheard of") == []


def test_what_has_ended_or_is_committed_has_no_name_any_more(store: Store, clock: SettableClock) -> None:
    """A second call of the same provider finds nothing; past its commit the job is the keeper's."""
    done, committed = handed(store, "done"), handed(store, "committed")
    for lease, boundary in ((done, False), (committed, True)):
        (held,) = store.recall("callback", ["fetch"], 5.0, 9, external_id=execution(store, lease).external_id)
        settle(store, held, Returned("1", boundary=boundary, begins=True))
    clock.advance(3600)
    for name in ("done", "committed"):
        assert store.recall("callback", ["fetch"], 5.0, 9, external_id=name) == []
        assert store.handed("fetch", name) == 0
    assert [lease.job.id for lease in store.adopt("keeper", ["fetch"], 30.0, 9)] == [committed.job.id]


def test_the_handed_are_counted_in_whosever_hands_they_are(store: Store) -> None:
    """So that who calls back knows whether to wait."""
    handed(store, "same", 0.0)
    handed(store, "same", 600.0)
    handed(store, "same", kind="mail")
    assert len(due(store)) == 1
    assert [store.handed(kind, id) for kind, id in (("fetch", "same"), ("mail", "same"), ("fetch", "other"), ("chore", "same"))] == [2, 1, 0, 0]


# ---------------------------------------------------------------- adopt: what is due
def test_what_was_looked_at_longest_ago_comes_first(store: Store, clock: SettableClock) -> None:
    """The oldest check first, over all kinds together, and no more than asked for."""
    checks = {"a": 40.0, "b": 10.0, "c": 30.0, "d": 20.0, "e": 90.0}
    for id, seconds in checks.items():
        handed(store, id, seconds, kind="mail" if id in "bc" else "fetch")
    clock.advance(50)
    found = [{lease.external_id for lease in due(store, kinds=("fetch", "mail"), limit=2)} for _ in range(3)]
    assert found == [{"b", "d"}, {"c", "a"}, set()]


def test_protocol_5_what_is_given_back_rests_until_its_next_check(store: Store, clock: SettableClock) -> None:
    """In nobody's hands: the owner says so, and what stands as its lease is the time of the check."""
    lease = handed(store, check_in=0.0)
    (held,) = due(store)
    assert execution(store, lease).lease_owner == "rec"
    clock.advance(3)
    settle(store, held, Looked(12.0, seen=True))
    found = execution(store, lease)
    assert (found.lease_owner, found.next_check_at, found.lease_expires_at, found.external_id) == ("external:fetch", after(15), after(15), "hash-1")
    clock.advance(11.999)
    assert due(store) == []
    clock.advance(0.001)
    assert [one.holder for one in due(store)] == [3]
    check(store, lease.job.id)


ANSWERS: list[Outcome] = [
    Looked(15.0, seen=True), Looked(15.0, seen=True, begun=True), Looked(15.0, seen=False), Looked(0.0, seen=None), Unrecorded("late", retryable=True),
    Unrecorded("late", retryable=False), Gone("late"), Failed("late", seen=True), Returned("1", boundary=False, begins=True),
    Returned("1", boundary=True, begins=True), Cancelled("late", "olga")]


@pytest.mark.parametrize("taken", ["adopted", "recalled", "given back"])
def test_protocol_1_an_old_answer_is_refused(store: Store, clock: SettableClock, raw: Raw, taken: str) -> None:
    """Also of the same name, and also when nobody holds it any more: each adoption is a holder of its own."""
    lease = handed(store, check_in=0.0)
    asked_to_stop(store, lease)
    (old,) = due(store)
    clock.advance(31)
    (new,) = due(store) if taken != "recalled" else store.recall("rec", ["fetch"], 30.0, 9, external_id=old.external_id)
    if taken == "given back":
        settle(store, new, Looked(15.0, seen=True))
    before = raw.dump()
    for outcome in ANSWERS:
        assert refused(store, decided(old, outcome)).holder == 3, outcome
        assert store.commit(decided(old, outcome), lambda tx, job: pytest.fail("it ran")) is not None
    assert store.renew([Beat(old.fence, 30.0)]).lost == [old.fence]
    assert raw.dump() == before


# ---------------------------------------------------------------- what is missing
def missing(store: Store, raw: Raw) -> Any:
    ((since,),) = raw("SELECT missing_since FROM {executions}")
    (lease,) = due(store, by="looks")
    return since is not None, lease.missing_for, lease


def test_since_when_it_is_missing_is_written_once_and_cleared_when_it_is_seen(store: Store, clock: SettableClock, raw: Raw) -> None:
    """The seconds are the store's. Who could not ask leaves it as it is."""
    handed(store, check_in=0.0)
    story = []
    for seen in (False, False, None, False, True, None, False, False):
        set_, seconds, lease = missing(store, raw)
        story.append((set_, seconds))
        settle(store, lease, Looked(10.0, seen=seen))
        clock.advance(10)
    assert story == [(False, None), (True, 10.0), (True, 20.0), (True, 30.0), (True, 40.0), (False, None), (False, None), (True, 10.0)]


@pytest.mark.parametrize(("outcome", "kept"), [
    (Failed("missing_external_job"), True), (Failed("broken there", seen=True), False), (Returned("1", boundary=False, begins=True), False),
    (Returned("1", boundary=True, begins=True), False), (Unrecorded("no disk", retryable=True), False)], ids=repr)
def test_an_end_says_whether_it_was_there(store: Store, clock: SettableClock, outcome: Outcome, kept: bool) -> None:
    """One that ended for being missing shows since when."""
    lease = handed(store, check_in=0.0)
    settle(store, due(store)[0], Looked(10.0, seen=False))
    clock.advance(10)
    settle(store, due(store)[0], outcome)
    assert execution(store, lease).missing_since == (EPOCH if kept else None)


# ---------------------------------------------------------------- what is found out about it
@pytest.mark.parametrize("boundary", [True, False])
def test_what_ends_before_anyone_saw_it_begin_walks_both_arrows(store: Store, boundary: bool) -> None:
    """In one move, and each is in the audit; with a boundary the second one waits for the finish."""
    lease = handed(store, check_in=0.0)
    (held,) = due(store)
    settle(store, held, Returned('"v"', boundary=boundary, begins=True))
    if boundary:
        assert (store.get(lease.job.id).state, execution(store, lease).status) == ("downloading", "COMMITTED")
        close(store, again(store, held))
    assert walked(store, lease.job.id) == [("queued", "start", "downloading"), ("downloading", "succeed", "completed")]
    assert (store.get(lease.job.id).result, store.get(lease.job.id).phase) == ("v", "succeeded")
    check(store, lease.job.id)


def test_what_could_not_be_written_down_costs_a_try_and_changes_no_state(store: Store) -> None:
    """The job says why; its history has nothing to tell."""
    lease = handed(store, check_in=0.0)
    history = store.history(lease.job.id)
    settle(store, due(store)[0], Unrecorded("no disk", retryable=True))
    job, found = store.get(lease.job.id), execution(store, lease)
    assert (job.state, job.phase, job.tries_left, job.last_error) == ("queued", "running", 2, "no disk")
    assert (found.lease_owner, found.next_check_at) == ("external:fetch", after(10))
    assert store.history(lease.job.id) == history
    check(store, lease.job.id)


def test_crashes_are_counted_from_the_commit_on(store: Store, clock: SettableClock, raw: Raw) -> None:
    """However often it was looked at before."""
    handed(store, check_in=0.0)
    for _ in range(5):
        (held,) = due(store)
        assert held.crashes == 0
        settle(store, held, Looked(0.0, seen=True))
    (held,) = due(store)
    commit(store, settle(store, held, Started()))
    assert raw("SELECT holder, committed_holder FROM {executions}") == [(7, 7)]
    for crashes in (1, 2):
        clock.advance(31)
        (taken,) = store.adopt("keeper", ["fetch"], 30.0, 9)
        assert (taken.holder, taken.crashes, taken.status) == (7 + crashes, crashes, "COMMITTED")
    close(store, taken)
    assert raw("SELECT holder, committed_holder FROM {executions}") == [(9, 7)]


def test_one_that_is_not_committed_has_no_crashes_after_it(store: Store, clock: SettableClock, raw: Raw) -> None:
    """A lost lease before the commit is another matter."""
    claimed(store)
    for _ in range(2):
        clock.advance(31)
        (taken,) = store.adopt("keeper", ["mail"], 30.0, 9)
        assert taken.crashes == 0
    assert raw("SELECT committed_holder FROM {executions}") == [(None,)]


# ---------------------------------------------------------------- how the outside fares
def test_the_outside_is_told_of_by_kind(store: Store, clock: SettableClock) -> None:
    """Those that have a reconciler: how much rests there or is being asked about, and how late the oldest check is."""
    store.migrate(list(LIFECYCLES.values()), RECONCILED)
    handed(store, "a", 5.0)
    handed(store, "b", 50.0)
    handed(store, "p", 5.0, kind="paint")
    commit(store, settle(store, store.recall("c", ["fetch"], 9.0, 9, external_id=execution(store, handed(store, "c")).external_id)[0], Started()))
    clock.advance(12)
    assert told(store) == {"fetch": Outside("fetch", 2, 7.0, 15.0, 100), "mail": Outside("mail", 0, 0.0, 5.0, 2)}
    due(store)
    assert told(store)["fetch"] == Outside("fetch", 2, 0.0, 15.0, 100)


def test_a_kind_without_a_reconciler_any_more_is_not_told_of(store: Store) -> None:
    """A deployment took it away."""
    store.migrate(list(LIFECYCLES.values()), RECONCILED)
    store.migrate(list(LIFECYCLES.values()), FACTS)
    assert store.outside() == []


@pytest.mark.parametrize(("handed_over", "overdue", "late"), [(0, 30.0, False), (0, 30.1, True), (100, 30.1, True), (101, 59.9, False), (101, 60.1, True)])
def test_a_check_is_late_after_two_passes_over_all(handed_over: int, overdue: float, late: bool) -> None:
    """A pass takes as many rounds as there are batches."""
    assert Outside("fetch", handed_over, overdue, 15.0, 100).late is late


def test_failures_of_the_outside_are_counted_in_a_row(store: Store, other: Store, clock: SettableClock) -> None:
    """Over all reconcilers: how often, since when, and the last sentence. The next answer clears it all."""
    store.migrate(list(LIFECYCLES.values()), RECONCILED)
    store.report_outside("fetch", "refused")
    clock.advance(30)
    other.report_outside("fetch", "timed out")
    assert told(store)["fetch"] == Outside("fetch", 0, 0.0, 15.0, 100, 2, "timed out", EPOCH)
    store.migrate(list(LIFECYCLES.values()), [KindFacts("fetch", "download", every=20.0, batch=50)])
    assert told(store)["fetch"] == Outside("fetch", 0, 0.0, 20.0, 50, 2, "timed out", EPOCH)
    other.report_outside("fetch", None)
    assert told(store)["fetch"] == Outside("fetch", 0, 0.0, 20.0, 50)
    assert told(store)["mail"].failures == 0


def test_an_outside_that_answers_as_ever_is_not_written_down(store: Store, raw: Raw) -> None:
    """A write would wake every listener. Nor is a kind that nobody migrated."""
    # A file counts the writes of others; a server numbers them, row by row.
    seen = "PRAGMA data_version" if isinstance(raw, SqliteRaw) else "SELECT xmin::text FROM {kinds} ORDER BY name"
    before = raw(seen)
    store.report_outside("fetch", None)
    store.report_outside("unheard_of", None)
    assert raw(seen) == before
    dump = raw.dump()
    store.report_outside("unheard_of", "refused")
    assert raw.dump() == dump
    store.report_outside("fetch", "refused")
    assert raw(seen) != before
