"""How each store detects new jobs."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.limits import Scope
from interlock.store import OpenStore
from interlock.store.sqlite.listening import SqliteListener
from tests.contract.kit import FACTS, LIFECYCLES, claimed, finish, limit, make, many, stored
from tests.contract.test_listen import TIME_LIMIT, Bell, listening
from tests.kit import Place, postgres_place, sqlite_place


def quick(store: OpenStore) -> None:
    """Poll often, and probe early."""
    vars(store.queue).update(poll_every=0.001, probe_after=0.05)


# ---------------------------------------------------------------- SQLite
@pytest.fixture
def file(quick_path: Path) -> Iterator[Place]:
    place = sqlite_place(quick_path)
    place.open().registry.migrate(list(LIFECYCLES.values()), FACTS)
    yield place
    place.close()


def test_listener_never_takes_the_write_lock(file: Place) -> None:
    """It starts and is woken while another connection has the lock, and does not block that connection's commit."""
    store = file.open()
    quick(store)
    with file.raw.transaction() as rival:
        rival.execute("INSERT INTO interlock_key_rates VALUES ('mail', 'a', 1, '2026-01-01T00:00:00.000000Z')")
        with listening(store) as bell:
            bell.forget()
            rival.execute("COMMIT")
            bell.wait()
            rival.execute("BEGIN IMMEDIATE")


def test_listener_polls_a_locked_file_again(
    file: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A write by another process is not an error."""
    store: Any = file.open()
    if store.journal == "wal":
        pytest.skip("a write-ahead log never locks readers out")
    store.inspect.counts()
    quick(store)
    kept_out = threading.Event()
    look = SqliteListener._version

    def looked(self: SqliteListener, conn: Any) -> int | None:
        version = look(self, conn)
        if version is None:
            kept_out.set()
        return version

    monkeypatch.setattr(SqliteListener, "_version", looked)
    with file.raw.transaction() as rival:
        rival.execute("COMMIT")
        rival.execute("BEGIN EXCLUSIVE")
        bell = Bell()
        listener = store.queue.listen(bell)
        try:
            assert kept_out.wait(TIME_LIMIT)
            rival.execute("COMMIT")
            bell.wait()
        finally:
            listener.close()
        rival.execute("BEGIN")
    assert "failed" not in caplog.text


# ---------------------------------------------------------------- PostgreSQL
@pytest.fixture
def server(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    place.open().registry.migrate(list(LIFECYCLES.values()), FACTS)
    yield place
    place.close()


def listeners(place: Place) -> list[int]:
    """Return the server's processes for listeners of this schema."""
    rows = place.raw(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'interlock listener' AND query LIKE :query",
        query=f'LISTEN "{place.schema}.%',
    )
    return [row[0] for row in rows]


def _terminated(place: Place, pid: int) -> Callable[[], None]:
    place.raw("SELECT pg_terminate_backend(:pid)", pid=pid)
    return lambda: None


def _frozen(place: Place, pid: int) -> Callable[[], None]:
    if os.environ.get("INTERLOCK_TEST_POSTGRES_URL"):
        pytest.skip("the server's processes may be out of reach")
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("dies", [_terminated, _frozen])
def test_dead_connection_is_detected_and_replaced(server: Place, dies: Callable[[Place, int], Any]) -> None:
    """The listener is woken, since jobs may have been stored meanwhile; also if the server stops answering without an
    error.
    """
    store = server.open()
    quick(store)
    with listening(store) as bell:
        (pid,) = listeners(server)
        after = dies(server, pid)
        try:
            bell.wait()
            stored(store)
            bell.wait()
        finally:
            after()


@pytest.mark.parametrize("scope", ["queue", "kind", "key"])
def test_end_of_a_limited_job_wakes_the_listener(server: Place, scope: Scope) -> None:
    """Another job may start now. The end of a job without limits wakes nobody."""
    store = server.open()
    key = "a" if scope == "key" else None
    limit(store, scope, "default" if scope == "queue" else "mail", max_running=1)
    lease = claimed(store, concurrency_key=key)
    with listening(store) as bell:
        bell.forget()
        finish(store, lease)
        bell.wait()


def test_idle_connection_that_answers_probes_is_kept(server: Place) -> None:
    """A server without notifications that answers every probe keeps its connection."""
    store = server.open()
    quick(store)
    with listening(store) as bell:
        (pid,) = listeners(server)
        answered: set[Any] = set()
        for _ in range(50_000):
            answered.update(
                server.raw(
                    "SELECT query_start FROM pg_stat_activity WHERE pid = :pid AND query = 'SELECT 1' AND state = "
                    "'idle'",
                    pid=pid,
                )
            )
            if len(answered) == 3:
                break
        assert len(answered) == 3
        bell.forget()
        stored(store)
        bell.wait()
        assert bell.calls == 2


def test_each_statement_notifies_once_and_only_if_it_stored_a_job(server: Place) -> None:
    """A statement that stores nothing does not notify; one that stores many jobs notifies once."""
    store = server.open()
    stored(store, idempotency_key="k")
    with server.raw.transaction() as conn:
        conn.execute(f'LISTEN "{server.schema}.jobs"')
        conn.commit()
        store.queue.enqueue([make(idempotency_key="k")])
        finish(store, claimed(store, "chore"))
        store.queue.enqueue(many(50))
        told = [note.payload for note in conn.notifies(timeout=TIME_LIMIT, stop_after=2)]
        conn.rollback()
        assert told == ["", ""]
        store.queue.enqueue([make(idempotency_key="k")])
        assert list(conn.notifies(timeout=0)) == []


def test_schemas_do_not_wake_each_other(server: Place, postgres_url: str) -> None:
    """Each schema in a database has its own channel."""
    ran_elsewhere = postgres_place(postgres_url)
    try:
        foreign = ran_elsewhere.open()
        foreign.registry.migrate(list(LIFECYCLES.values()), FACTS)
        with listening(server.open()) as ours, listening(foreign) as theirs:
            calls = ours.calls
            theirs.forget()
            stored(foreign)
            theirs.wait()
            assert ours.calls == calls
    finally:
        ran_elsewhere.close()
