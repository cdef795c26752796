"""commit_group with functions that misuse the transaction that they share: only their own jobs are left out."""

from collections.abc import Sequence
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.errors import InterlockError
from interlock.store.contract import Store
from interlock.store.postgres import commit_group
from interlock.store.types import GroupCommit
from tests.contract.test_commit_group import NONE, GroupBody, effects, ids, leased, moves_of, states
from tests.kit import Place, PostgresPlace, Raw

__all__ = ["effects"]

MISUSES = {
    "a hidden COMMIT": lambda tx: tx.execute("/* none */ COMMIT"),
    "a second statement": lambda tx: tx.execute("SELECT 1; COMMIT"),
    "the connection": lambda tx: tx.execute("SELECT 1").connection.commit(),
    "a plain COMMIT": lambda tx: tx.execute("COMMIT"),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_function_cannot_end_the_transaction_of_other_jobs(store: Store, raw: Raw, misuse: Any) -> None:
    """It is left out of the group, and the other jobs are stored."""
    leases, body = leased(store, 3), GroupBody(raw)

    def misusing(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        if jobs[0].id == leases[1].job.id:
            misuse(tx)

    found = store.transitions.commit_group(moves_of(leases), misusing)
    good = [leases[0], leases[2]]
    assert (found, body.effects) == (GroupCommit(frozenset(ids(good)), NONE), ids(good))


SETTINGS = {
    "SET LOCAL": "SET LOCAL work_mem = '1MB'",
    "SET CONSTRAINTS": "  set constraints all deferred",
    "RESET": "RESET work_mem",
    "set_config": "SELECT 1,\n set_config ('work_mem', '1MB', true)",
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_setting_of_one_function_never_applies_to_the_others(
    store: Store, raw: Raw, place: Place, setting: str
) -> None:
    """A function that changes a setting is left out of its group. SQLite has no such settings."""
    if not isinstance(place, PostgresPlace):
        return
    leases, body = leased(store, 3), GroupBody(raw)

    def changing(tx: Any, jobs: Sequence[Job]) -> None:
        assert tx.execute("SHOW work_mem").fetchone() == ("4MB",)
        body(tx, jobs)
        if jobs[0].id == leases[1].job.id:
            tx.execute(setting)

    found = store.transitions.commit_group(moves_of(leases), changing)
    assert found == GroupCommit(frozenset(ids([leases[0], leases[2]])), NONE)


def test_function_that_ends_the_transaction_by_force_moves_no_job(store: Store, raw: Raw) -> None:
    """The store sees that the savepoint is gone."""
    leases = leased(store, 3)

    def body(tx: Any, jobs: Sequence[Job]) -> None:
        if jobs[0].id == leases[1].job.id:
            tx.connection(tx).execute("COMMIT")

    with pytest.raises(Exception):  # noqa: B017, PT011 - each driver raises its own error
        store.transitions.commit_group(moves_of(leases), body)
    assert states(store, leases) == ["RUNNING"] * 3


def test_job_whose_savepoint_fails_is_left_out_and_logged(
    store: Store, raw: Raw, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The statement that begins the next savepoint fails after the function of one job. SQLite has none."""
    if not isinstance(place, PostgresPlace):
        return
    caplog.set_level("INFO", "interlock")
    leases, body, following = leased(store, 3), GroupBody(raw), commit_group.NEXT

    def failing(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        fails = jobs[0].id == leases[1].job.id
        monkeypatch.setattr(commit_group, "NEXT", b"SELECT 1 / 0" if fails else following)

    found = store.transitions.commit_group(moves_of(leases), failing)
    good = [leases[0], leases[2]]
    assert (found, body.effects) == (GroupCommit(frozenset(ids(good)), NONE), ids(good))
    assert f"{leases[1].job.id} failed in a shared transaction (psycopg.errors.DivisionByZero" in caplog.text


def test_function_that_ignores_a_failed_statement_is_left_out(store: Store, raw: Raw, place: Place) -> None:
    """PostgreSQL has aborted its savepoint. SQLite has undone only the statement."""
    leases, body = leased(store, 3), GroupBody(raw)

    def ignoring(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        if jobs[0].id == leases[1].job.id:
            with pytest.raises(Exception):  # noqa: B017, PT011 - each driver raises its own error
                tx.execute("SELECT nonsense")

    found = store.transitions.commit_group(moves_of(leases), ignoring)
    good = [leases[0], leases[2]] if isinstance(place, PostgresPlace) else leases
    assert (found.stored, body.effects) == (set(ids(good)), ids(good))


def test_function_that_writes_to_the_rows_of_jobs_rolls_back_its_group(store: Store, raw: Raw) -> None:
    leases, body = leased(store, 3), GroupBody(raw)
    before = raw.dump()

    def meddling(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        tx.execute(raw.words(f"UPDATE {{executions}} SET holder = holder + 1 WHERE job_id = '{jobs[0].id}'"))

    with pytest.raises(InterlockError, match="changed the rows of a job"):
        store.transitions.commit_group(moves_of(leases), meddling)
    assert (body.effects, raw.dump()) == ([], before)
