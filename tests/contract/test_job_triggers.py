"""What the database itself refuses, whoever sends it: raw SQL that breaks a rule changes nothing."""

import pytest

from interlock.ids import uuid7
from interlock.lifecycle import Lifecycle
from interlock.outcome import Errored
from interlock.store import Store
from tests.contract.kit import LIFECYCLES, claim, claimed, commit, fail, finish, settle, stored
from tests.kit import Raw

Scene = dict[str, str]
NEWER = Lifecycle("standard", transitions=[*((a.source, a.event, a.target) for a in LIFECYCLES["standard"].arrows), ("PENDING", "reject", "REJECTED")])


@pytest.fixture
def scene(store: Store) -> Scene:
    """One job in every situation, by name."""
    store.migrate([NEWER], [])
    jobs = {
        "resting": settle(store, claimed(store, "paint"), Errored("busy", retryable=True)).job,
        "buried": fail(store, claimed(store, "paint", idempotency_key="buried")).job,
        "retried": settle(store, claimed(store), Errored("busy", retryable=True)).job,
        "done": finish(store, claimed(store, idempotency_key="done")).job,
        "committed": commit(store, claimed(store)).job,
        "leased": claimed(store, "deliver").job,
        "outside": claimed(store, "fetch").job,
        "again": settle(store, claimed(store), Errored("busy", retryable=True, after=0)).job,
    }
    claim(store)
    jobs |= {"running": claimed(store, idempotency_key="i", unique_key="u").job, "waiting": stored(store, tries=2), "queued": stored(store, "fetch")}
    return {name: job.id for name, job in jobs.items()}


def refuse(raw: Raw, scene: Scene, sql: str, why: str) -> None:
    """The statement is refused for this reason, and nothing is changed."""
    before = raw.dump()
    with pytest.raises(raw.refusal, match=why):
        raw(sql, **scene)
    assert raw.dump() == before


ENDED = "finished_at = updated_at, updated_at = {later}"
NOBODY = "00000000-0000-7000-8000-000000000000"
FRESH = "updated_at = {later}"


@pytest.mark.parametrize("where,change,why", [  # noqa: PT006 - one table of triples reads best
    ("running", f"state = 'EXPIRED', phase = 'failed', version = version + 1, {ENDED}", "draws no such arrow"),
    ("waiting", f"state = 'SUCCEEDED', phase = 'succeeded', version = version + 1, {ENDED}", "draws no such arrow"),
    ("waiting", f"state = 'nowhere', version = version + 1, {FRESH}", "does not fit"),
    ("waiting", f"state = 'RUNNING', phase = 'running', version = version + 1, {FRESH}", "draws no such arrow"),
    ("running", f"state = 'PENDING', phase = 'pending', version = version + 1, attempt = attempt + 1, {FRESH}", "draws no such arrow"),
    ("resting", f"state = 'running', phase = 'running', version = version + 1, attempt = attempt + 1, {FRESH}", "draws no such arrow"),
    ("resting", f"state = 'running', phase = 'running', version = version + 2, {FRESH}", "draws no such arrow"),
    ("running", f"state = 'PENDING', phase = 'pending', version = version + 2, {FRESH}", "draws no such arrow"),
    ("running", f"state = 'PENDING', phase = 'pending', {FRESH}", "together with version"),
    ("running", f"version = version + 1, {FRESH}", "interlock refuses"),
    ("running", f"version = version - 1, {FRESH}", "interlock refuses"),
    ("running", f"phase = 'pending', {FRESH}", "does not fit"),
    ("running", f"phase = 'succeeded', {ENDED}", "does not fit"),
    ("running", f"phase = 'lively', {FRESH}", "does not fit|jobs_phase"),
    ("waiting", f"phase = 'running', {FRESH}", "does not fit"),
    ("running", f"attempt = attempt - 1, {FRESH}", "attempt only grows"),
    ("running", f"attempt = attempt + 2, {FRESH}", "interlock refuses"),
    ("running", f"lifecycle_version = 2, {FRESH}", "only with a claim"),
    ("waiting", f"lifecycle_version = 2, {FRESH}", "only with a claim"),
    ("waiting", f"lifecycle_version = 3, {FRESH}", "interlock refuses"),
    ("waiting", f"lifecycle = 'state_model', {FRESH}", "interlock refuses"),
    ("running", "priority = 9", "not refreshed"),
    ("running", "priority = 9, updated_at = created_at", "not refreshed"),
    ("waiting", f"id = '{NOBODY}', {FRESH}", "never change"),
    ("running", f"kind = 'chore', {FRESH}", "never change"),
    ("running", f"created_at = {{later}}, {FRESH}", "never change"),
    ("running", f"idempotency_key = 'other', {FRESH}", "never change"),
    ("running", f"idempotency_key = NULL, {FRESH}", "never change"),
    ("waiting", f"unique_key = 'late', {FRESH}", "never change"),
    ("waiting", f"tries_left = tries + 1, {FRESH}", "jobs_tries"),
    ("waiting", f"tries_left = -1, {FRESH}", "jobs_tries"),
    ("running", f"held_at = updated_at, {FRESH}", "jobs_held"),
    ("running", f"finished_at = updated_at, {FRESH}", "jobs_finished"),
    ("done", f"priority = 9, {FRESH}", "has ended"),
    ("done", f"state = 'RUNNING', phase = 'running', version = version + 1, finished_at = NULL, {FRESH}", "has ended"),
    ("done", f"result = NULL, {FRESH}", "has ended"),
    ("buried", f"state = 'failed', phase = 'pending', version = version + 1, finished_at = NULL, {FRESH}", "has ended"),
    ("buried", f"key_released = (1 = 0), {FRESH}", "has ended"),
])
def test_no_update_of_a_job_breaks_a_rule(scene: Scene, raw: Raw, where: str, change: str, why: str) -> None:
    """Undrawn arrows, a state without its version, a phase that does not fit, attempts that leap or shrink, changed identity, changes after the end."""
    refuse(raw, scene, f"UPDATE {{jobs}} SET {change} WHERE id = :{where}", why)


