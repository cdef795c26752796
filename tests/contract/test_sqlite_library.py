"""What only SQLite has: a library to choose, a journal, a connection per thread, one writer at a time, and REPLACE."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from interlock.clock import SystemClock
from interlock.errors import InterlockError, NotMigrated, UsageError
from interlock.job import Status
from interlock.outcome import Returned
from interlock.records import Beat
from interlock.stores import open_store
from interlock.stores.sqlite import library as libraries
from interlock.stores.sqlite.file import File
from interlock.stores.sqlite.library import Library, library, locate, wal_safe
from interlock.stores.sqlite.store import SqliteStore
from interlock.stores.sqlite.turn import Turn
from tests.contract.kit import FACTS, LIFECYCLES, claim, decided, make, stored


class Unsafe(Library):
    """A library that can corrupt a write-ahead log, whatever this machine has."""

    @property
    def wal_safe(self) -> bool:
        return False


class Safe(Library):
    @property
    def wal_safe(self) -> bool:
        return True


UNSAFE, SAFE = Unsafe("sqlite3", sqlite3), Safe("sqlite3", sqlite3)
Opens = Callable[..., SqliteStore]


@pytest.fixture
def path(quick_path: Path) -> str:
    return str(quick_path / "jobs.db")


@pytest.fixture
def opens(path: str) -> Iterator[Opens]:
    """Opens the one file of a test, again and again if asked."""
    opened: list[SqliteStore] = []

    def open_(by: Library = UNSAFE, *, schema: str = "interlock", migrate: bool = True) -> SqliteStore:
        opened.append(SqliteStore(path, by, schema, SystemClock()))
        if migrate:
            opened[-1].migrate(list(LIFECYCLES.values()), FACTS)
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


# ---------------------------------------------------------------- which file, which library
def test_a_url_names_a_file_beside_us_or_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative, four absolute, and a later change of directory changes nothing."""
    monkeypatch.chdir(tmp_path)
    assert locate("sqlite:///jobs.db") == (str(tmp_path / "jobs.db"), library("sqlite3"))
    assert locate("sqlite:////var/lib/jobs.db")[0] == "/var/lib/jobs.db"
    assert locate("sqlite+pysqlite3:///a/jobs.db") == (str(tmp_path / "a" / "jobs.db"), library("pysqlite3"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file:x?mode=memory", "sqlite://jobs.db", "sqlite:///jobs.db?x=1"])
def test_what_is_no_plain_file_is_refused_with_a_sentence(url: str) -> None:
    """Several connections could not see one database in memory."""
    with pytest.raises(UsageError, match=r"sqlite:///|there are none"):
        locate(url)


def test_a_missing_wheel_is_one_sentence_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen in its place behind the user's back."""
    monkeypatch.setitem(__import__("sys").modules, "pysqlite3", None)
    with pytest.raises(UsageError, match="pip install pysqlite3"):
        locate("sqlite+pysqlite3:///jobs.db")


def test_a_library_that_is_too_old_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "OLDEST", (4, 0, 0))
    with pytest.raises(UsageError, match=r"too old.*pip install pysqlite3"):
        library("sqlite3")


@pytest.mark.parametrize(("version", "safe"), [
    ((3, 40, 1), False), ((3, 44, 5), False), ((3, 44, 6), True), ((3, 44, 9), True), ((3, 45, 0), False), ((3, 50, 6), False), ((3, 50, 7), True),
    ((3, 51, 0), False), ((3, 51, 2), False), ((3, 51, 3), True), ((3, 53, 0), True),
])
def test_a_write_ahead_log_is_used_only_where_it_is_safe(version: tuple[int, ...], safe: bool) -> None:
    """3.7.0 to 3.51.2 have the WAL-reset bug, but for two branches with the repair."""
    assert wal_safe(version) is safe


@pytest.mark.parametrize("schema", ["", "Jobs", "1jobs", "a-b", "x" * 49, 'a"b'])
def test_a_schema_that_is_no_plain_name_is_refused(path: str, schema: str) -> None:
    with pytest.raises(UsageError, match="plain name"):
        SqliteStore(path, UNSAFE, schema, SystemClock())


# ---------------------------------------------------------------- the journal
def test_the_journal_follows_the_library_and_a_rollback_journal_is_said_once(opens: Opens, caplog: pytest.LogCaptureFixture) -> None:
    """A user learns why, and what would help."""
    with caplog.at_level(logging.INFO, "interlock"):
        store = opens(UNSAFE)
        assert store.journal == "truncate"
        in_thread(store.counts)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "journal_mode=TRUNCATE" in said
    assert "pysqlite3" in said


def test_a_safe_library_keeps_a_write_ahead_log(opens: Opens, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "interlock"):
        assert opens(SAFE).journal == "wal"
    assert caplog.records == []


def test_a_write_ahead_log_is_given_up_for_a_library_that_is_not_safe(opens: Opens) -> None:
    """What was stored is still there."""
    store = opens(SAFE)
    job = stored(store)
    store.close()
    again = opens(UNSAFE)
    assert again.journal == "truncate"
    assert again.get(job.id) == job


def test_a_write_ahead_log_that_is_open_elsewhere_is_refused(opens: Opens) -> None:
    """Better no service than a corrupt file."""
    assert opens(SAFE).counts() == {}
    with pytest.raises(InterlockError, match=r"write-ahead log.*pysqlite3"):
        opens(UNSAFE, migrate=False).counts()


def test_a_commit_is_on_the_disk_before_it_is_answered(opens: Opens) -> None:
    """synchronous=FULL, in either journal."""
    for by in (SAFE, UNSAFE):
        store = opens(by)
        assert [store.file.connection().execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")] == [2, 1]
        store.close()


# ---------------------------------------------------------------- connections and turns
def in_thread(work: Callable[[], Any]) -> Any:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join()
    return got[0]


def test_each_thread_has_its_own_connection_and_leaves_none_behind(opens: Opens) -> None:
    """The connection of a thread that ended is closed when the next thread comes."""
    store = opens()
    mine, first = store.file.connection(), in_thread(store.file.connection)
    assert mine is store.file.connection()
    assert first is not mine
    in_thread(store.file.connection)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")


def test_after_close_the_next_verb_opens_anew(opens: Opens) -> None:
    store = opens()
    before = store.file.connection()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    assert store.counts() == {}


def test_a_file_that_another_holds_for_long_is_said_in_a_sentence(opens: Opens, path: str) -> None:
    """Not done, and it says so; when the other has ended it works."""
    opens()
    waiting = File(path, UNSAFE, patience=0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(waiting):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InterlockError, match="has been locked"), waiting.write():
            pass
        other.execute("COMMIT")
        with waiting.write() as connection:
            assert connection.in_transaction


def test_a_verb_inside_ones_own_transaction_is_refused_instead_of_waiting_for_itself(opens: Opens) -> None:
    """`conn=` is the way; reading is free."""
    store = opens()
    with store.transaction() as tx:
        with pytest.raises(InterlockError, match="conn="):
            store.enqueue([make()])
        (made,) = store.enqueue([make()], conn=tx)
        assert store.get(made.id).id == made.id
    assert store.get(made.id).state == "PENDING"


def test_turns_come_in_the_order_asked() -> None:
    turn, order, ready = Turn(60.0), list[int](), [threading.Event() for _ in range(20)]

    def ask(n: int) -> None:
        ready[n].set()
        with turn:
            order.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    with turn:
        for n, thread in enumerate(threads):
            thread.start()
            ready[n].wait()
            while turn.waiting <= n:
                pass
    for thread in threads:
        thread.join()
    assert order == list(range(20))


# ---------------------------------------------------------------- the file's own life
def test_looking_for_a_file_does_not_make_it(opens: Opens, path: str) -> None:
    store = opens(migrate=False)
    assert store.is_empty()
    with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
        store.counts()
    assert not Path(path).exists()


def test_a_file_with_tables_of_others_is_empty_of_ours(opens: Opens, path: str) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE users (id INTEGER)")
    store = opens(migrate=False)
    assert store.is_empty()
    store.migrate(list(LIFECYCLES.values()), FACTS)
    assert not store.is_empty()


def test_two_apps_share_a_file_under_two_names(opens: Opens) -> None:
    """The schema is the beginning of every table's name."""
    one, two = opens(), opens(schema="billing")
    job = stored(one)
    assert two.jobs() == []
    assert one.instance() != two.instance()
    assert [lease.job.id for lease in claim(one)] == [job.id]


def test_the_migration_as_text_makes_the_same_database(opens: Opens, path: str) -> None:
    """Run by other means, it is a database that `migrate` finds nothing to change in."""
    text = opens(migrate=False).migration(list(LIFECYCLES.values()), FACTS)
    with closing(sqlite3.connect(path)) as other:
        other.executescript(text)
    store = opens()
    assert store.migrate(list(LIFECYCLES.values()), FACTS).notes == ()
    stored(store)
    (lease,) = claim(store)
    assert store.move([decided(lease, Returned("1", boundary=False))]) == []


# ---------------------------------------------------------------- REPLACE, and switches that are off
def dump(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def stands(store: SqliteStore, path: str, sql: str, **params: Any) -> None:
    """The statement is refused, also on a connection whose foreign keys are off, and nothing is changed by it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        before = dump(other)
        with pytest.raises(sqlite3.IntegrityError):
            other.execute(sql, params)
        assert dump(other) == before
    assert store.counts()


COPY = {
    "jobs": "SELECT id, kind, queue, 9 AS priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, created_at, updated_at, payload",
    "executions": "SELECT job_id, attempt, 1 AS holder, status, kind, 'thief' AS lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state",
    "audit": "SELECT job_id, version, n, attempt, at, 'forged' AS event, from_state, to_state, actor",
}


@pytest.mark.parametrize("table", ["jobs", "executions", "audit"])
@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"])
def test_no_row_is_replaced_by_its_key(opens: Opens, path: str, table: str, verb: str) -> None:
    """REPLACE deletes without asking a delete trigger, so the insert is refused before."""
    store = opens()
    stored(store)
    if table == "executions":
        claim(store)
    columns = ", ".join(part.rpartition(" ")[2] for part in COPY[table].removeprefix("SELECT ").split(", "))
    stands(store, path, f"{verb} INTO interlock_{table} ({columns}) {COPY[table]} FROM interlock_{table}")


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_no_holder_of_a_key_is_replaced(opens: Opens, path: str, key: str) -> None:
    """The holder of a key would be deleted, unfinished, by a newcomer with another id."""
    store = opens()
    held = stored(store, **{key: "k"})
    columns = f"id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, created_at, updated_at, payload, {key}"
    other = columns.replace("id", f"'{make().id}'", 1)
    stands(store, path, f"REPLACE INTO interlock_jobs ({columns}) SELECT {other} FROM interlock_jobs WHERE id = :id", id=held.id)


def test_no_live_execution_is_replaced_by_another_attempt(opens: Opens, path: str) -> None:
    store = opens()
    stored(store)
    claim(store)
    columns = "job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state"
    stands(store, path, f"REPLACE INTO interlock_executions ({columns}) SELECT {columns.replace('attempt', 'attempt + 1')} FROM interlock_executions")


@pytest.mark.parametrize("change", [
    "version = NULL", "attempt = NULL", "key_released = NULL", "state = 'RUNNING'", "id = (SELECT max(id) FROM interlock_jobs)", "updated_at = updated_at",
    "updated_at = 'z'", "kind = 'chore', updated_at = '2999-01-01T00:00:00.000000Z'", "idempotency_key = 'k', updated_at = '2999-01-01T00:00:00.000000Z'",
])
def test_no_update_or_replace_of_a_job_gets_through(opens: Opens, path: str, change: str) -> None:
    """UPDATE OR REPLACE would turn a NULL into the column's default, and delete whoever stands in the way."""
    store = opens()
    first = stored(store)
    stored(store, idempotency_key="k")
    stands(store, path, f"UPDATE OR REPLACE interlock_jobs SET {change} WHERE id = :id", id=first.id)


@pytest.mark.parametrize("change", ["holder = NULL", "attempt = attempt + 1", "status = 'DONE'", "holder = holder + 2", "job_id = 'x'", "status = NULL"])
def test_no_update_or_replace_of_an_execution_gets_through(opens: Opens, path: str, change: str) -> None:
    store = opens()
    stored(store)
    claim(store)
    stands(store, path, f"UPDATE OR REPLACE interlock_executions SET {change}")


@pytest.mark.parametrize("table", ["lifecycles", "lifecycle_edges", "lifecycle_hops", "lifecycle_phases"])
def test_what_the_triggers_look_up_is_only_added_to(opens: Opens, path: str, table: str) -> None:
    store = opens()
    stored(store)
    stands(store, path, f"DELETE FROM interlock_{table}")
    stands(store, path, f"UPDATE OR REPLACE interlock_{table} SET version = version + 1")


def test_an_initial_state_is_not_replaced(opens: Opens, path: str) -> None:
    store = opens()
    stored(store)
    stands(store, path, "REPLACE INTO interlock_lifecycles (name, version, digest, initial) SELECT name, version, digest, 'RUNNING' FROM interlock_lifecycles")


def test_executions_go_with_their_job_also_where_foreign_keys_are_off(opens: Opens, path: str) -> None:
    """Foreign keys are a switch of each connection; what goes with a job goes by trigger."""
    store = opens()
    stored(store)
    (lease,) = claim(store)
    assert store.move([decided(lease, Returned("1", boundary=False))]) == []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with pytest.raises(sqlite3.IntegrityError, match="together with its job"):
            other.execute("DELETE FROM interlock_executions")
        other.execute("DELETE FROM interlock_jobs")
        assert other.execute("SELECT count(*) FROM interlock_executions").fetchone() == (0,)
    assert [entry.event for entry in store.history(lease.job.id)] == ["enqueue", "claim", "succeed"]


@pytest.mark.parametrize("status", ["LEASED", "IN_PROGRESS"])
def test_an_execution_of_no_job_is_refused_also_where_foreign_keys_are_off(opens: Opens, path: str, status: Status) -> None:
    store = opens()
    stored(store)
    claim(store)
    columns = "job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, state"
    given = columns.replace("job_id", f"'{make().id}'").replace("status", f"'{status}'")
    stands(store, path, f"INSERT INTO interlock_executions ({columns}) SELECT {given} FROM interlock_executions")


class Stepping:
    """A clock that goes on by five seconds whenever it is asked."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        self.at += timedelta(seconds=5)
        return self.at


def test_a_lease_begins_when_the_file_is_ours(tmp_path: Path) -> None:
    """Protocol 19: a writer may wait for the file for longer than a lease, and must not be born dead."""
    clock = Stepping()
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}", "interlock", clock)
    store.migrate(list(LIFECYCLES.values()), FACTS)
    stored(store)
    (lease,) = claim(store, lease=1.0)
    (execution,) = store.executions(lease.job.id)
    assert execution.lease_expires_at == clock.at + timedelta(seconds=1)
    store.renew([Beat(lease.fence, 2.0)])
    assert store.executions(lease.job.id)[0].lease_expires_at == clock.at + timedelta(seconds=2)
    store.close()


def test_a_connection_that_commits_by_itself_is_known_by_its_newer_name_too(opens: Opens, path: str) -> None:
    """From Python 3.12 on `autocommit=True` leaves isolation_level as it was."""
    store = opens()

    class Newer(sqlite3.Connection):
        autocommit = True

    with closing(sqlite3.connect(path, factory=Newer)) as connection, pytest.raises(UsageError, match="BEGIN"):
        store.enqueue([make()], conn=connection)


def test_a_worker_that_finds_nothing_due_asks_for_no_lock(opens: Opens, path: str) -> None:
    """Protocol 20: while another writes, an idle claim and an idle sweep come back at once, empty."""
    store = opens()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert claim(store) == []
        assert store.adopt("keeper", ["mail"], 30.0, 10) == []
        writer.execute("ROLLBACK")
