"""Database triggers on jobs: raw SQL that breaks a rule changes nothing."""

import pytest

from interlock.core.ids import uuid7
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import Errored
from interlock.store.contract import Store
from tests.contract.kit import LIFECYCLES, claim, claimed, commit, fail, finish, settle, stored
from tests.kit import Raw

Scene = dict[str, str]
NEWER = Lifecycle(
    "standard",
    transitions=[
        *((a.source, a.event, a.target) for a in LIFECYCLES["standard"].arrows),
        ("PENDING", "reject", "REJECTED"),
    ],
)


@pytest.fixture
def scene(store: Store) -> Scene:
    """Return one job in each situation, by name."""
    store.registry.migrate([NEWER], [])
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
    jobs |= {
        "running": claimed(store, idempotency_key="i", unique_key="u").job,
        "waiting": stored(store, tries=2),
        "queued": stored(store, "fetch"),
    }
    return {name: job.id for name, job in jobs.items()}


def refuse(raw: Raw, scene: Scene, sql: str, why: str) -> None:
    """Check that the statement is refused for this reason and changes nothing."""
    before = raw.dump()
    with pytest.raises(raw.refusal, match=why):
        raw(sql, **scene)
    assert raw.dump() == before


ENDED = "finished_at = updated_at, updated_at = {later}"
NOBODY = "00000000-0000-7000-8000-000000000000"
FRESH = "updated_at = {later}"


@pytest.mark.parametrize(
    "where,change,why",  # noqa: PT006 - one table of triples reads best
    [
        (
            "running",
            f"state = 'EXPIRED', phase = 'failed', version = version + 1, {ENDED}",
            "does not allow this transition",
        ),
        (
            "waiting",
            f"state = 'SUCCEEDED', phase = 'succeeded', version = version + 1, {ENDED}",
            "does not allow this transition",
        ),
        ("waiting", f"state = 'nowhere', version = version + 1, {FRESH}", "does not fit"),
        (
            "waiting",
            f"state = 'RUNNING', phase = 'running', version = version + 1, {FRESH}",
            "does not allow this transition",
        ),
        (
            "running",
            f"state = 'PENDING', phase = 'pending', version = version + 1, attempt = attempt + 1, {FRESH}",
            "does not allow this transition",
        ),
        (
            "resting",
            f"state = 'running', phase = 'running', version = version + 1, attempt = attempt + 1, {FRESH}",
            "does not allow this transition",
        ),
        (
            "resting",
            f"state = 'running', phase = 'running', version = version + 2, {FRESH}",
            "does not allow this transition",
        ),
        (
            "running",
            f"state = 'PENDING', phase = 'pending', version = version + 2, {FRESH}",
            "does not allow this transition",
        ),
        ("running", f"state = 'PENDING', phase = 'pending', {FRESH}", "version must increase"),
        ("running", f"version = version + 1, {FRESH}", "interlock refuses"),
        ("running", f"version = version - 1, {FRESH}", "interlock refuses"),
        ("running", f"phase = 'pending', {FRESH}", "does not fit"),
        ("running", f"phase = 'succeeded', {ENDED}", "does not fit"),
        ("running", f"phase = 'lively', {FRESH}", "does not fit|jobs_phase"),
        ("waiting", f"phase = 'running', {FRESH}", "does not fit"),
        ("running", f"attempt = attempt - 1, {FRESH}", "attempt never decreases"),
        ("running", f"attempt = attempt + 2, {FRESH}", "interlock refuses"),
        ("running", f"lifecycle_version = 2, {FRESH}", "only a claim changes the lifecycle version"),
        ("waiting", f"lifecycle_version = 2, {FRESH}", "only a claim changes the lifecycle version"),
        ("waiting", f"lifecycle_version = 3, {FRESH}", "interlock refuses"),
        ("waiting", f"lifecycle = 'state_model', {FRESH}", "interlock refuses"),
        ("running", "priority = 9", "updated_at must increase"),
        ("running", "priority = 9, updated_at = created_at", "updated_at must increase"),
        ("waiting", f"id = '{NOBODY}', {FRESH}", "never change"),
        ("running", f"kind = 'chore', {FRESH}", "never change"),
        ("running", f"created_at = {{later}}, {FRESH}", "never change"),
        ("running", f"idempotency_key = 'other', {FRESH}", "never change"),
        ("running", f"idempotency_key = NULL, {FRESH}", "never change"),
        ("waiting", f"unique_key = 'late', {FRESH}", "never change"),
        ("waiting", f"tries_left = tries + 1, {FRESH}", "between 0 and tries|jobs_tries"),
        ("waiting", f"tries_left = -1, {FRESH}", "between 0 and tries|jobs_tries"),
        ("waiting", f"tries = 0, tries_left = 0, {FRESH}", "tries must be at least 1|jobs_tries"),
        ("running", f"held_at = updated_at, {FRESH}", "only a pending job can be held|jobs_held"),
        ("running", f"finished_at = updated_at, {FRESH}", "finished_at must be set|jobs_finished"),
        ("done", f"priority = 9, {FRESH}", "has ended"),
        (
            "done",
            f"state = 'RUNNING', phase = 'running', version = version + 1, finished_at = NULL, {FRESH}",
            "has ended",
        ),
        ("done", f"result = NULL, {FRESH}", "has ended"),
        (
            "buried",
            f"state = 'failed', phase = 'pending', version = version + 1, finished_at = NULL, {FRESH}",
            "has ended",
        ),
        ("buried", f"key_freed = (1 = 0), {FRESH}", "has ended"),
    ],
)
def test_update_that_breaks_a_rule_of_jobs_is_refused(
    scene: Scene, raw: Raw, where: str, change: str, why: str
) -> None:
    """Transitions that are not allowed, a state without its version, a phase that does not fit, wrong attempt numbers,
    changed identity, changes after the end.
    """
    refuse(raw, scene, f"UPDATE {{jobs}} SET {change} WHERE id = :{where}", why)


