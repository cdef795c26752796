"""Database triggers on executions and the audit: raw SQL that breaks a rule changes nothing."""

import pytest

from tests.contract.test_job_triggers import NOBODY, Scene, refuse, scene
from tests.kit import Raw

__all__ = ["scene"]


STAMPED = "committed_at = leased_at, finished_at = leased_at, ended_by = 'succeed'"


@pytest.mark.parametrize(
    "where,change",  # noqa: PT006
    [
        ("leased", "status = 'COMMITTED', started_at = leased_at, committed_at = leased_at"),
        ("leased", f"status = 'DONE', started_at = leased_at, {STAMPED}"),
        ("leased", "status = 'IN_PROGRESS'"),
        ("leased", "committed_at = leased_at"),
        ("leased", "finished_at = leased_at"),
        ("leased", "ended_by = 'fail'"),
        ("running", "status = 'LEASED', started_at = NULL"),
        ("running", "status = 'COMMITTED'"),
        ("running", "status = 'DONE', finished_at = leased_at, ended_by = 'succeed'"),
        ("running", "status = 'DONE', committed_at = leased_at, finished_at = leased_at"),
        ("running", "status = 'DONE', committed_at = leased_at, ended_by = 'succeed'"),
        ("running", "status = 'ABORTED', finished_at = leased_at"),
        ("running", "status = 'RESTING'"),
        ("running", "finished_at = leased_at"),
        ("running", "ended_by = 'fail'"),
        ("running", "status = 'ABORTED', finished_at = leased_at, committed_at = leased_at, ended_by = 'fail'"),
        ("running", "status = 'ABORTED', finished_at = leased_at, ended_by = 'bogus'"),
        ("committed", "finished_at = leased_at"),
        ("committed", "ended_by = 'fail'"),
        ("committed", "status = 'DONE', finished_at = leased_at, ended_by = 'bogus'"),
        ("committed", "status = 'ABORTED', committed_at = NULL, finished_at = leased_at, ended_by = 'fail'"),
        ("committed", "status = 'ABORTED', finished_at = leased_at, ended_by = 'fail'"),
        ("committed", "status = 'IN_PROGRESS', committed_at = NULL"),
        ("committed", "result = NULL"),
        ("committed", "committed_at = NULL"),
        ("done", "status = 'IN_PROGRESS', committed_at = NULL, finished_at = NULL, ended_by = NULL"),
        ("done", "error = 'never mind'"),
        ("done", "ended_by = 'fail'"),
        ("retried", "status = 'IN_PROGRESS', finished_at = NULL, ended_by = NULL"),
        ("retried", f"status = 'DONE', {STAMPED}"),
        ("retried", "holder = holder + 1"),
        ("running", "holder = holder - 1"),
        ("running", "holder = holder + 2"),
        ("running", "attempt = attempt + 1"),
        ("running", "attempt = 0"),
        ("running", "job_id = (SELECT id FROM {jobs} WHERE id = :waiting)"),
        ("running", "kind = 'chore'"),
        ("running", "leased_at = lease_expires_at"),
        ("running", "started_at = lease_expires_at"),
        ("running", "started_at = NULL"),
    ],
)
def test_update_that_breaks_a_rule_of_executions_is_refused(scene: Scene, raw: Raw, where: str, change: str) -> None:
    """Skipped statuses, missing timestamps, revived executions, a changed fence, a commit that is undone."""
    refuse(
        raw,
        scene,
        f"UPDATE {{executions}} SET {change} WHERE job_id = :{where}",
        "interlock refuses|CHECK",
    )


def test_allowed_status_changes_are_accepted(scene: Scene, raw: Raw) -> None:
    """Each status change with its timestamps, and an adoption, are accepted."""
    raw("UPDATE {executions} SET status = 'IN_PROGRESS', started_at = leased_at WHERE job_id = :leased", **scene)
    raw("UPDATE {executions} SET holder = holder + 1, lease_owner = 'bob' WHERE job_id = :leased", **scene)
    raw("UPDATE {executions} SET status = 'COMMITTED', committed_at = leased_at WHERE job_id = :leased", **scene)
    raw(
        "UPDATE {executions} SET status = 'DONE', finished_at = leased_at, ended_by = 'succeed' WHERE job_id = :leased",
        **scene,
    )
    raw(f"UPDATE {{executions}} SET status = 'DONE', {STAMPED} WHERE job_id = :running", **scene)


