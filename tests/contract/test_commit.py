"""commit: a move with the caller's function inside its transaction."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import psycopg
import pytest

from interlock.core.job import Job
from interlock.core.machine import Arrow
from interlock.core.outcome import FailedFinally, Finished, Returned
from interlock.errors import CommitTimeout
from interlock.store.contract import Store
from tests.contract.kit import check, claim, claimed, commit, decided, finish, forged, lose, settle, stored, taken
from tests.kit import Place, PostgresPlace, Raw, SettableClock, SqliteRaw

Open = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=["our transaction", "the caller's"])
def transaction(request: pytest.FixtureRequest, raw: Raw) -> Open | None:
    """Who opens the transaction: every promise holds for both."""
    raw("CREATE TABLE {effects} (job text, what text)")
    return None if request.param == "our transaction" else raw.transaction


class Body:
    """A caller's function that writes to the caller's own table."""

    def __init__(self, raw: Raw, raises: Exception | None = None) -> None:
        self.raw, self.raises, self.seen = raw, raises, []

    def __call__(self, tx: Any, job: Job) -> None:
        self.seen.append(job)
        tx.execute(self.raw.words(f"INSERT INTO {{effects}} VALUES ('{job.id}', '{job.state}')"))
        if self.raises is not None:
            raise self.raises

    @property
    def effects(self) -> list[tuple[str, str]]:
        return self.raw("SELECT job, what FROM {effects}")


@pytest.mark.parametrize("boundary", [True, False])
def test_function_and_move_are_stored_in_one_transaction(
    store: Store, raw: Raw, transaction: Open | None, boundary: bool
) -> None:
    """The function's write is stored exactly if the job is past its commit."""
    lease, body = claimed(store), Body(raw)
    assert (
        store.transitions.commit(decided(lease, Returned('"v"', boundary=boundary)), body, transaction=transaction)
        is None
    )
    assert body.effects == [(lease.job.id, "RUNNING")]
    assert store.inspect.executions(lease.job.id)[0].status == ("COMMITTED" if boundary else "DONE")
    check(store, lease.job.id)


def test_function_gets_the_job_before_its_move(store: Store, raw: Raw, transaction: Open | None) -> None:
    """The function is called once, with the job that the move will change."""
    lease, body = claimed(store, payload='{"to":"ann"}'), Body(raw)
    store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=transaction)
    (job,) = body.seen
    assert (job.id, job.payload, job.attempt, job.version, job.state) == (
        lease.job.id,
        {"to": "ann"},
        1,
        lease.job.version,
        "RUNNING",
    )


def test_function_that_raises_rolls_back_the_commit(store: Store, raw: Raw, transaction: Open | None) -> None:
    """The exception is raised; neither the function's writes nor the move is stored, and the job can still be moved."""
    lease = claimed(store)
    before = raw.dump()
    body = Body(raw, PermissionError("no"))
    with pytest.raises(PermissionError, match="no"):
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=transaction)
    assert (raw.dump(), body.effects) == (before, [])
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_stale_commit_does_not_call_the_function(
    store: Store, raw: Raw, transaction: Open | None, clock: SettableClock
) -> None:
    """The commit is refused with the stored row, and nothing is written."""
    lease, body = claimed(store, lease=30.0), Body(raw)
    clock.advance(31)
    lose(store)
    before = raw.dump()
    refusal = store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=transaction)
    assert refusal is not None
    assert (refusal.status, refusal.ended_by, body.seen, body.effects) == ("ABORTED", "lose", [], [])
    assert raw.dump() == before


def test_commit_is_refused_after_another_worker_adopted_the_job(
    store: Store, other: Store, raw: Raw, transaction: Open | None, clock: SettableClock
) -> None:
    """Ownership is checked when the rows are locked, not when the handler ended."""
    lease, body = claimed(store, lease=30.0), Body(raw)
    clock.advance(31)
    (adopted,) = other.leases.adopt("bob", ["mail"], 30.0, 1)
    refusal = store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=transaction)
    assert refusal is not None
    assert (refusal.holder, body.seen) == (2, [])
    assert (
        other.transitions.commit(decided(adopted, Returned("1", boundary=True)), body, transaction=transaction) is None
    )
    assert len(body.effects) == 1