def test_a_drawn_arrow_is_accepted(store: Store, scene: Scene, raw: Raw) -> None:
    """The other side of the coin: the same words along drawn arrows, with all that belongs to them, are not refused."""
    raw(f"""UPDATE {{jobs}} SET state = 'RUNNING', phase = 'running', version = version + 1, attempt = attempt + 1, lifecycle_version = 2, {FRESH}
            WHERE id = :waiting""", **scene)
    raw(f"UPDATE {{jobs}} SET state = 'running', phase = 'running', version = version + 2, attempt = attempt + 1, {FRESH} WHERE id = :resting", **scene)
    raw(f"UPDATE {{jobs}} SET state = 'CANCELLED', phase = 'failed', version = version + 1, {ENDED} WHERE id = :running", **scene)
    raw(f"UPDATE {{jobs}} SET priority = 9, queue = 'other', {FRESH} WHERE id = :queued", **scene)
    assert [store.get(scene[name]).state for name in ("waiting", "resting", "running")] == ["RUNNING", "running", "CANCELLED"]


@pytest.mark.parametrize("changes", [
    {"state": "'RUNNING'"}, {"state": "'CANCELLED'"}, {"phase": "'running'"}, {"version": "1"}, {"attempt": "1"}, {"tries_left": "1"}, {"lease_losses": "1"},
    {"key_released": "(1 = 1)"}, {"lifecycle": "'unheard_of'"}, {"lifecycle_version": "3"}, {"held_at": "updated_at"}, {"cancel_requested_at": "updated_at"},
    {"state": "'CANCELLED'", "phase": "'failed'", "finished_at": "updated_at"}], ids=str)
def test_no_insert_of_a_job_begins_elsewhere(scene: Scene, raw: Raw, changes: dict[str, str]) -> None:
    """A job begins in the initial state of a registered lifecycle, with nothing behind it."""
    before = raw.dump()
    raw_id = {"id": f"'{uuid7()}'"}
    with pytest.raises(raw.refusal, match="a job begins in the initial state"):
        raw.copy("jobs", "id = :waiting", raw_id | changes, **scene)
    assert raw.dump() == before
    raw.copy("jobs", "id = :waiting", raw_id, **scene)


