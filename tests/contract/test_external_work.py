"""External work: missing work, its checks, and the status of the external system."""

from typing import Any

import pytest

from interlock.core.outcome import FailedFinally, Handed, Looked, Outcome, Returned, Started, Unrecorded
from interlock.store.contract import Store
from interlock.store.report_types import ExternalWork
from interlock.store.types import KindFacts, Lease
from tests.contract.kit import (
    FACTS,
    LIFECYCLES,
    again,
    check,
    claim,
    claimed,
    close,
    commit,
    make,
    settle,
    stored,
    walked,
)
from tests.contract.test_recall import after, due, execution, handed
from tests.kit import EPOCH, Raw, SettableClock, SqliteRaw

RECONCILED = [KindFacts("fetch", "download", every=15.0, batch=100), KindFacts("mail", "standard", every=5.0, batch=2)]


def told(store: Store) -> dict[str, ExternalWork]:
    return {one.kind: one for one in store.external.work()}


# ---------------------------------------------------------------- missing work
def missing(store: Store, raw: Raw) -> Any:
    ((since,),) = raw("SELECT missing_since FROM {executions}")
    (lease,) = due(store, by="looks")
    return since is not None, lease.missing_for, lease


def test_missing_since_is_written_once_and_cleared_when_the_work_is_seen(
    store: Store, clock: SettableClock, raw: Raw
) -> None:
    """The store measures the seconds. A check that could not ask leaves the value as it is."""
    handed(store, check_in=0.0)
    story = []
    for seen in (False, False, None, False, True, None, False, False):
        set_, seconds, lease = missing(store, raw)
        story.append((set_, seconds))
        settle(store, lease, Looked(10.0, seen=seen))
        clock.advance(10)
    assert story == [
        (False, None),
        (True, 10.0),
        (True, 20.0),
        (True, 30.0),
        (True, 40.0),
        (False, None),
        (False, None),
        (True, 10.0),
    ]


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (FailedFinally("missing_external_job"), True),
        (FailedFinally("broken there", seen=True), False),
        (Returned("1", boundary=False, begins=True), False),
        (Returned("1", boundary=True, begins=True), False),
        (Unrecorded("no disk", retryable=True), False),
    ],
    ids=repr,
)
def test_ended_job_shows_whether_its_work_was_missing(
    store: Store, clock: SettableClock, outcome: Outcome, kept: bool
) -> None:
    """A job that failed because its work was missing shows since when."""
    lease = handed(store, check_in=0.0)
    settle(store, due(store)[0], Looked(10.0, seen=False))
    clock.advance(10)
    settle(store, due(store)[0], outcome)
    assert execution(store, lease).missing_since == (EPOCH if kept else None)


# ---------------------------------------------------------------- results of checks
@pytest.mark.parametrize("boundary", [True, False])
def test_work_that_ended_before_it_was_seen_takes_both_transitions(store: Store, boundary: bool) -> None:
    """Both are in one move and in the audit; with a commit boundary the second one waits for the finish."""
    lease = handed(store, check_in=0.0)
    (held,) = due(store)
    settle(store, held, Returned('"v"', boundary=boundary, begins=True))
    if boundary:
        assert (store.inspect.get(lease.job.id).state, execution(store, lease).status) == ("downloading", "COMMITTED")
        close(store, again(store, held))
    assert walked(store, lease.job.id) == [("queued", "start", "downloading"), ("downloading", "succeed", "completed")]
    assert (store.inspect.get(lease.job.id).result, store.inspect.get(lease.job.id).phase) == ("v", "succeeded")
    check(store, lease.job.id)


def test_result_that_cannot_be_recorded_spends_a_try_and_changes_no_state(store: Store) -> None:
    """The job says why; its history has no new entry."""
    lease = handed(store, check_in=0.0)
    history = store.inspect.history(lease.job.id)
    settle(store, due(store)[0], Unrecorded("no disk", retryable=True))
    job, found = store.inspect.get(lease.job.id), execution(store, lease)
    assert (job.state, job.phase, job.tries_left, job.last_error) == ("queued", "running", 2, "no disk")
    assert (found.lease_owner, found.next_check_at) == ("external:fetch", after(10))
    assert store.inspect.history(lease.job.id) == history
    check(store, lease.job.id)