def test_refused_move_rolls_back_the_function(store: Store, raw: Raw, transaction: Open | None) -> None:
    """The function's writes are rolled back with the move."""
    lease, body = claimed(store), Body(raw)
    before = raw.dump()
    with pytest.raises(Exception, match="interlock refuses"):
        store.transitions.commit(forged(lease, "EXPIRED", "expire"), body, transaction=transaction)
    assert (len(body.seen), body.effects, raw.dump()) == (1, [], before)


def test_commit_sent_again_counts_as_done(store: Store, raw: Raw, transaction: Open | None) -> None:
    """Protocol 10: the second call does not run the function and is not refused."""
    lease, body = claimed(store), Body(raw)
    move = decided(lease, Returned("1", boundary=True))
    assert store.transitions.commit(move, body, transaction=transaction) is None
    before = raw.dump()
    assert store.transitions.commit(move, body, transaction=transaction) is None
    assert (len(body.seen), len(body.effects), raw.dump()) == (1, 1, before)


def test_move_with_two_transitions_runs_its_function_once(store: Store, raw: Raw, transaction: Open | None) -> None:
    """A failure that is buried at once runs its function once, in the transaction of both transitions."""
    lease, body = claimed(store, "paint"), Body(raw)
    assert store.transitions.commit(decided(lease, FailedFinally("broken")), body, transaction=transaction) is None
    assert (store.inspect.get(lease.job.id).state, len(body.effects)) == ("dead_letter", 1)
    check(store, lease.job.id)


def test_finish_and_its_function_are_stored_together(store: Store, raw: Raw, transaction: Open | None) -> None:
    """This is the move from the commit boundary to the end."""
    lease, body = commit(store, claimed(store)), Body(raw)
    assert store.transitions.commit(decided(lease, Finished()), body, transaction=transaction) is None
    assert (store.inspect.get(lease.job.id).state, len(body.effects)) == ("SUCCEEDED", 1)


# ---------------------------------------------------------------- takes of a waiting job
def test_take_and_its_function_are_stored_together(store: Store, raw: Raw, transaction: Open | None) -> None:
    """A waiting job is cancelled in the same transaction as the function's writes."""
    job, body = stored(store), Body(raw)
    assert store.transitions.commit(taken(job, reason="no longer wanted"), body, transaction=transaction) is None
    assert (store.inspect.get(job.id).state, body.effects) == ("CANCELLED", [(job.id, "PENDING")])
    check(store, job.id)


def test_stale_take_does_not_call_the_function(store: Store, raw: Raw, transaction: Open | None) -> None:
    """A job that was claimed in the meantime is not taken."""
    job, body = stored(store), Body(raw)
    take = taken(job)
    claim(store)
    before = raw.dump()
    refusal = store.transitions.commit(take, body, transaction=transaction)
    assert refusal is not None
    assert (refusal.state, body.seen, raw.dump()) == ("RUNNING", [], before)


def test_take_whose_function_raises_leaves_the_job_waiting(store: Store, raw: Raw, transaction: Open | None) -> None:
    """Nothing changes, and the exception is raised."""
    job = stored(store)
    before = raw.dump()
    with pytest.raises(PermissionError):
        store.transitions.commit(taken(job), Body(raw, PermissionError()), transaction=transaction)
    assert raw.dump() == before


def test_take_that_the_lifecycle_does_not_allow_is_rolled_back(
    store: Store, raw: Raw, transaction: Open | None
) -> None:
    """The database refuses it, and the function's writes are rolled back."""
    job, body = stored(store), Body(raw)
    before = raw.dump()
    with pytest.raises(Exception, match="interlock refuses"):
        store.transitions.commit(
            replace(taken(job), arrow=Arrow("PENDING", "reject", "REJECTED")), body, transaction=transaction
        )
    assert (len(body.seen), body.effects, raw.dump()) == (1, [], before)