def test_allowed_transition_is_accepted(store: Store, scene: Scene, raw: Raw) -> None:
    """The same statements with allowed transitions, complete with all their columns, are accepted."""
    raw(
        f"""UPDATE {{jobs}} SET state = 'RUNNING', phase = 'running', version = version + 1, attempt = attempt + 1, lifecycle_version = 2, {FRESH}
            WHERE id = :waiting""",
        **scene,
    )
    raw(
        f"UPDATE {{jobs}} SET state = 'running', phase = 'running', version = version + 2, attempt = attempt + 1, "
        f"{FRESH} WHERE id = :resting",
        **scene,
    )
    raw(
        f"UPDATE {{jobs}} SET state = 'CANCELLED', phase = 'failed', version = version + 1, {ENDED} WHERE id = "
        ":running",
        **scene,
    )
    raw(f"UPDATE {{jobs}} SET priority = 9, queue = 'other', {FRESH} WHERE id = :queued", **scene)
    assert [store.inspect.get(scene[name]).state for name in ("waiting", "resting", "running")] == [
        "RUNNING",
        "running",
        "CANCELLED",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "'RUNNING'"},
        {"state": "'CANCELLED'"},
        {"phase": "'running'"},
        {"version": "1"},
        {"attempt": "1"},
        {"tries_left": "1"},
        {"lease_losses": "1"},
        {"key_freed": "(1 = 1)"},
        {"lifecycle": "'unheard_of'"},
        {"lifecycle_version": "3"},
        {"held_at": "updated_at"},
        {"cancel_requested_at": "updated_at"},
        {"state": "'CANCELLED'", "phase": "'failed'", "finished_at": "updated_at"},
    ],
    ids=str,
)
def test_insert_of_a_job_outside_its_initial_state_is_refused(scene: Scene, raw: Raw, changes: dict[str, str]) -> None:
    """A job begins in the initial state of a registered lifecycle, with no history."""
    before = raw.dump()
    raw_id = {"id": f"'{uuid7()}'"}
    with pytest.raises(raw.refusal, match="a new job must be pending, in its initial state"):
        raw.copy("jobs", "id = :waiting", raw_id | changes, **scene)
    assert raw.dump() == before
    raw.copy("jobs", "id = :waiting", raw_id, **scene)


@pytest.mark.parametrize(
    "changes",
    [
        {"tries": "0", "tries_left": "0"},
        {"idempotency_key": f"'{'k' * 256}'"},
        {"unique_key": f"'{'k' * 256}'"},
        {"finished_at": "updated_at"},
        {"result": "'1'"},
    ],
    ids=["no tries", "long idempotency key", "long unique key", "finished", "with a result"],
)
def test_insert_of_a_job_that_breaks_a_rule_is_refused(scene: Scene, raw: Raw, changes: dict[str, str]) -> None:
    before = raw.dump()
    with pytest.raises(raw.refusal):
        raw.copy("jobs", "id = :waiting", {"id": f"'{uuid7()}'"} | changes, **scene)
    assert raw.dump() == before


@pytest.mark.parametrize("name", ["waiting", "running", "leased", "committed", "retried", "resting"])
def test_delete_of_a_live_job_is_refused(scene: Scene, raw: Raw, name: str) -> None:
    """Only ended jobs can be deleted."""
    refuse(raw, scene, f"DELETE FROM {{jobs}} WHERE id = :{name}", "only a job that has ended can be deleted")


def test_ended_job_may_be_deleted_with_its_executions(scene: Scene, raw: Raw) -> None:
    """The audit is kept."""
    audit = raw.lines("audit")
    raw("DELETE FROM {jobs} WHERE id = :done", **scene)
    assert raw("SELECT count(*) FROM {executions} WHERE job_id = :done", **scene) == [(0,)]
    assert raw.lines("audit") == audit


@pytest.mark.parametrize("name", ["waiting", "running", "done"])
def test_job_cannot_be_replaced(scene: Scene, raw: Raw, name: str) -> None:
    """Neither by itself nor by a new job with its id."""
    for changes in (
        {},
        {"priority": "9"},
        {
            "state": "'PENDING'",
            "phase": "'pending'",
            "version": "0",
            "attempt": "0",
            "tries_left": "tries",
            "finished_at": "NULL",
            "result": "NULL",
        },
    ):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy("jobs", f"id = :{name}", changes, replacing=True, **scene)
        assert raw.dump() == before


def test_job_cannot_be_replaced_through_its_key(scene: Scene, raw: Raw) -> None:
    """A new job with the same idempotency or unique key replaces no other."""
    anew = {
        "id": f"'{uuid7()}'",
        "state": "'PENDING'",
        "phase": "'pending'",
        "version": "0",
        "attempt": "0",
        "tries_left": "tries",
    }
    for key in ("idempotency_key", "unique_key"):
        before = raw.dump()
        with pytest.raises(raw.refusal):
            raw.copy(
                "jobs",
                "id = :running",
                anew | {"idempotency_key": "NULL", "unique_key": "NULL", key: key},
                replacing=True,
                **scene,
            )
        assert raw.dump() == before


@pytest.mark.parametrize("name", ["jobs", "executions", "audit", "lifecycle_edges"])
def test_truncate_is_refused(scene: Scene, raw: Raw, name: str) -> None:
    """TRUNCATE is refused on every table."""
    refuse(raw, scene, raw.empty(name), "interlock refuses")
