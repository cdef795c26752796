"""A lost database connection: every method raises `Unavailable`, nothing is half done, and work resumes."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from interlock.core.job import Job
from interlock.core.outcome import Returned
from interlock.errors import Unavailable
from interlock.store.postgres.pool import Pool
from interlock.store.postgres.store import PostgresStore
from interlock.store.sqlite.store import SqliteStore
from tests.contract.kit import FACTS, LIFECYCLES, claimed, decided, finish, make, stored, taken
from tests.kit import Place, Raw, postgres_place, sqlite_place


# ---------------------------------------------------------------- PostgreSQL
@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> PostgresStore:
    store = place.open()
    assert isinstance(store, PostgresStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    return store


@pytest.fixture
def raw(place: Place) -> Raw:
    return place.raw


def end(raw: Raw, pid: int) -> None:
    """End one server process, and wait until it is gone."""
    raw("SELECT pg_terminate_backend(:pid)", pid=pid)
    while raw("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid):
        pass


def pid_of(tx: Any) -> int:
    (pid,) = tx.execute("SELECT pg_backend_pid()").fetchone()
    return int(pid)


def test_dead_idle_connections_are_replaced(store: PostgresStore, raw: Raw) -> None:
    """All of them: the next verb succeeds."""
    with ExitStack() as several:
        pids = [pid_of(several.enter_context(store.transaction())) for _ in range(4)]
    for pid in pids:
        end(raw, pid)
    assert stored(store).state == "PENDING"
    with ExitStack() as several:
        assert not {pid_of(several.enter_context(store.transaction())) for _ in range(4)} & set(pids)


Verb = Callable[[PostgresStore, Any, Job], object]
VERBS: dict[str, Verb] = {
    "move": lambda store, lease, _: store.transitions.move([decided(lease, Returned("1", boundary=False))]),
    "commit": lambda store, lease, _: store.transitions.commit(
        decided(lease, Returned("1", boundary=False)), lambda tx, job: None
    ),
    "take": lambda store, _, job: store.transitions.take([taken(job)]),
    "ask": lambda store, lease, _: store.receipts.begin_effect(lease.fence, "charge", "h"),
    "remark": lambda store, lease, _: store.control.add_note(
        lease.job.id, attempt=1, event="seen", actor="ann", reason=None
    ),
    "enqueue": lambda store, _, job: store.queue.enqueue([make(idempotency_key="k"), make()]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_that_loses_its_connection_raises_unavailable(
    store: PostgresStore, raw: Raw, place: Place, verb: str
) -> None:
    """The error has the driver's error as its cause.

    Nothing was done, no row was refused for it, and the same verb works when it is sent again.
    """
    lease = claimed(store)
    waiting = stored(store)
    raised: list[Exception] = []

    def work() -> None:
        try:
            VERBS[verb](store, lease, waiting)
        except Exception as error:  # noqa: BLE001 - checked below
            raised.append(error)

    with psycopg.connect(place.url) as other:
        other.execute(f"SELECT 1 FROM {place.schema}.jobs, {place.schema}.executions FOR UPDATE")
        store.queue.enqueue([make(idempotency_key="k")], conn=other)
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive() and not (
            blocked := raw("SELECT pid FROM pg_locks WHERE NOT granted AND pid <> :own", own=other.info.backend_pid)
        ):
            pass
        end(raw, blocked[0][0])
        thread.join()
        other.rollback()
    (error,) = raised
    assert isinstance(error, Unavailable)
    assert isinstance(error.__cause__, psycopg.Error)
    assert VERBS[verb](store, lease, waiting) in ([], None, True) or verb == "enqueue"


# ---------------------------------------------------------------- inside a commit
def swallow(tx: Any) -> None:
    del tx


def touch(tx: Any) -> None:
    tx.execute("SELECT 1")


def wrap(tx: Any) -> None:
    try:
        tx.execute("SELECT 1")
    except psycopg.Error:
        raise RuntimeError("the ledger is broken")  # noqa: B904 - as a careless library would


@pytest.mark.parametrize("then", [swallow, touch, wrap])
@pytest.mark.parametrize("whose", ["our transaction", "the caller's"])
def test_commit_that_loses_its_connection_raises_unavailable(
    store: PostgresStore, raw: Raw, whose: str, then: Callable[[Any], None]
) -> None:
    """Whatever the function does with the error; nothing is stored, and the commit can be sent again."""
    lease = claimed(store)
    move = decided(lease, Returned("1", boundary=True))
    before = raw.dump()
    transaction = None if whose == "our transaction" else raw.transaction

    def body(tx: Any, job: Job) -> None:
        end(raw, pid_of(tx))
        then(tx)

    with pytest.raises(Unavailable, match="lost"):
        store.transitions.commit(move, body, transaction=transaction)
    assert raw.dump() == before
    assert store.transitions.commit(move, lambda tx, job: None, transaction=transaction) is None


def test_own_error_of_a_commit_function_is_raised_unchanged(store: PostgresStore, raw: Raw) -> None:
    """Also if its connection was lost meanwhile and the function did not notice."""

    def body(tx: Any, job: Job) -> None:
        end(raw, pid_of(tx))
        raise PermissionError("no")

    with pytest.raises(PermissionError, match="no"):
        store.transitions.commit(decided(claimed(store), Returned("1", boundary=True)), body)


def test_error_of_another_database_is_raised_unchanged(store: PostgresStore, raw: Raw, place: Place) -> None:
    """A function's error from its own connection is raised unchanged, as long as the store's connection works."""
    lease = claimed(store)

    def body(tx: Any, job: Job) -> None:
        with psycopg.connect(place.url) as theirs:
            end(raw, pid_of(theirs))
            theirs.execute("SELECT 1")

    with pytest.raises(psycopg.errors.AdminShutdown):
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), body)
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_transaction_that_loses_its_connection_raises_unavailable(store: PostgresStore, raw: Raw) -> None:
    """Nothing of the block is stored."""
    with pytest.raises(Unavailable), store.transaction() as tx:
        store.queue.enqueue([make()], conn=tx)
        end(raw, pid_of(tx))
    assert store.inspect.jobs() == []


def test_callers_own_connection_raises_the_drivers_errors(store: PostgresStore, raw: Raw, place: Place) -> None:
    with pytest.raises(psycopg.OperationalError), psycopg.connect(place.url) as connection:
        end(raw, pid_of(connection))
        store.queue.enqueue([make()], conn=connection)


# ---------------------------------------------------------------- a server that is unreachable
@pytest.fixture
def away(postgres_url: str) -> Iterator[tuple[PostgresStore, Callable[[bool], None]]]:
    """Return a store on its own database, and a switch that refuses new connections there and ends the open ones."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS interlock_away")
        admin.execute("CREATE DATABASE interlock_away")

        def switch(here: bool) -> None:
            admin.execute(f"ALTER DATABASE interlock_away ALLOW_CONNECTIONS {here}")
            if not here:
                admin.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'interlock_away'"
                )

        url = psycopg.conninfo.make_conninfo(postgres_url, dbname="interlock_away")
        store = PostgresStore(url)
        store.session.pool = Pool(url, check_after=0.01)
        store.registry.migrate(list(LIFECYCLES.values()), FACTS)
        yield store, switch
        store.close()
        admin.execute("DROP DATABASE interlock_away WITH (FORCE)")


