"""Interleavings of concurrent writers on PostgreSQL: each test forces one."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import FailedFinally, Returned
from interlock.errors import InterlockError, Unavailable, UsageError
from interlock.store import OpenStore, open_store
from interlock.store.enqueue_plan import Statement
from interlock.store.postgres.pool import TRIES, should_retry
from interlock.store.postgres.store import PostgresStore
from interlock.store.retry import retry
from interlock.store.types import NewJob
from tests.contract.kit import FACTS, LIFECYCLES, claim, decided, finish, make, many, stored
from tests.kit import Place, postgres_place


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> PostgresStore:
    store = place.open(real_time=True)
    assert isinstance(store, PostgresStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    return store


class Meddling:
    """A dialect that runs a function once between insert and look-up and, if given, another before the second insert."""

    def __init__(
        self, store: PostgresStore, meddle: Callable[[], object], later: Callable[[], object] = lambda: None
    ) -> None:
        self._real, self._meddle, self._later = store.session.dialect, [meddle], [later, lambda: None]

    def insert(self, jobs: Sequence[NewJob]) -> Any:
        self._later.pop()()
        return self._real.insert(jobs)

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        if self._meddle:
            self._meddle.pop()()
        return self._real.key_holders(jobs, tried)

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return self._real.make_due(ids, resting)


# ---------------------------------------------------------------- protocol 21
def dead_lettered(store: OpenStore) -> None:
    """Bury the running job, which frees its key."""
    (lease,) = claim(store, "paint")
    assert store.transitions.move([decided(lease, FailedFinally("broken"))]) == []


def test_job_is_stored_if_its_idempotency_key_is_freed_during_enqueue(store: PostgresStore, place: Place) -> None:
    """The call does not return an old job of its unique key: that one did not block the insert."""
    other = place.open(real_time=True)
    stored(other, "paint", unique_key="u")
    finish(other, *claim(other, "paint"))
    stored(other, "paint", idempotency_key="k")
    store.session.dialect = Meddling(store, lambda: dead_lettered(other))
    (answer,) = store.queue.enqueue([make("paint", idempotency_key="k", unique_key="u")])
    assert answer.created
    assert store.inspect.get(answer.id).phase == "pending"


def test_enqueue_returns_the_job_that_ended_during_the_call(store: PostgresStore, place: Place) -> None:
    """It was the active job when the caller asked; of the key's jobs, the last one is returned."""
    other = place.open(real_time=True)
    old = stored(other, unique_key="u")
    finish(other, *claim(other))
    holder = stored(other, unique_key="u")
    store.session.dialect = Meddling(store, lambda: finish(other, *claim(other)))
    (answer,) = store.queue.enqueue([make(unique_key="u")])
    assert (answer.id, answer.created) == (holder.id, False) != (old.id, False)


def test_retried_enqueue_returns_no_job_of_the_rolled_back_round(store: PostgresStore, place: Place) -> None:
    """Jobs found in a round that is rolled back do not exist any more: here another process takes the key before the
    next round.
    """
    other = place.open(real_time=True)
    stored(other, "paint", idempotency_key="k")
    rival = make("paint", unique_key="a")
    store.session.dialect = Meddling(store, lambda: dead_lettered(other), lambda: other.queue.enqueue([rival]))
    answers = store.queue.enqueue(
        [make("paint", unique_key="a"), make("paint", unique_key="a"), make("paint", idempotency_key="k")]
    )
    assert [(answer.id, answer.created) for answer in answers[:2]] == [(rival.id, False)] * 2
    assert answers[2].created
    assert store.inspect.get(answers[2].id).phase == "pending"


def test_long_lists_of_keys_in_opposite_order_do_not_deadlock(store: PostgresStore, place: Place) -> None:
    """Protocol 7: also if a list needs several statements."""
    keys = [f"k{n}" for n in range(2500)]
    before = place.raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    found: list[list[str]] = []

    def enqueue(order: Sequence[str]) -> None:
        answers = place.open(real_time=True).queue.enqueue([make(idempotency_key=key) for key in order])
        found.append([answer.id for _, answer in sorted(zip(order, answers, strict=True))])

    callers = [threading.Thread(target=enqueue, args=(order,)) for order in (keys, keys[::-1], keys, keys[::-1])]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 4
    assert found[0] == found[1] == found[2] == found[3]
    assert place.raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == before


