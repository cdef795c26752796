"""commit: functions that misuse their transaction never move a job without their writes, or the reverse."""

from contextlib import suppress
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.core.outcome import Returned
from interlock.errors import CommitTimeout, InterlockError
from interlock.store.contract import Store
from tests.contract.kit import claimed, decided, finish
from tests.contract.test_commit import Body, Open, transaction
from tests.kit import Place, PostgresPlace, Raw

__all__ = ["transaction"]


def test_function_that_ignores_a_failed_statement_causes_an_error(store: Store, raw: Raw, place: Place) -> None:
    """PostgreSQL would store nothing of the transaction. SQLite has undone only the statement, and continues."""
    raw("CREATE TABLE {effects} (job text, what text)")
    lease, body = claimed(store), Body(raw)

    def ignoring(tx: Any, job: Job) -> None:
        body(tx, job)
        with suppress(Exception):
            tx.execute("SELECT nonsense")

    move = decided(lease, Returned("1", boundary=True))
    if isinstance(place, PostgresPlace):
        with pytest.raises(InterlockError, match="ended the transaction itself, or ignored the error"):
            store.transitions.commit(move, ignoring)
        assert body.effects == []
        assert finish(store, lease).job.state == "SUCCEEDED"
    else:
        assert store.transitions.commit(move, ignoring) is None
        assert len(body.effects) == 1


def test_function_that_hides_its_commit_causes_an_error(store: Store, raw: Raw) -> None:
    """Its own writes are stored, but the job is not moved, also if the function begins another transaction."""
    lease = claimed(store)

    def body(tx: Any, job: Job) -> None:
        tx.execute("/* as if it were none */ COMMIT")
        tx.execute("/* as if it were none */ BEGIN")

    with pytest.raises(InterlockError, match="ended the transaction itself"):
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), body)
    assert store.inspect.executions(lease.job.id)[0].status == "IN_PROGRESS"
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_function_whose_session_the_server_ended_counts_as_too_slow(store: Store, raw: Raw, place: Place) -> None:
    """PostgreSQL has ended the session, and the function does not notice."""
    raw("CREATE TABLE {effects} (job text, what text)")
    lease, body = claimed(store), Body(raw)

    def hanging(tx: Any, job: Job) -> None:
        body(tx, job)
        (pid,) = tx.execute("SELECT pg_backend_pid()").fetchone()
        while raw("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid):
            pass

    if isinstance(place, PostgresPlace):
        with pytest.raises(CommitTimeout, match=r"the 0\.05 s that commit_timeout allows"):
            store.transitions.commit(decided(lease, Returned("1", boundary=True)), hanging, timeout=0.05)
    assert body.effects == []
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_function_may_leave_a_savepoint_of_its_own(store: Store, raw: Raw, transaction: Open | None) -> None:
    """Its writes and the move are stored."""
    lease, body = claimed(store), Body(raw)

    def saving(tx: Any, job: Job) -> None:
        tx.execute("SAVEPOINT mine")
        body(tx, job)

    move = decided(lease, Returned("1", boundary=True))
    assert store.transitions.commit(move, saving, transaction=transaction) is None
    assert len(body.effects) == 1
    assert store.inspect.executions(lease.job.id)[0].status == "COMMITTED"


def test_function_that_writes_to_the_row_of_its_job_is_rolled_back(store: Store, raw: Raw) -> None:
    """The move then does not match, although the fence did."""
    raw("CREATE TABLE {effects} (job text, what text)")
    lease, body = claimed(store), Body(raw)
    before = raw.dump()

    def meddling(tx: Any, job: Job) -> None:
        body(tx, job)
        tx.execute(raw.words("UPDATE {executions} SET holder = holder + 1"))

    refusal = store.transitions.commit(decided(lease, Returned("1", boundary=True)), meddling)
    assert refusal is not None
    assert (len(body.seen), body.effects, raw.dump()) == (1, [], before)


def test_error_that_is_raised_at_commit_rolls_back_the_move(store: Store, raw: Raw, place: Place) -> None:
    """A deferred constraint raises such an error."""
    if isinstance(place, PostgresPlace):
        raw("CREATE TABLE {effects} (job text, what text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    else:
        raw("CREATE TABLE {effects} (job text, what text REFERENCES {effects} (job) DEFERRABLE INITIALLY DEFERRED)")
        raw("CREATE UNIQUE INDEX one_job ON {effects} (job)")
    lease, body = claimed(store), Body(raw)
    before = raw.dump()

    def twice(tx: Any, job: Job) -> None:
        body(tx, job)
        if isinstance(place, PostgresPlace):
            body(tx, job)

    with pytest.raises(Exception, match=r"unique constraint|FOREIGN KEY constraint"):
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), twice)
    assert (body.effects, raw.dump()) == ([], before)
    assert finish(store, lease).job.state == "SUCCEEDED"
