"""listen: a waiting worker is woken soon after a job is stored."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.outcome import Errored, Requeued
from interlock.store.contract import Store
from tests.contract.flow_kit import node, put
from tests.contract.kit import FACTS, LIFECYCLES, claim, claimed, finish, make, many, settle, stored
from tests.contract.stacks import POSTGRES, SQLITE, Stack
from tests.kit import Raw, postgres_place, sqlite_place

TIME_LIMIT = 30.0


class Bell:
    """Counts the calls, and waits for the next one."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._rung.release()

    def wait(self) -> None:
        """Wait for a call that was not waited for before."""
        assert self._rung.acquire(timeout=TIME_LIMIT), "no call came"

    def forget(self) -> None:
        while self._rung.acquire(blocking=False):
            pass


@contextmanager
def listening(store: Store) -> Iterator[Bell]:
    """Open a listener with a bell, and wait until it has started."""
    bell = Bell()
    listener = store.queue.listen(bell)
    try:
        bell.wait()
        yield bell
    finally:
        listener.close()


# ---------------------------------------------------------------- wake-ups
def test_new_job_wakes_the_listener(store: Store, other: Store) -> None:
    """From this process or another, for any number of jobs at once."""
    with listening(store) as bell:
        for coming in (other, store):
            bell.forget()
            coming.queue.enqueue(many(3))
            bell.wait()


def test_job_that_is_made_due_wakes_the_listener(store: Store, other: Store) -> None:
    """The key's job rests after a failure, and the same key is enqueued again."""
    lease = claimed(store, "paint", idempotency_key="k")
    resting = settle(store, lease, Errored("busy", retryable=True)).job
    with listening(store) as bell:
        bell.forget()
        other.queue.enqueue([make("paint", idempotency_key="k", resting=(resting.state,))])
        bell.wait()
    assert store.inspect.get(resting.id).due_at < resting.due_at


def test_released_job_wakes_the_listener(store: Store, other: Store, raw: Raw) -> None:
    """An operator has released it."""
    job = stored(store)
    raw("UPDATE {jobs} SET held_at = updated_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=job.id)
    with listening(store) as bell:
        bell.forget()
        assert other.control.release(job.id, by="olga", reason="fine")
        bell.wait()


def test_returned_job_wakes_the_listener(store: Store, other: Store) -> None:
    """Lost, returned and immediately retried jobs wake an idle worker before its next poll."""
    lease = claimed(other)
    with listening(store) as bell:
        bell.forget()
        settle(other, lease, Requeued("its worker stops"))
        bell.wait()


def test_job_that_waits_no_longer_wakes_the_listener(store: Store, other: Store) -> None:
    """The last job that it waited for has ended."""
    first = node()
    put(store, [first, node([first])])
    (lease,) = claim(store)
    with listening(store) as bell:
        bell.forget()
        finish(other, lease)
        bell.wait()


def test_listener_that_opens_does_not_announce_a_job(store: Store, other: Store) -> None:
    """It makes its own call, since jobs may have come before; only changes afterwards wake the listener."""
    stored(other)
    bell, opened = Bell(), Bell()
    listener = store.queue.listen(bell, opened)
    try:
        opened.wait()
        assert bell.calls == 0
        stored(other)
        bell.wait()
        assert opened.calls == 1
    finally:
        listener.close()


def test_all_listeners_are_woken(store: Store, other: Store) -> None:
    """Each one is called."""
    with listening(store) as first, listening(store) as second, listening(other) as third:
        for bell in (first, second, third):
            bell.forget()
        stored(other)
        for bell in (first, second, third):
            bell.wait()


def test_wake_function_that_raises_is_called_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged, and the listener continues."""
    rung = threading.Semaphore(0)

    def wake() -> None:
        rung.release()
        raise RuntimeError("no")

    listener = store.queue.listen(wake)
    try:
        assert rung.acquire(timeout=TIME_LIMIT)
        stored(store)
        assert rung.acquire(timeout=TIME_LIMIT)
    finally:
        listener.close()
    assert "wake function raised" in caplog.text


# ---------------------------------------------------------------- closing
def test_closed_listener_is_not_woken(store: Store, other: Store) -> None:
    """Its thread has ended, while another listener is still open."""
    with listening(other) as witness:
        with listening(store) as bell:
            pass
        calls = bell.calls
        witness.forget()
        stored(store)
        witness.wait()
    assert bell.calls == calls
    assert not listener_threads()


def test_late_wake_after_the_close_is_dropped(store: Store) -> None:
    """The thread may be about to call when the listener is closed."""
    bell = Bell()
    listener: Any = store.queue.listen(bell)
    listener.close()
    calls = bell.calls
    listener._call()
    assert bell.calls == calls


def test_listener_can_be_closed_twice(store: Store) -> None:
    listener = store.queue.listen(lambda: None)
    listener.close()
    listener.close()
    assert not listener_threads()


def test_wake_function_may_close_its_listener(store: Store) -> None:
    """The call does not wait for its own thread."""
    closed, there = threading.Event(), threading.Event()

    def wake() -> None:
        assert there.wait(TIME_LIMIT)
        listener.close()
        closed.set()

    listener = store.queue.listen(wake)
    there.set()
    assert closed.wait(TIME_LIMIT)
    for thread in listener_threads():
        thread.join(TIME_LIMIT)
    assert not listener_threads()


def test_closing_the_store_closes_its_listeners(store: Store) -> None:
    """The store gives back every connection."""
    store.queue.listen(lambda: None)
    store.close()
    assert not listener_threads()


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "interlock-listener"]


# ---------------------------------------------------------------- in the caller's own transaction
@pytest.mark.parametrize(
    "stack", [pytest.param(stack, id=f"{stack.database}: {stack.name}") for stack in (*SQLITE, *POSTGRES)]
)
def test_commit_of_a_callers_transaction_wakes_the_listener(
    stack: Stack, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """For every library: the notification is part of the job's transaction."""
    place = (
        sqlite_place(tmp_path)
        if stack.database == "sqlite"
        else postgres_place(request.getfixturevalue("postgres_url"))
    )
    try:
        store = place.open()
        store.registry.migrate(list(LIFECYCLES.values()), FACTS)
        with listening(store) as bell:
            bell.forget()
            asyncio.run(
                stack.run(
                    place.url,
                    lambda conn: store.queue.enqueue([make()], conn=conn),
                    lambda conn: store.queue.aenqueue([make()], conn=conn),
                    True,
                )
            )
            bell.wait()
    finally:
        place.close()