@pytest.mark.parametrize("name", ["waiting", "running", "leased", "committed", "retried", "resting"])
def test_a_live_job_is_not_deleted(scene: Scene, raw: Raw, name: str) -> None:
    """Only what has ended may go."""
    refuse(raw, scene, f"DELETE FROM {{jobs}} WHERE id = :{name}", "only a job that has ended is deleted")


def test_an_ended_job_may_be_deleted_with_its_executions(scene: Scene, raw: Raw) -> None:
    """And its audit stays."""
    audit = raw.lines("audit")
    raw("DELETE FROM {jobs} WHERE id = :done", **scene)
    assert raw("SELECT count(*) FROM {executions} WHERE job_id = :done", **scene) == [(0,)]
    assert raw.lines("audit") == audit


@pytest.mark.parametrize("name", ["waiting", "running", "done"])
def test_a_job_is_not_replaced(scene: Scene, raw: Raw, name: str) -> None:
    """Neither by itself nor by a job that begins anew under its id."""
    for changes in ({}, {"priority": "9"}, {
            "state": "'PENDING'", "phase": "'pending'", "version": "0", "attempt": "0", "tries_left": "tries", "finished_at": "NULL", "result": "NULL"}):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("jobs", f"id = :{name}", changes, replacing=True, **scene)
        assert raw.dump() == before


def test_a_job_is_not_replaced_by_the_holder_of_its_key(scene: Scene, raw: Raw) -> None:
    """A new job under another's idempotency or unique key pushes nobody out."""
    anew = {"id": f"'{uuid7()}'", "state": "'PENDING'", "phase": "'pending'", "version": "0", "attempt": "0", "tries_left": "tries"}
    for key in ("idempotency_key", "unique_key"):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("jobs", "id = :running", anew | {"idempotency_key": "NULL", "unique_key": "NULL", key: key}, replacing=True, **scene)
        assert raw.dump() == before


@pytest.mark.parametrize("name", ["jobs", "executions", "audit", "lifecycle_edges"])
def test_no_table_is_emptied(scene: Scene, raw: Raw, name: str) -> None:
    """One word does not forget everything."""
    refuse(raw, scene, raw.empty(name), "interlock refuses")


STAMPED = "committed_at = leased_at, finished_at = leased_at, ended_by = 'succeed'"


@pytest.mark.parametrize("where,change", [  # noqa: PT006
    ("leased", "status = 'COMMITTED', started_at = leased_at, committed_at = leased_at"),
    ("leased", f"status = 'DONE', started_at = leased_at, {STAMPED}"),
    ("leased", "status = 'IN_PROGRESS'"),
    ("running", "status = 'LEASED', started_at = NULL"),
    ("running", "status = 'COMMITTED'"),
    ("running", "status = 'DONE', finished_at = leased_at, ended_by = 'succeed'"),
    ("running", "status = 'DONE', committed_at = leased_at, finished_at = leased_at"),
    ("running", "status = 'DONE', committed_at = leased_at, ended_by = 'succeed'"),
    ("running", "status = 'ABORTED', finished_at = leased_at"),
    ("running", "status = 'RESTING'"),
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
])
def test_no_update_of_an_execution_breaks_a_rule(scene: Scene, raw: Raw, where: str, change: str) -> None:
    """Skipped statuses, missing stamps, ways back to life, a changed fence, a commit that is taken back."""
    refuse(raw, scene, f"UPDATE {{executions}} SET {change} WHERE job_id = :{where}", "interlock refuses|executions_stamps|executions_attempt_check|CHECK")


def test_an_execution_walks_its_statuses(scene: Scene, raw: Raw) -> None:
    """The other side: each step with its stamps, and an adoption, are accepted."""
    raw("UPDATE {executions} SET status = 'IN_PROGRESS', started_at = leased_at WHERE job_id = :leased", **scene)
    raw("UPDATE {executions} SET holder = holder + 1, lease_owner = 'bob' WHERE job_id = :leased", **scene)
    raw("UPDATE {executions} SET status = 'COMMITTED', committed_at = leased_at WHERE job_id = :leased", **scene)
    raw("UPDATE {executions} SET status = 'DONE', finished_at = leased_at, ended_by = 'succeed' WHERE job_id = :leased", **scene)
    raw(f"UPDATE {{executions}} SET status = 'DONE', {STAMPED} WHERE job_id = :running", **scene)