def test_repeatable_read_caller_gets_the_serialization_error(store: PostgresStore, place: Place) -> None:
    """Protocol 22: the snapshot cannot see the other job, so only the caller can retry."""
    with psycopg.connect(place.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        stored(place.open(real_time=True), idempotency_key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            store.queue.enqueue([make(idempotency_key="k")], conn=connection)


# ---------------------------------------------------------------- protocol 2
def test_holder_that_finishes_during_a_sweep_does_not_stop_the_sweep(store: PostgresStore, place: Place) -> None:
    """The sweep has found four expired leases when one of their holders finishes: it adopts the other three."""
    store.queue.enqueue(many(4))
    leases = claim(store, lease=0.0)
    raw = place.raw
    raw.script(f"""CREATE OR REPLACE FUNCTION {place.schema}.clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
      $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN clock_timestamp(); END $$""")
    adopted: list[str] = []
    with psycopg.connect(place.url, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(4711)")
        maintenance = threading.Thread(
            target=lambda: adopted.extend(
                lease.job.id for lease in store.leases.adopt("maintenance", ["mail"], 30.0, 10)
            )
        )
        maintenance.start()
        while not raw("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"):
            pass
        done = (
            "status = 'DONE', committed_at = clock_timestamp(), finished_at = clock_timestamp(), ended_by = 'succeed'"
        )
        raw(f"UPDATE {{executions}} SET {done} WHERE job_id = :id", id=leases[0].job.id)
        gate.execute("SELECT pg_advisory_unlock(4711)")
        maintenance.join()
    assert sorted(adopted) == sorted(lease.job.id for lease in leases[1:])


# ---------------------------------------------------------------- protocol 9, 11, 18
def test_read_only_server_fails_no_row(store: PostgresStore, place: Place) -> None:
    """Protocol 9: a read-only server refuses every write, so no row is failed for it."""
    stored(store)
    (lease,) = claim(store)
    separator = "&" if "?" in place.url else "?"
    reader = open_store(
        f"{place.url}{separator}options=-c%20default_transaction_read_only%3Don", place.schema, place.clock
    )
    with pytest.raises(Unavailable):
        reader.transitions.move([decided(lease, Returned("1", boundary=False))])
    reader.close()
    assert store.transitions.move([decided(lease, Returned("1", boundary=False))]) == []


def test_deadlocks_and_lock_timeouts_are_retried() -> None:
    """Protocol 11: also serialization failures and lock timeouts; any other error is raised at once."""
    for error in (
        psycopg.errors.DeadlockDetected,
        psycopg.errors.SerializationFailure,
        psycopg.errors.LockNotAvailable,
    ):
        raised = [error(), error()]

        def work(raised: list[psycopg.Error] = raised) -> str:
            if raised:
                raise raised.pop()
            return "done"

        assert retry(work, should_retry, tries=TRIES) == "done"
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise psycopg.errors.UndefinedTable

    with pytest.raises(psycopg.errors.UndefinedTable):
        retry(broken, should_retry, tries=TRIES)
    assert calls == [1]


def test_planner_settings_never_reach_the_callers_code(store: PostgresStore) -> None:
    """Protocol 18: neither inside a commit nor on a connection that goes back to the pool."""
    stored(store)
    (lease,) = claim(store)
    seen: list[str] = []
    move = decided(lease, Returned("1", boundary=True))
    assert (
        store.transitions.commit(move, lambda tx, _: seen.append(tx.execute("SHOW enable_seqscan").fetchone()[0]))
        is None
    )
    with store.transaction() as tx:
        seen += [
            tx.execute(f"SHOW {name}").fetchone()[0]
            for name in ("enable_seqscan", "enable_hashjoin", "lock_timeout", "plan_cache_mode")
        ]
    assert seen == ["on", "on", "on", "0", "auto"]


# ---------------------------------------------------------------- transactions and connections
def test_transaction_that_swallows_a_database_error_raises(store: PostgresStore) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a rollback and no error."""
    with pytest.raises(InterlockError, match="nothing of the block was stored"), store.transaction() as tx:
        store.queue.enqueue([make()], conn=tx)
        with suppress(psycopg.errors.DivisionByZero):
            tx.execute("SELECT 1 / 0")
    assert store.inspect.jobs() == []


def test_async_connection_is_checked_like_any_other(store: PostgresStore, place: Place, postgres_url: str) -> None:
    """A connection to another database is refused; one with its own row factory is accepted."""
    ran_elsewhere = postgres_place(postgres_url)
    ran_elsewhere.open().registry.migrate(list(LIFECYCLES.values()), FACTS)
    foreign = ran_elsewhere.open()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS interlock_elsewhere")
        admin.execute("CREATE DATABASE interlock_elsewhere")

    async def ask() -> str:
        async with await psycopg.AsyncConnection.connect(place.url, dbname="interlock_elsewhere") as connection:
            with pytest.raises(UsageError, match="another database"):
                await foreign.queue.aenqueue([make()], conn=connection)
        async with await psycopg.AsyncConnection.connect(place.url, row_factory=dict_row) as connection:
            return (await store.queue.aenqueue([make()], conn=connection))[0].id

    id = asyncio.run(ask())
    assert [job.id for job in store.inspect.jobs()] == [id]
    ran_elsewhere.close()


def test_refused_connection_is_reported_at_once_with_its_cause(place: Place) -> None:
    """A pool would only report a timeout after half a minute."""
    with pytest.raises(Unavailable, match=r"refused the connection: .*nobody_here.*Is the server running"):
        open_store(place.url.replace("/postgres", "/nobody_here", 1), place.schema, place.clock).inspect.counts()


def test_producer_works_after_going_back_two_lifecycle_versions(store: PostgresStore, place: Place) -> None:
    """The last migrated version is accepted, however old its registration is."""
    drawn = [("new", "claim", "run"), ("run", "succeed", "done"), ("run", "fail", "bad"), ("run", "retry", "new")]
    versions = [
        Lifecycle("step", transitions=[*drawn, *extra])
        for extra in ([], [("new", "cancel", "off")], [("new", "expire", "late")])
    ]
    for version in versions:
        store.registry.migrate([version], FACTS)
    place.raw.disable("lifecycles_update")
    place.raw("UPDATE {lifecycles} SET registered_at = registered_at - interval '9 days'")
    assert store.registry.migrate([versions[0]], FACTS).versions == {"step": 1}
    assert store.queue.enqueue([make(lifecycle=versions[0], version=1)])[0].created