def test_unreachable_server_is_reported_at_once_and_used_again_at_once(
    away: tuple[PostgresStore, Callable[[bool], None]],
) -> None:
    """Every verb reports the cause; the first verb after the server is back works."""
    store, switch = away
    lease = claimed(store)
    for _ in range(2):
        switch(False)
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"refused the connection: .*not currently accepting connections"):
                store.inspect.get(lease.job.id)
        with pytest.raises(Unavailable):
            store.transitions.move([decided(lease, Returned("1", boundary=False))])
        switch(True)
        assert store.inspect.get(lease.job.id).state == "RUNNING"
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_waiting_for_a_pooled_connection_is_not_reported_as_an_outage(
    away: tuple[PostgresStore, Callable[[bool], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A verb waits for a connection that is in use; it does not wait if the server has become unreachable."""
    store, switch = away
    answers: list[object] = []
    looked = threading.Event()
    knock: Callable[[Pool], None] = getattr(Pool, "_check_server")  # noqa: B009 - to see that it was called

    def knocking(pool: Pool) -> None:
        knock(pool)
        looked.set()

    monkeypatch.setattr(Pool, "_check_server", knocking)

    def ask() -> None:
        try:
            answers.append(store.inspect.counts())
        except Unavailable as error:
            answers.append(str(error))

    for here in (True, False):
        with ExitStack() as crowd:
            for _ in range(16):
                crowd.enter_context(store.session.pool.begin())
            if not here:
                switch(False)
                crowd.pop_all()
            looked.clear()
            thread = threading.Thread(target=ask)
            thread.start()
            assert not here or looked.wait(10)
        thread.join()
    switch(True)
    assert answers[0] == {}
    assert "refused the connection" in str(answers[1])


# ---------------------------------------------------------------- SQLite
@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[SqliteStore]:
    place = sqlite_place(tmp_path)
    store = place.open()
    assert isinstance(store, SqliteStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    yield store
    place.close()


def test_full_disk_raises_unavailable(file_store: SqliteStore) -> None:
    """Nothing is stored, no row is refused for it, and work continues once there is space."""
    lease = claimed(file_store)
    big = f'"{"x" * 100_000}"'
    conn = file_store.file.connection()
    conn.execute("PRAGMA max_page_count = 1")
    verbs: list[Callable[[], object]] = [
        lambda: file_store.transitions.move([decided(lease, Returned(big, boundary=False))]),
        lambda: file_store.queue.enqueue([make(payload=big)]),
        lambda: file_store.receipts.record_step(lease.fence, "link", "h", big),
        lambda: file_store.transitions.commit(decided(lease, Returned(big, boundary=False)), lambda tx, job: None),
    ]
    for verb in verbs:
        with pytest.raises(Unavailable, match="full"):
            verb()
    conn.execute("PRAGMA max_page_count = 100000")
    assert file_store.inspect.jobs()[0].state == "RUNNING"
    assert verbs[0]() == []


def test_file_that_is_not_a_database_raises_unavailable(file_store: SqliteStore) -> None:
    """Reads, too."""
    file_store.close()
    Path(file_store.file.path).write_bytes(b"nothing of ours " * 500)
    for verb in (lambda: file_store.inspect.get("x"), lambda: file_store.queue.enqueue([make()])):
        with pytest.raises(Unavailable, match="not a database"):
            verb()


def test_sqlite_error_of_a_commit_function_is_raised_unchanged(file_store: SqliteStore) -> None:
    """A missing table, and another file that is full: neither is an outage of the store."""
    lease = claimed(file_store)

    def missing(tx: Any, job: Job) -> None:
        tx.execute("INSERT INTO nowhere VALUES (1)")

    def full(tx: Any, job: Job) -> None:
        with closing(sqlite3.connect(":memory:")) as theirs:
            theirs.execute("PRAGMA max_page_count = 1")
            theirs.execute("CREATE TABLE t (x)")

    for body, why in ((missing, "no such table"), (full, "full")):
        with pytest.raises(sqlite3.OperationalError, match=why):
            file_store.transitions.commit(decided(lease, Returned("1", boundary=False)), body)
    assert finish(file_store, lease).job.state == "SUCCEEDED"