# ---------------------------------------------------------------- slow functions
def test_function_that_takes_too_long_is_rolled_back(
    store: Store, raw: Raw, transaction: Open | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the limit and the setting; nothing is stored, and the job can still be moved."""
    lease, body = claimed(store), Body(raw)
    before = raw.dump()
    seconds = count(step=31)
    monkeypatch.setattr("interlock.store.commit_boundary.monotonic", lambda: next(seconds))
    with pytest.raises(CommitTimeout, match=r"longer than the 30\.5 s that commit_timeout allows"):
        store.transitions.commit(
            decided(lease, Returned("1", boundary=True)), body, transaction=transaction, timeout=30.5
        )
    assert (len(body.seen), body.effects, raw.dump()) == (1, [], before)
    assert (
        store.transitions.commit(
            decided(lease, Returned("1", boundary=True)), body, transaction=transaction, timeout=31.0
        )
        is None
    )
    assert len(body.effects) == 1


def test_server_ends_the_transaction_of_a_function_that_hangs(store: Store, raw: Raw, place: Place) -> None:
    """It does not matter whether the function then uses its transaction or returns.

    SQLite has no server that could end the transaction.
    """
    lease = claimed(store)
    before = raw.dump()

    def body(tx: Any, job: Job) -> None:
        (pid,) = tx.execute("SELECT pg_backend_pid()").fetchone()
        while raw("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid):
            pass
        tx.execute("SELECT 1")

    if isinstance(place, PostgresPlace):
        with pytest.raises(CommitTimeout, match=r"the 0\.05 s that commit_timeout allows") as caught:
            store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, timeout=0.05)
        assert caught.value.__cause__ is not None
    assert raw.dump() == before
    assert finish(store, lease).job.state == "SUCCEEDED"


# ---------------------------------------------------------------- deadlocks and a busy file
def contested(raw: Raw) -> Exception:
    """Return the error that the driver raises if the transaction can be retried."""
    if not isinstance(raw, SqliteRaw):
        return psycopg.errors.DeadlockDetected()
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return busy


@pytest.mark.parametrize("wrapped", [False, True])
def test_deadlock_runs_the_function_again(store: Store, raw: Raw, transaction: Open | None, wrapped: bool) -> None:
    """Protocol 26: in a new transaction, up to three times in all; its write is stored once."""
    lease, body = claimed(store), Body(raw)

    def unlucky(tx: Any, job: Job) -> None:
        body(tx, job)
        if len(body.seen) < 3:
            raise contested(raw) if not wrapped else RuntimeError("a library's own") from contested(raw)

    assert (
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), unlucky, transaction=transaction) is None
    )
    assert (len(body.seen), len(body.effects)) == (3, 1)
    assert store.inspect.executions(lease.job.id)[0].status == "COMMITTED"


def test_deadlock_is_raised_after_three_attempts(store: Store, raw: Raw, transaction: Open | None) -> None:
    """After the third attempt the error is raised, and nothing is changed."""
    lease = claimed(store)
    before = raw.dump()
    error = contested(raw)
    body = Body(raw, error)
    with pytest.raises(type(error)):
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=transaction)
    assert (len(body.seen), body.effects, raw.dump()) == (3, [], before)


# ---------------------------------------------------------------- a function must not end the transaction
def test_function_that_commits_by_itself_causes_an_error(store: Store, raw: Raw) -> None:
    """Protocol 26: a function that commits does not leave a job half moved without an error."""
    raw("CREATE TABLE {effects} (job text, what text)")
    lease = claimed(store)

    def body(tx: Any, job: Job) -> None:
        tx.commit()

    @contextmanager
    def own() -> Iterator[Any]:
        with raw.transaction() as connection:
            yield connection

    with pytest.raises(Exception):  # noqa: B017, PT011 - each store raises its own error
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), body, transaction=own)
    assert settle(store, lease, FailedFinally("it misbehaved")).job.state == "FAILED"
