"""The SQLite store: choice of library, journal, one connection per thread, and one writer at a time."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from interlock.core.clock import SystemClock
from interlock.errors import InterlockError, UsageError
from interlock.store.sqlite import library as libraries
from interlock.store.sqlite.fair_lock import FairLock
from interlock.store.sqlite.file import File
from interlock.store.sqlite.library import Library, library, locate, wal_safe
from interlock.store.sqlite.store import SqliteStore
from tests.contract.kit import FACTS, LIFECYCLES, make, stored


class Unsafe(Library):
    """A library that can corrupt a write-ahead log, whichever version is installed."""

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
    """Open the test's file, as often as needed."""
    opened: list[SqliteStore] = []

    def open_(by: Library = UNSAFE, *, schema: str = "interlock", migrate: bool = True) -> SqliteStore:
        opened.append(SqliteStore(path, by, schema, SystemClock()))
        if migrate:
            opened[-1].registry.migrate(list(LIFECYCLES.values()), FACTS)
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


# ---------------------------------------------------------------- file and library
def test_url_names_a_relative_or_an_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes mean a relative path, four an absolute one; a later change of directory changes nothing."""
    monkeypatch.chdir(tmp_path)
    assert locate("sqlite:///jobs.db") == (str(tmp_path / "jobs.db"), library("sqlite3"))
    assert locate("sqlite:////var/lib/jobs.db")[0] == "/var/lib/jobs.db"
    assert locate("sqlite+pysqlite3:///a/jobs.db") == (str(tmp_path / "a" / "jobs.db"), library("pysqlite3"))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory",
        "sqlite://jobs.db",
        "sqlite:///jobs.db?x=1",
    ],
)
def test_url_that_is_not_a_plain_file_is_refused_with_a_message(url: str) -> None:
    """Several connections could not share a database in memory."""
    with pytest.raises(UsageError, match=r"sqlite:///|there are none"):
        locate(url)


def test_missing_library_is_reported_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other library is used instead."""
    monkeypatch.setitem(__import__("sys").modules, "pysqlite3", None)
    with pytest.raises(UsageError, match="pip install pysqlite3"):
        locate("sqlite+pysqlite3:///jobs.db")


def test_library_that_is_too_old_is_refused_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "OLDEST", (4, 0, 0))
    with pytest.raises(UsageError, match=r"too old.*pip install pysqlite3"):
        library("sqlite3")


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 44, 9), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 0), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 53, 0), True),
    ],
)
def test_versions_with_the_wal_reset_bug_are_unsafe(version: tuple[int, ...], safe: bool) -> None:
    """3.7.0 to 3.51.2 have the WAL-reset bug, except for two branches with the fix."""
    assert wal_safe(version) is safe


@pytest.mark.parametrize("schema", ["", "Jobs", "1jobs", "a-b", "x" * 49, 'a"b'])
def test_schema_that_is_not_a_plain_name_is_refused(path: str, schema: str) -> None:
    with pytest.raises(UsageError, match="plain name"):
        SqliteStore(path, UNSAFE, schema, SystemClock())


# ---------------------------------------------------------------- the journal
def test_unsafe_library_uses_a_rollback_journal_and_logs_it_once(
    opens: Opens, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, and what to install."""
    with caplog.at_level(logging.INFO, "interlock"):
        store = opens(UNSAFE)
        assert store.journal == "truncate"
        in_thread(store.inspect.counts)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "journal_mode=TRUNCATE" in said
    assert "pysqlite3" in said


def test_safe_library_uses_a_write_ahead_log(opens: Opens, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "interlock"):
        assert opens(SAFE).journal == "wal"
    assert caplog.records == []


def test_unsafe_library_converts_a_write_ahead_log(opens: Opens) -> None:
    """The stored jobs are kept."""
    store = opens(SAFE)
    job = stored(store)
    store.close()
    again = opens(UNSAFE)
    assert again.journal == "truncate"
    assert again.inspect.get(job.id) == job


def test_unsafe_library_refuses_a_write_ahead_log_in_use(opens: Opens) -> None:
    """An error is better than a corrupt file."""
    assert opens(SAFE).inspect.counts() == {}
    with pytest.raises(InterlockError, match=r"write-ahead log.*pysqlite3"):
        opens(UNSAFE, migrate=False).inspect.counts()


def test_commits_are_synced_to_disk(opens: Opens) -> None:
    """`synchronous=FULL`, with either journal."""
    for by in (SAFE, UNSAFE):
        store = opens(by)
        assert [
            store.file.connection().execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")
        ] == [2, 1]
        store.close()


# ---------------------------------------------------------------- connections and the write lock
def in_thread(work: Callable[[], Any]) -> Any:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    thread.join()
    return got[0]


def test_each_thread_has_its_own_connection_until_it_ends(opens: Opens) -> None:
    """The connection of an ended thread is closed when the next thread opens one."""
    store = opens()
    mine, first = store.file.connection(), in_thread(store.file.connection)
    assert mine is store.file.connection()
    assert first is not mine
    in_thread(store.file.connection)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")


def test_verb_after_close_opens_a_new_connection(opens: Opens) -> None:
    store = opens()
    before = store.file.connection()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    assert store.inspect.counts() == {}


def test_long_lock_by_another_process_is_reported(opens: Opens, path: str) -> None:
    """Nothing is written; after the other process has ended its transaction, the write works."""
    opens()
    waiting = File(path, UNSAFE, lock_timeout=0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(waiting):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InterlockError, match="has been locked"), waiting.write():
            pass
        other.execute("COMMIT")
        with waiting.write() as connection:
            assert connection.in_transaction


def test_verb_without_conn_inside_a_transaction_is_refused(opens: Opens) -> None:
    """The message names `conn=`; reads are allowed."""
    store = opens()
    with store.transaction() as tx:
        with pytest.raises(InterlockError, match="conn="):
            store.queue.enqueue([make()])
        (made,) = store.queue.enqueue([make()], conn=tx)
        assert store.inspect.get(made.id).id == made.id
    assert store.inspect.get(made.id).state == "PENDING"


def test_fair_lock_grants_in_request_order() -> None:
    turn, order, ready = FairLock(60.0), list[int](), [threading.Event() for _ in range(20)]

    def ask(n: int) -> None:
        ready[n].set()
        turn.take()
        order.append(n)
        turn.give()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    turn.take()
    for n, thread in enumerate(threads):
        thread.start()
        ready[n].wait()
        while turn.waiting <= n:
            pass
    turn.give()
    for thread in threads:
        thread.join()
    assert order == list(range(20))
