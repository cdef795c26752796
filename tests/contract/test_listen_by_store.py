"""listen: whoever waits for jobs is called soon after they come in."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.outcome import Errored, Released
from interlock.store import Store
from interlock.stores import OpenStore
from interlock.stores.sqlite.wake import SqliteEar
from tests.contract.kit import FACTS, LIFECYCLES, claimed, finish, make, many, settle, stored
from tests.contract.stacks import POSTGRES, SQLITE, Stack
from tests.kit import Place, Raw, postgres_place, sqlite_place

PATIENCE = 30.0


class Bell:
    """Counts the calls, and waits for the next."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._rung.release()

    def wait(self) -> None:
        """A call has come that was not waited for before."""
        assert self._rung.acquire(timeout=PATIENCE), "nobody called"

    def forget(self) -> None:
        while self._rung.acquire(blocking=False):
            pass


@contextmanager
def listening(store: Store) -> Iterator[Bell]:
    """A bell at a listener that has begun."""
    bell = Bell()
    ear = store.listen(bell)
    try:
        bell.wait()
        yield bell
    finally:
        ear.close()


def quick(store: OpenStore) -> None:
    """Look often, ask early."""
    vars(store).update(look=0.001, probe=0.05)


# ---------------------------------------------------------------- when it calls
def test_jobs_that_come_in_call(store: Store, other: Store) -> None:
    """From this process or another, however many at once."""
    with listening(store) as bell:
        for coming in (other, store):
            bell.forget()
            coming.enqueue(many(3))
            bell.wait()


def test_a_job_that_is_made_due_calls(store: Store, other: Store) -> None:
    """The key's holder rests after a failure, and the same key is enqueued again."""
    lease = claimed(store, "paint", idempotency_key="k")
    resting = settle(store, lease, Errored("busy", retryable=True)).job
    with listening(store) as bell:
        bell.forget()
        other.enqueue([make("paint", idempotency_key="k", resting=(resting.state,))])
        bell.wait()
    assert store.get(resting.id).due_at < resting.due_at


def test_a_job_whose_hold_ends_calls(store: Store, other: Store, raw: Raw) -> None:
    """An operator has decided."""
    job = stored(store)
    raw("UPDATE {jobs} SET held_at = updated_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=job.id)
    with listening(store) as bell:
        bell.forget()
        assert other.release(job.id, by="olga", reason="fine")
        bell.wait()


def test_a_job_that_is_due_again_by_a_move_calls(store: Store, other: Store) -> None:
    """Lost, released or tried again at once: an idle worker need not wait for its next look."""
    lease = claimed(other)
    with listening(store) as bell:
        bell.forget()
        settle(other, lease, Released("its worker stops"))
        bell.wait()


def test_several_may_listen(store: Store, other: Store) -> None:
    """Each is called."""
    with listening(store) as first, listening(store) as second, listening(other) as third:
        for bell in (first, second, third):
            bell.forget()
        stored(other)
        for bell in (first, second, third):
            bell.wait()


def test_a_wake_that_raises_is_called_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A caller's mistake is logged and does not end the listening."""
    rung = threading.Semaphore(0)

    def wake() -> None:
        rung.release()
        raise RuntimeError("no")

    ear = store.listen(wake)
    try:
        assert rung.acquire(timeout=PATIENCE)
        stored(store)
        assert rung.acquire(timeout=PATIENCE)
    finally:
        ear.close()
    assert "wake raised" in caplog.text


# ---------------------------------------------------------------- when it ends
def test_no_call_comes_after_the_close(store: Store, other: Store) -> None:
    """Its thread has ended, and another's ear is still open."""
    with listening(other) as witness:
        with listening(store) as bell:
            pass
        calls = bell.calls
        witness.forget()
        stored(store)
        witness.wait()
    assert bell.calls == calls
    assert not ears()


def test_a_listener_that_was_late_does_not_call_after_the_close(store: Store) -> None:
    """Its thread may still have been at the door when it was closed."""
    bell = Bell()
    ear: Any = store.listen(bell)
    ear.close()
    calls = bell.calls
    ear._call()
    assert bell.calls == calls


def test_closing_twice_is_closing(store: Store) -> None:
    ear = store.listen(lambda: None)
    ear.close()
    ear.close()
    assert not ears()


def test_a_wake_may_close(store: Store) -> None:
    """A call that ends its own listening does not wait for itself."""
    closed, there = threading.Event(), threading.Event()

    def wake() -> None:
        assert there.wait(PATIENCE)
        ear.close()
        closed.set()

    ear = store.listen(wake)
    there.set()
    assert closed.wait(PATIENCE)
    for thread in ears():
        thread.join(PATIENCE)
    assert not ears()


def test_a_store_that_closes_takes_its_listeners_along(store: Store) -> None:
    """It gives back every connection."""
    store.listen(lambda: None)
    store.close()
    assert not ears()


def ears() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "interlock-ear"]