def test_crashes_are_counted_from_the_commit(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Earlier checks do not count."""
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
        (taken,) = store.leases.adopt("maintenance", ["fetch"], 30.0, 9)
        assert (taken.holder, taken.crashes, taken.status) == (7 + crashes, crashes, "COMMITTED")
    close(store, taken)
    assert raw("SELECT holder, committed_holder FROM {executions}") == [(9, 7)]


def test_execution_that_is_not_committed_has_no_crashes(store: Store, clock: SettableClock, raw: Raw) -> None:
    """A lease that is lost before the commit does not count."""
    claimed(store)
    for _ in range(2):
        clock.advance(31)
        (taken,) = store.leases.adopt("maintenance", ["mail"], 30.0, 9)
        assert taken.crashes == 0
    assert raw("SELECT committed_holder FROM {executions}") == [(None,)]


# ---------------------------------------------------------------- status of the external system
def test_external_work_is_reported_by_kind(store: Store, clock: SettableClock) -> None:
    """Kinds with a reconciler: how much work is handed over, and how late the oldest check is."""
    store.registry.migrate(list(LIFECYCLES.values()), RECONCILED)
    handed(store, "a", 5.0)
    handed(store, "b", 50.0)
    handed(store, "p", 5.0, kind="paint")
    commit(
        store,
        settle(
            store,
            store.leases.recall("c", ["fetch"], 9.0, 9, external_id=execution(store, handed(store, "c")).external_id)[
                0
            ],
            Started(),
        ),
    )
    clock.advance(12)
    assert told(store) == {
        "fetch": ExternalWork("fetch", 2, 7.0, 15.0, 100),
        "mail": ExternalWork("mail", 0, 0.0, 5.0, 2),
    }
    due(store)
    assert told(store)["fetch"] == ExternalWork("fetch", 2, 0.0, 15.0, 100)


def test_kind_without_a_reconciler_is_not_reported(store: Store) -> None:
    """A deployment removed the reconciler."""
    store.registry.migrate(list(LIFECYCLES.values()), RECONCILED)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    assert store.external.work() == []


@pytest.mark.parametrize(
    ("handed_over", "overdue", "late"),
    [(0, 30.0, False), (0, 30.1, True), (100, 30.1, True), (101, 59.9, False), (101, 60.1, True)],
)
def test_check_is_late_after_two_passes_over_all_executions(handed_over: int, overdue: float, late: bool) -> None:
    """A pass takes one round per batch."""
    assert ExternalWork("fetch", handed_over, overdue, 15.0, 100).late is late


def test_consecutive_failures_of_the_external_system_are_counted(
    store: Store, other: Store, clock: SettableClock
) -> None:
    """Over all reconcilers: how many, since when, and the last error. The next answer clears them."""
    store.registry.migrate(list(LIFECYCLES.values()), RECONCILED)
    store.external.report_check("fetch", "refused")
    clock.advance(30)
    other.external.report_check("fetch", "timed out")
    assert told(store)["fetch"] == ExternalWork("fetch", 0, 0.0, 15.0, 100, 2, "timed out", EPOCH)
    store.registry.migrate(list(LIFECYCLES.values()), [KindFacts("fetch", "download", every=20.0, batch=50)])
    assert told(store)["fetch"] == ExternalWork("fetch", 0, 0.0, 20.0, 50, 2, "timed out", EPOCH)
    other.external.report_check("fetch", None)
    assert told(store)["fetch"] == ExternalWork("fetch", 0, 0.0, 20.0, 50)
    assert told(store)["mail"].failures == 0


def test_unchanged_external_system_status_is_not_written(store: Store, raw: Raw) -> None:
    """A write would wake every listener. A kind that was never migrated is not written either."""
    # SQLite counts the writes of other connections; PostgreSQL numbers them row by row.
    seen = "PRAGMA data_version" if isinstance(raw, SqliteRaw) else "SELECT xmin::text FROM {kinds} ORDER BY name"
    before = raw(seen)
    store.external.report_check("fetch", None)
    store.external.report_check("unheard_of", None)
    assert raw(seen) == before
    dump = raw.dump()
    store.external.report_check("unheard_of", "refused")
    assert raw.dump() == dump
    store.external.report_check("fetch", "refused")
    assert raw(seen) != before


# ---------------------------------------------------------------- questions
def test_token_answers_the_newest_job_of_a_chain_that_has_not_failed(store: Store, clock: SettableClock) -> None:
    """If all have failed, it is the newest one, which says why. Clocks of machines do not decide, so ids do not."""

    leases: dict[str, Lease] = {}

    def fail(id: str) -> None:
        leases.update({lease.job.id: lease for lease in claim(store, limit=9)})
        settle(store, leases[id], FailedFinally("broken"))

    def redriven(id: str) -> str:
        clock.advance(1)
        (result,) = store.bulk.redrive([make(redrive_of=id, root=root)], again=True, reason=None)
        assert result.id is not None
        return result.id

    root = stored(store).id
    stored(store)
    assert store.external.asking_job(root) == root
    fail(root)
    assert store.external.asking_job(root) == root
    second, third = redriven(root), redriven(root)
    assert store.external.asking_job(root) == third
    fail(third)
    assert store.external.asking_job(root) == second
    fail(second)
    assert store.external.asking_job(root) == third
    fourth = redriven(second)
    assert store.external.asking_job(root) == fourth
    store.bulk.delete([root, second, third], by="olga", reason=None)
    assert store.external.asking_job(root) == fourth
    assert [store.external.asking_job(id) for id in (second, make().id, "nonsense")] == [None, None, None]


def test_terms_of_a_question_are_returned_to_every_owner_until_the_answer_replaces_them(
    store: Store, clock: SettableClock
) -> None:
    """A check that returns the execution keeps them."""
    terms = '{"timeout":60.0}'
    lease = claimed(store, "fetch")
    begun = lease if lease.status == "IN_PROGRESS" else settle(store, lease, Started(walks=False))
    settle(store, begun, Handed("question:1", 60.0, terms))
    assert (execution(store, lease).result, store.inspect.get(lease.job.id).result) == ({"timeout": 60.0}, None)
    clock.advance(60)
    (adopted,) = due(store)
    assert adopted.result == terms
    settle(store, adopted, Looked(60.0, seen=None))
    (recalled,) = store.leases.recall("ann", ["fetch"], 5.0, 9, external_id="question:1")
    assert recalled.result == terms
    settle(store, recalled, Returned("null", boundary=False, begins=True))
    assert (execution(store, lease).result, store.inspect.get(lease.job.id).result) == (None, None)
