"""verify: it finds every violation, and nothing else. The tests change real records."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from interlock.operate.verify import MOST, Report, Versions, Violation, check, verify
from interlock.store.contract import Store
from interlock.store.types import JobRecord
from tests.contract.kit import claimed, commit, fail, finish, lose, make, started, stored, taken
from tests.kit import Raw, SettableClock


@pytest.fixture
def lived(store: Store, clock: SettableClock) -> Store:
    """Jobs of every lifecycle in many situations: waiting, running, lost, resting, committed, ended."""
    for kind in ("mail", "model", "chore", "deliver", "fetch", "paint"):
        stored(store, kind, delay=1e6)
        fail(store, claimed(store, kind))
        started(store, kind, lease=1e6)
    finish(store, started(store, "mail"))
    commit(store, started(store, "mail", lease=1e6))
    assert store.transitions.take([taken(stored(store, "mail"))]) == []
    claimed(store, "mail")
    clock.advance(31)
    lose(store, "mail")
    return store


def test_consistent_database_has_no_violation(lived: Store) -> None:
    """Every job is checked, and no violation is found."""
    report = verify(lived)
    assert report.violations == []
    assert (report.ok, report.checked, report.left_out) == (True, 22, 0)


def test_forged_state_is_found(lived: Store, raw: Raw) -> None:
    """Without triggers a state can be forged; the executions and the audit contradict it."""
    raw.disable("jobs_update")
    raw("UPDATE {jobs} SET state = 'CANCELLED' WHERE kind = 'mail' AND state = 'SUCCEEDED'")
    report = verify(lived)
    assert {violation.rule for violation in report.violations} == {"projection", "phase", "audit"}
    assert not report.ok


# ---------------------------------------------------------------- one rule at a time
def job(**changes: Any) -> Callable[[JobRecord], JobRecord]:
    def bend(record: JobRecord) -> JobRecord:
        assert record.job is not None
        return replace(record, job=replace(record.job, **changes))

    return bend


def last(**changes: Any) -> Callable[[JobRecord], JobRecord]:
    def bend(record: JobRecord) -> JobRecord:
        return replace(record, executions=[*record.executions[:-1], replace(record.executions[-1], **changes)])

    return bend


def again(**changes: Any) -> Callable[[JobRecord], JobRecord]:
    """Add one more execution like the last one."""

    def bend(record: JobRecord) -> JobRecord:
        assert record.job is not None
        extra = replace(record.executions[-1], attempt=record.job.attempt + 1, **changes)
        return replace(record, executions=[*record.executions, extra], job=replace(record.job, attempt=extra.attempt))

    return bend


def entry(number: int, **changes: Any) -> Callable[[JobRecord], JobRecord]:
    return lambda record: replace(
        record,
        audit=[replace(each, **changes) if place == number else each for place, each in enumerate(record.audit)],
    )


def without(number: int) -> Callable[[JobRecord], JobRecord]:
    return lambda record: replace(record, audit=[each for place, each in enumerate(record.audit) if place != number])


BENT: list[tuple[str, Callable[[JobRecord], JobRecord], set[str]]] = [
    ("finished_at", job(finished_at=None), {"finished_at"}),
    ("too many tries", job(tries_left=4), {"tries"}),
    ("tries below zero", job(tries_left=-1), {"tries"}),
    ("no tries", job(tries=0, tries_left=0), {"tries"}),
    ("held at its end", job(held_at=0), {"hold"}),
    ("another state", job(state="FAILED", phase="failed"), {"projection", "audit"}),
    ("another phase", job(phase="failed"), {"phase"}),
    ("another attempt", job(attempt=2), {"attempts"}),
    ("another version", job(version=3), {"audit"}),
    ("an unregistered version", job(lifecycle_version=9), {"lifecycle"}),
    ("an unregistered lifecycle", job(lifecycle="none"), {"lifecycle"}),
    ("two commits", again(), {"INV_001"}),
    (
        "an attempt after the commit",
        again(status="ABORTED", committed_at=None, ended_by="fail"),
        {"INV_002", "projection"},
    ),
    ("a gap in the attempts", last(attempt=2), {"attempts"}),
    (
        "live after its end",
        last(status="COMMITTED", finished_at=None, ended_by=None),
        {"one live execution", "projection"},
    ),
    ("missing timestamps", last(started_at=None), {"stamps"}),
    ("aborted with a commit", last(status="ABORTED"), {"stamps"}),
    ("no enqueue entry", without(0), {"audit"}),
    ("a missing transition", without(1), {"INV_003"}),
    ("a transition that is not allowed", entry(2, event="advance"), {"INV_003"}),
    ("a transition from another state", entry(2, from_state="PENDING"), {"INV_003"}),
    ("no audit at all", lambda record: replace(record, audit=[]), {"audit"}),
]


@pytest.fixture
def record(store: Store) -> JobRecord:
    """Return a job that succeeded."""
    finish(store, started(store, "mail"))
    ((found,),) = store.inspect.job_records()
    return found


@pytest.mark.parametrize(
    ("bend", "rules"), [(bend, rules) for _, bend, rules in BENT], ids=[name for name, _, _ in BENT]
)
def test_each_rule_is_checked(
    store: Store, record: JobRecord, bend: Callable[[JobRecord], JobRecord], rules: set[str]
) -> None:
    """A valid record with one change breaks exactly the rules about that change."""
    assert list(check(record, Versions(store))) == []
    found = list(check(bend(record), Versions(store)))
    assert {rule for rule, _ in found} == rules
    assert all(detail.endswith(".") for _, detail in found)


def test_timestamps_out_of_order_are_not_a_violation(store: Store, record: JobRecord) -> None:
    """A start before the lease means that the clock was set back."""
    leased = record.executions[-1].leased_at
    assert list(check(last(started_at=leased - timedelta(hours=1))(record), Versions(store))) == []


def test_two_live_executions_are_found(store: Store) -> None:
    """Also if the unique index was dropped."""
    started(store, "mail")
    ((found,),) = store.inspect.job_records()
    assert [rule for rule, _ in check(again()(found), Versions(store))] == ["one live execution"]


# ---------------------------------------------------------------- pruned jobs
def test_audit_of_a_pruned_job_must_end_with_its_end(store: Store, clock: SettableClock, record: JobRecord) -> None:
    """Protocol 34: only then is an audit without its job accepted."""
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=10, limit=10) == 1
    assert verify(store).ok
    ((gone,),) = store.inspect.job_records()
    assert (gone.job, gone.executions) == (None, [])
    assert [rule for rule, _ in check(without(2)(gone), Versions(store))] == ["retention"]
    assert [rule for rule, _ in check(without(1)(gone), Versions(store))] == ["audit"]
    assert [rule for rule, _ in check(replace(gone, audit=[]), Versions(store))] == ["audit"]


# ---------------------------------------------------------------- the report
def test_all_pages_are_checked(store: Store) -> None:
    """There are more jobs than fit into a page."""
    store.queue.enqueue([make("mail") for _ in range(2500)])
    report = verify(store)
    assert (report.ok, report.checked) == (True, 2500)


def test_report_lists_a_thousand_violations_and_counts_the_rest() -> None:
    """A broken table must not fill the memory."""
    report = Report()
    for number in range(MOST + 5):
        report.add(Violation("audit", str(number), "Broken."))
    assert (report.ok, len(report.violations), report.left_out) == (False, MOST, 5)
