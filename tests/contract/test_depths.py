"""depths: how many jobs wait and run, by kind and queue."""

from datetime import timedelta

import pytest

from interlock.core.outcome import Handed, Held, Returned
from interlock.store.contract import Store
from interlock.store.report_types import Depth
from tests.contract.kit import claim, claimed, finish, many, pause, settle, started, stored, taken
from tests.kit import EPOCH, Raw, SettableClock


def lose(raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET lease_losses = 1, updated_at = {later} WHERE id = :id", id=id)


def test_ended_jobs_are_not_counted(store: Store) -> None:
    """Ended jobs produce no row."""
    finish(store, claimed(store))
    assert store.transitions.take([taken(stored(store))]) == []
    assert store.inspect.depths() == []


def test_each_kind_and_queue_has_its_own_row(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A row counts due, later, held and running jobs, and says how long the oldest due job has been due."""
    clock.advance(100)
    store.queue.enqueue(
        [*many(2, run_at=EPOCH + timedelta(seconds=60)), *many(1, ttl=600.0, run_at=EPOCH + timedelta(seconds=30))]
    )
    store.queue.enqueue([*many(3, delay=9), *many(1, delay=9, ttl=60.0)])
    store.queue.enqueue([*many(4, "chore", queue="b"), *many(2, "chore")])
    claim(store, "chore", 3, queues=("b",))
    assert store.inspect.depths() == [
        Depth("chore", "b", due=1, later=0, held=0, running=3, oldest=0.0),
        Depth("chore", "default", due=2, later=0, held=0, running=0, oldest=0.0),
        Depth("mail", "default", due=3, later=4, held=0, running=0, oldest=70.0),
    ]


def test_delayed_job_has_no_age(store: Store) -> None:
    stored(store, delay=50)
    assert store.inspect.depths() == [Depth("mail", "default", 0, 1, 0, 0, 0.0)]


@pytest.mark.parametrize("ttl", [None, 600.0])
def test_suspects_are_counted_like_other_jobs(store: Store, raw: Raw, clock: SettableClock, ttl: float | None) -> None:
    """As due and as later."""
    for job in (stored(store, ttl=ttl), stored(store, ttl=ttl, delay=60)):
        lose(raw, job.id)
    clock.advance(5)
    assert store.inspect.depths() == [Depth("mail", "default", 1, 1, 0, 0, 5.0)]


def test_held_jobs_are_counted_separately(store: Store, clock: SettableClock) -> None:
    """They count as neither due nor later, with or without a TTL."""
    for ttl in (None, 600.0):
        settle(store, started(store, ttl=ttl), Held("look"))
    clock.advance(1000)
    assert store.inspect.depths() == [Depth("mail", "default", 0, 0, 2, 0, 0.0)]


@pytest.mark.parametrize("suspect", [False, True])
def test_expired_job_is_not_counted_as_waiting(store: Store, raw: Raw, clock: SettableClock, suspect: bool) -> None:
    """No claim could return it."""
    job = stored(store, ttl=10.0)
    if suspect:
        lose(raw, job.id)
    clock.advance(10)
    assert store.inspect.depths() == []


def test_jobs_of_a_paused_queue_count_as_later(store: Store, clock: SettableClock) -> None:
    """No claim could return its jobs now."""
    stored(store)
    stored(store, delay=50)
    pause(store, "queue", "default")
    clock.advance(5)
    assert store.inspect.depths() == [Depth("mail", "default", 0, 2, 0, 0, 0.0)]


def test_every_live_execution_counts_as_running(store: Store) -> None:
    """Leased, started, committed and handed-over executions."""
    claimed(store, "deliver")
    settle(store, started(store, "fetch"), Handed("x1", 5.0))
    settle(store, started(store), Returned("1", boundary=True))
    assert [(depth.kind, depth.running) for depth in store.inspect.depths()] == [
        ("deliver", 1),
        ("fetch", 1),
        ("mail", 1),
    ]
