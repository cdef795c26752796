"""The SQLite file: how it is created and shared, and which rules hold even with foreign keys off."""

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from interlock.core.job import Status
from interlock.core.outcome import Returned
from interlock.errors import NotMigrated, UsageError
from interlock.store import open_store
from interlock.store.sqlite.store import SqliteStore
from interlock.store.types import Heartbeat
from tests.contract.kit import FACTS, LIFECYCLES, claim, decided, make, stored
from tests.contract.test_sqlite_library import Opens, opens, path

__all__ = ["opens", "path"]


# ---------------------------------------------------------------- the file
def test_reading_does_not_create_the_file(opens: Opens, path: str) -> None:
    store = opens(migrate=False)
    assert store.registry.is_empty()
    with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
        store.inspect.counts()
    assert not Path(path).exists()


def test_file_with_only_foreign_tables_counts_as_empty(opens: Opens, path: str) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE users (id INTEGER)")
    store = opens(migrate=False)
    assert store.registry.is_empty()
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    assert not store.registry.is_empty()


def test_two_schemas_share_a_file(opens: Opens) -> None:
    """The schema is the prefix of every table's name."""
    one, two = opens(), opens(schema="billing")
    job = stored(one)
    assert two.inspect.jobs() == []
    assert one.session.instance() != two.session.instance()
    assert [lease.job.id for lease in claim(one)] == [job.id]


def test_printed_migration_makes_the_same_database(opens: Opens, path: str) -> None:
    """`migrate` finds nothing to change in a database that was made from the printed SQL."""
    text = opens(migrate=False).registry.migration_sql(list(LIFECYCLES.values()), FACTS)
    with closing(sqlite3.connect(path)) as other:
        other.executescript(text)
    store = opens()
    assert store.registry.migrate(list(LIFECYCLES.values()), FACTS).notes == ()
    stored(store)
    (lease,) = claim(store)
    assert store.transitions.move([decided(lease, Returned("1", boundary=False))]) == []