@pytest.mark.parametrize("where,changes", [  # noqa: PT006
    ("running", {"holder": "3", "lease_owner": "'thief'"}),
    ("running", {"attempt": "2"}),
    ("committed", {"attempt": "2", "status": "'IN_PROGRESS'", "committed_at": "NULL", "result": "NULL"}),
    ("done", {"attempt": "2", "status": "'IN_PROGRESS'", "committed_at": "NULL", "finished_at": "NULL", "ended_by": "NULL", "result": "NULL"}),
    ("done", {"attempt": "2"}),
    ("committed", {"attempt": "2"}),
    ("retried", {"attempt": "2", "ended_by": "'fail'"}),
    ("retried", {"attempt": "2", "holder": "2", "ended_by": "'cancel'"}),
    ("retried", {"attempt": "2", "external_id": "'x'", "ended_by": "'cancel'"}),
    ("retried", {"attempt": "0", "ended_by": "'cancel'"}),
    ("retried", {"job_id": f"'{NOBODY}'", "ended_by": "'cancel'"}),
], ids=str)
def test_no_insert_of_an_execution_breaks_a_rule(scene: Scene, raw: Raw, where: str, changes: dict[str, str]) -> None:
    """A second live one, a second committed one, one that begins at its end, one with another's hand on it, one without a job."""
    for replacing in (False, True):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("executions", f"job_id = :{where}", changes, replacing=replacing, **scene)
        assert raw.dump() == before


@pytest.mark.parametrize("name", ["running", "committed", "done", "retried"])
def test_an_execution_is_not_deleted(scene: Scene, raw: Raw, name: str) -> None:
    """It goes only together with its job."""
    refuse(raw, scene, f"DELETE FROM {{executions}} WHERE job_id = :{name}", "together with its job")


@pytest.mark.parametrize("sql", [
    "UPDATE {audit} SET reason = 'never mind' WHERE job_id = :done",
    "UPDATE {audit} SET version = version + 100 WHERE job_id = :done",
    "DELETE FROM {audit} WHERE job_id = :done",
    "DELETE FROM {audit} WHERE job_id = :waiting AND n = 0",
    "UPDATE {lifecycle_edges} SET target = 'SUCCEEDED'",
    "DELETE FROM {lifecycle_edges}",
])
def test_what_was_written_is_not_rewritten(scene: Scene, raw: Raw, sql: str) -> None:
    """Audit and arrows are insert only."""
    refuse(raw, scene, sql, "interlock refuses")


def test_an_entry_of_the_audit_is_not_replaced(scene: Scene, raw: Raw) -> None:
    """Not by itself and not by another story."""
    for changes in ({}, {"reason": "'never mind'", "to_state": "'PENDING'"}):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("audit", "job_id = :done AND version = 2", changes, replacing=True, **scene)
        assert raw.dump() == before


def test_the_audit_of_a_job_that_is_there_does_not_leave_by_the_archives_door(scene: Scene, raw: Raw) -> None:
    """A forged mark of the archive opens nothing while the job is there."""
    raw("INSERT INTO {archived} (job_id, entries, digest, archived_at) SELECT id, 1, 'x', updated_at FROM {jobs} WHERE id = :done", **scene)
    refuse(raw, scene, "DELETE FROM {audit} WHERE job_id = :done", "through the archive")


def test_an_arrow_in_the_audit_leads_somewhere(scene: Scene, raw: Raw) -> None:
    """An entry that claims to be an arrow has a target."""
    before = raw.dump()
    with pytest.raises(raw.refusal, match="audit_arrow"):
        raw.copy("audit", "job_id = :done AND version = 2", {"version": "9", "to_state": "NULL"}, **scene)
    assert raw.dump() == before