# ---------------------------------------------------------------- in the caller's own transaction
@pytest.mark.parametrize("stack", [pytest.param(stack, id=f"{stack.database}: {stack.name}") for stack in (*SQLITE, *POSTGRES)])
def test_a_callers_transaction_calls_when_it_commits(stack: Stack, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Whatever stack it is of: the call rides with the job."""
    place = sqlite_place(tmp_path) if stack.database == "sqlite" else postgres_place(request.getfixturevalue("postgres_url"))
    try:
        store = place.open()
        store.migrate(list(LIFECYCLES.values()), FACTS)
        with listening(store) as bell:
            bell.forget()
            asyncio.run(stack.run(place.url, lambda conn: store.enqueue([make()], conn=conn), lambda conn: store.aenqueue([make()], conn=conn), True))
            bell.wait()
    finally:
        place.close()


# ---------------------------------------------------------------- SQLite
@pytest.fixture
def file(quick_path: Path) -> Iterator[Place]:
    place = sqlite_place(quick_path)
    place.open().migrate(list(LIFECYCLES.values()), FACTS)
    yield place
    place.close()


def test_a_listener_never_asks_for_the_write_lock(file: Place) -> None:
    """It begins and is called while another has that, and the other's commit is not in its way."""
    store = file.open()
    quick(store)
    with file.raw.transaction() as rival:
        rival.execute("INSERT INTO interlock_queues (name) VALUES ('a')")
        with listening(store) as bell:
            bell.forget()
            rival.execute("COMMIT")
            bell.wait()
            rival.execute("BEGIN IMMEDIATE")


def test_a_locked_file_is_looked_at_again(file: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody writes just now: that is no failure."""
    store: Any = file.open()
    if store.journal == "wal":
        pytest.skip("nobody locks readers out of a write-ahead log")
    store.counts()
    quick(store)
    kept_out = threading.Event()
    look = SqliteEar._version

    def looked(self: SqliteEar, conn: Any) -> int | None:
        version = look(self, conn)
        if version is None:
            kept_out.set()
        return version

    monkeypatch.setattr(SqliteEar, "_version", looked)
    with file.raw.transaction() as rival:
        rival.execute("COMMIT")
        rival.execute("BEGIN EXCLUSIVE")
        bell = Bell()
        ear = store.listen(bell)
        try:
            assert kept_out.wait(PATIENCE)
            rival.execute("COMMIT")
            bell.wait()
        finally:
            ear.close()
        rival.execute("BEGIN")
    assert "failed" not in caplog.text


# ---------------------------------------------------------------- PostgreSQL
@pytest.fixture
def server(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    place.open().migrate(list(LIFECYCLES.values()), FACTS)
    yield place
    place.close()


def listeners(place: Place) -> list[int]:
    """The server's processes for listeners of this schema."""
    rows = place.raw("SELECT pid FROM pg_stat_activity WHERE application_name = 'interlock listener' AND query LIKE :query", query=f'LISTEN "{place.schema}.%')
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
def test_a_dead_connection_is_noticed_and_replaced(server: Place, dies: Callable[[Place, int], Any]) -> None:
    """With a call, since jobs may have come in meanwhile; also where nobody says that it is dead."""
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


def test_a_sign_of_life_is_asked_for_and_taken(server: Place) -> None:
    """A quiet server that answers keeps its connection, question after question."""
    store = server.open()
    quick(store)
    with listening(store) as bell:
        (pid,) = listeners(server)
        answered: set[Any] = set()
        for _ in range(50_000):
            answered.update(server.raw("SELECT query_start FROM pg_stat_activity WHERE pid = :pid AND query = 'SELECT 1' AND state = 'idle'", pid=pid))
            if len(answered) == 3:
                break
        assert len(answered) == 3
        bell.forget()
        stored(store)
        bell.wait()
        assert bell.calls == 2


def test_only_what_is_stored_is_told_and_once(server: Place) -> None:
    """A statement that stores nothing says nothing, one that stores many says it once."""
    store = server.open()
    stored(store, idempotency_key="k")
    with server.raw.transaction() as conn:
        conn.execute(f'LISTEN "{server.schema}.jobs"')
        conn.commit()
        store.enqueue([make(idempotency_key="k")])
        finish(store, claimed(store, "chore"))
        store.enqueue(many(50))
        told = [note.payload for note in conn.notifies(timeout=PATIENCE, stop_after=2)]
        conn.rollback()
        assert told == ["", ""]
        store.enqueue([make(idempotency_key="k")])
        assert list(conn.notifies(timeout=0)) == []


def test_schemas_do_not_wake_each_other(server: Place, postgres_url: str) -> None:
    """Two apps in one database have a door each."""
    elsewhere = postgres_place(postgres_url)
    try:
        foreign = elsewhere.open()
        foreign.migrate(list(LIFECYCLES.values()), FACTS)
        with listening(server.open()) as ours, listening(foreign) as theirs:
            calls = ours.calls
            theirs.forget()
            stored(foreign)
            theirs.wait()
            assert ours.calls == calls
    finally:
        elsewhere.close()