@pytest.mark.parametrize(
    "where,changes",  # noqa: PT006
    [
        ("running", {"holder": "3", "lease_owner": "'thief'"}),
        ("running", {"attempt": "2"}),
        ("running", {"job_id": "(SELECT id FROM {jobs} WHERE id = :waiting)", "attempt": "0"}),
        ("committed", {"attempt": "2", "status": "'IN_PROGRESS'", "committed_at": "NULL", "result": "NULL"}),
        (
            "done",
            {
                "attempt": "2",
                "status": "'IN_PROGRESS'",
                "committed_at": "NULL",
                "finished_at": "NULL",
                "ended_by": "NULL",
                "result": "NULL",
            },
        ),
        ("done", {"attempt": "2"}),
        ("committed", {"attempt": "2"}),
        ("retried", {"attempt": "2", "ended_by": "'fail'"}),
        ("retried", {"attempt": "2", "holder": "2", "ended_by": "'cancel'"}),
        ("retried", {"attempt": "2", "external_id": "'x'", "ended_by": "'cancel'"}),
        ("retried", {"attempt": "0", "ended_by": "'cancel'"}),
        ("retried", {"attempt": "2", "ended_by": "'cancel'"}),
        ("retried", {"job_id": f"'{NOBODY}'", "ended_by": "'cancel'"}),
    ],
    ids=str,
)
def test_insert_that_breaks_a_rule_of_executions_is_refused(
    scene: Scene, raw: Raw, where: str, changes: dict[str, str]
) -> None:
    """A second live execution, a second committed one, one that starts in its last status, one with a second holder,
    one without a job, one that is not its job's current attempt.
    """
    for replacing in (False, True):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("executions", f"job_id = :{where}", changes, replacing=replacing, **scene)
        assert raw.dump() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at": "NULL"},
        {"status": "'LEASED'"},
        {"ended_by": "'fail'"},
        {"committed_at": "leased_at"},
        {"status": "'ABORTED'", "ended_by": "'cancel'"},
    ],
    ids=str,
)
def test_new_execution_whose_timestamps_do_not_fit_its_status_is_refused(
    scene: Scene, raw: Raw, changes: dict[str, str]
) -> None:
    claimed = (
        "state = 'RUNNING', phase = 'running', version = version + 1, attempt = attempt + 1, lifecycle_version = 2"
    )
    raw(f"UPDATE {{jobs}} SET {claimed}, updated_at = {{later}} WHERE id = :waiting", **scene)
    copied = {"job_id": f"'{scene['waiting']}'"}
    before = raw.dump()
    with pytest.raises(raw.refusal):
        raw.copy("executions", "job_id = :running", copied | changes, **scene)
    assert raw.dump() == before
    raw.copy("executions", "job_id = :running", copied, **scene)


def test_second_live_execution_of_a_job_is_refused(scene: Scene, raw: Raw) -> None:
    """Even if the job's row says that its next attempt has begun."""
    later = "version = version + 1, updated_at = {later}"
    raw(f"UPDATE {{jobs}} SET state = 'PENDING', phase = 'pending', {later} WHERE id = :running", **scene)
    claimed = f"state = 'RUNNING', phase = 'running', attempt = attempt + 1, {later}"
    raw(f"UPDATE {{jobs}} SET {claimed} WHERE id = :running", **scene)
    before = raw.dump()
    with pytest.raises(raw.refusal):
        raw.copy("executions", "job_id = :running", {"attempt": "2"}, **scene)
    assert raw.dump() == before


@pytest.mark.parametrize("name", ["running", "committed", "done", "retried"])
def test_delete_of_an_execution_is_refused(scene: Scene, raw: Raw, name: str) -> None:
    """An execution is deleted only with its job."""
    refuse(raw, scene, f"DELETE FROM {{executions}} WHERE job_id = :{name}", "together with its job")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE {audit} SET reason = 'never mind' WHERE job_id = :done",
        "UPDATE {audit} SET version = version + 100 WHERE job_id = :done",
        "DELETE FROM {audit} WHERE job_id = :done",
        "DELETE FROM {audit} WHERE job_id = :waiting AND n = 0",
        "UPDATE {lifecycle_edges} SET target = 'SUCCEEDED'",
        "DELETE FROM {lifecycle_edges}",
    ],
)
def test_audit_and_transitions_cannot_be_changed(scene: Scene, raw: Raw, sql: str) -> None:
    """Audit and transitions are insert-only."""
    refuse(raw, scene, sql, "interlock refuses")


def test_audit_entry_cannot_be_replaced(scene: Scene, raw: Raw) -> None:
    """Neither by itself nor by other content."""
    for changes in ({}, {"reason": "'never mind'", "to_state": "'PENDING'"}):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("audit", "job_id = :done AND version = 2", changes, replacing=True, **scene)
        assert raw.dump() == before


def test_audit_of_a_stored_job_cannot_be_archived(scene: Scene, raw: Raw) -> None:
    """A forged archive mark allows nothing while the job is stored."""
    raw(
        "INSERT INTO {archived} (job_id, entries, digest, archived_at) SELECT id, 1, 'x', updated_at FROM {jobs} "
        "WHERE id = :done",
        **scene,
    )
    refuse(raw, scene, "DELETE FROM {audit} WHERE job_id = :done", "only archived entries")


def test_transition_in_the_audit_has_a_target(scene: Scene, raw: Raw) -> None:
    """An entry that records a transition has a target state."""
    before = raw.dump()
    with pytest.raises(raw.refusal, match="audit_arrow"):
        raw.copy("audit", "job_id = :done AND version = 2", {"version": "9", "to_state": "NULL"}, **scene)
    assert raw.dump() == before