# ---------------------------------------------------------------- REPLACE, and foreign keys that are off
def dump(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def stands(store: SqliteStore, path: str, sql: str, **params: Any) -> None:
    """Check that the statement is refused, also with foreign keys off, and changes nothing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        before = dump(other)
        with pytest.raises(sqlite3.IntegrityError):
            other.execute(sql, params)
        assert dump(other) == before
    assert store.inspect.counts()


COPY = {
    "jobs": "SELECT id, kind, queue, 9 AS priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, created_at, updated_at, payload",
    "executions": "SELECT job_id, attempt, 1 AS holder, status, kind, 'thief' AS lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state",
    "audit": "SELECT job_id, version, n, attempt, at, 'forged' AS event, from_state, to_state, actor",
}


@pytest.mark.parametrize("table", ["jobs", "executions", "audit"])
@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"])
def test_row_cannot_be_replaced_by_its_primary_key(opens: Opens, path: str, table: str, verb: str) -> None:
    """REPLACE deletes rows without a delete trigger, so the insert itself is refused."""
    store = opens()
    stored(store)
    if table == "executions":
        claim(store)
    columns = ", ".join(part.rpartition(" ")[2] for part in COPY[table].removeprefix("SELECT ").split(", "))
    stands(store, path, f"{verb} INTO interlock_{table} ({columns}) {COPY[table]} FROM interlock_{table}")


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_job_cannot_be_replaced_by_its_unique_keys(opens: Opens, path: str, key: str) -> None:
    """A new job with another id would delete the unfinished job that has the key."""
    store = opens()
    held = stored(store, **{key: "k"})
    columns = f"id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, created_at, updated_at, payload, {key}"
    other = columns.replace("id", f"'{make().id}'", 1)
    stands(
        store,
        path,
        f"REPLACE INTO interlock_jobs ({columns}) SELECT {other} FROM interlock_jobs WHERE id = :id",
        id=held.id,
    )


def test_live_execution_cannot_be_replaced_by_another_attempt(opens: Opens, path: str) -> None:
    store = opens()
    stored(store)
    claim(store)
    columns = "job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state"
    stands(
        store,
        path,
        f"REPLACE INTO interlock_executions ({columns}) SELECT {columns.replace('attempt', 'attempt + 1')} FROM "
        "interlock_executions",
    )


@pytest.mark.parametrize(
    "change",
    [
        "version = NULL",
        "attempt = NULL",
        "key_freed = NULL",
        "state = 'RUNNING'",
        "id = (SELECT max(id) FROM interlock_jobs)",
        "updated_at = updated_at",
        "updated_at = 'z'",
        "kind = 'chore', updated_at = '2999-01-01T00:00:00.000000Z'",
        "idempotency_key = 'k', updated_at = '2999-01-01T00:00:00.000000Z'",
    ],
)
def test_update_or_replace_of_a_job_is_refused(opens: Opens, path: str, change: str) -> None:
    """UPDATE OR REPLACE would turn a NULL into the column's default, and delete conflicting rows."""
    store = opens()
    first = stored(store)
    stored(store, idempotency_key="k")
    stands(store, path, f"UPDATE OR REPLACE interlock_jobs SET {change} WHERE id = :id", id=first.id)


@pytest.mark.parametrize(
    "change",
    [
        "holder = NULL",
        "attempt = attempt + 1",
        "status = 'DONE'",
        "holder = holder + 2",
        "job_id = 'x'",
        "status = NULL",
    ],
)
def test_update_or_replace_of_an_execution_is_refused(opens: Opens, path: str, change: str) -> None:
    store = opens()
    stored(store)
    claim(store)
    stands(store, path, f"UPDATE OR REPLACE interlock_executions SET {change}")


@pytest.mark.parametrize("table", ["lifecycles", "lifecycle_edges", "lifecycle_changes", "lifecycle_phases"])
def test_lifecycle_tables_are_insert_only(opens: Opens, path: str, table: str) -> None:
    store = opens()
    stored(store)
    stands(store, path, f"DELETE FROM interlock_{table}")
    stands(store, path, f"UPDATE OR REPLACE interlock_{table} SET version = version + 1")


def test_initial_state_cannot_be_replaced(opens: Opens, path: str) -> None:
    store = opens()
    stored(store)
    stands(
        store,
        path,
        "REPLACE INTO interlock_lifecycles (name, version, digest, initial) SELECT name, version, digest, 'RUNNING' "
        "FROM interlock_lifecycles",
    )


def test_executions_are_deleted_with_their_job_if_foreign_keys_are_off(opens: Opens, path: str) -> None:
    """Foreign keys can be off for a connection, so triggers delete the executions."""
    store = opens()
    stored(store)
    (lease,) = claim(store)
    assert store.transitions.move([decided(lease, Returned("1", boundary=False))]) == []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with pytest.raises(sqlite3.IntegrityError, match="together with its job"):
            other.execute("DELETE FROM interlock_executions")
        other.execute("DELETE FROM interlock_jobs")
        assert other.execute("SELECT count(*) FROM interlock_executions").fetchone() == (0,)
    assert [entry.event for entry in store.inspect.history(lease.job.id)] == ["enqueue", "claim", "succeed"]


@pytest.mark.parametrize("status", ["LEASED", "IN_PROGRESS"])
def test_execution_without_a_job_is_refused_if_foreign_keys_are_off(opens: Opens, path: str, status: Status) -> None:
    store = opens()
    stored(store)
    claim(store)
    columns = "job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state"
    given = columns.replace("job_id", f"'{make().id}'").replace("status", f"'{status}'")
    stands(store, path, f"INSERT INTO interlock_executions ({columns}) SELECT {given} FROM interlock_executions")


class Stepping:
    """A clock that advances five seconds on each call."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        self.at += timedelta(seconds=5)
        return self.at


def test_lease_starts_after_the_write_lock_is_taken(tmp_path: Path) -> None:
    """Protocol 19: a writer may wait for the file for longer than a lease, and its lease must not expire meanwhile."""
    clock = Stepping()
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}", "interlock", clock)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    stored(store)
    (lease,) = claim(store, lease=1.0)
    (execution,) = store.inspect.executions(lease.job.id)
    assert execution.lease_expires_at == clock.at + timedelta(seconds=1)
    store.leases.renew([Heartbeat(lease.fence, 2.0)])
    assert store.inspect.executions(lease.job.id)[0].lease_expires_at == clock.at + timedelta(seconds=2)
    store.close()


def test_connection_with_autocommit_true_is_refused(opens: Opens, path: str) -> None:
    """Since Python 3.12, `autocommit=True` does not change `isolation_level`."""
    store = opens()

    class Newer(sqlite3.Connection):
        autocommit = True

    with closing(sqlite3.connect(path, factory=Newer)) as connection, pytest.raises(UsageError, match="BEGIN"):
        store.queue.enqueue([make()], conn=connection)


def test_idle_claim_and_sweep_take_no_lock(opens: Opens, path: str) -> None:
    """Protocol 20: while another process writes, an idle claim and an idle sweep return at once."""
    store = opens()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert claim(store) == []
        assert store.leases.adopt("maintenance", ["mail"], 30.0, 10) == []
        writer.execute("ROLLBACK")


def test_thread_that_opens_a_moved_file_creates_no_new_one(opens: Opens, path: str) -> None:
    """The file may be moved between a thread's check of the path and its first statement."""
    store = opens()
    stored(store)
    Path(path).rename(f"{path}.away")
    store.session.file.check_place = lambda: None  # type: ignore[method-assign]
    raised: list[BaseException] = []

    def read() -> None:
        try:
            store.inspect.counts()
        except BaseException as error:  # noqa: BLE001 - asserted below
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "unable to open" in str(raised[0])
    assert not Path(path).exists()
