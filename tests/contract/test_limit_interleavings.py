"""Interleavings of claims with new limits and pauses on PostgreSQL: each test forces one with real connections."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from interlock.core.limits import Limit
from interlock.store import OpenStore
from interlock.store.flow_types import DeclaredLimit
from interlock.store.postgres.store import PostgresStore
from tests.contract.kit import FACTS, LIFECYCLES, claim, claim_rules, finish, limit, make, many, pause
from tests.kit import Place, postgres_place

GATE = 4711
"""The advisory lock at which a claim stops."""


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


def wait_for_lock(place: Place, condition: str) -> None:
    """Wait until somebody waits for such a lock."""
    deadline = time.monotonic() + 10
    while not place.raw(f"SELECT 1 FROM pg_locks WHERE NOT granted AND {condition}"):
        assert time.monotonic() < deadline, f"nobody waits for {condition}"
        time.sleep(0.002)


@contextmanager
def stopped(place: Place, work: Callable[[], object], when: str) -> Iterator[None]:
    """Run `work` in a thread, stopped when it inserts executions; it goes on after the block, and ends."""
    place.raw.script(f"""
      CREATE FUNCTION {place.schema}.stop() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NEW; END $$;
      CREATE TRIGGER z_stop {place.raw.words(when)} EXECUTE FUNCTION {place.schema}.stop()""")
    thread = threading.Thread(target=work)
    with psycopg.connect(place.url, autocommit=True) as gate:
        gate.execute(f"SELECT pg_advisory_lock({GATE})")
        thread.start()
        wait_for_lock(place, f"locktype = 'advisory' AND objid = {GATE}")
        try:
            yield
        finally:
            gate.execute(f"SELECT pg_advisory_unlock({GATE})")
            thread.join()


BEFORE = "BEFORE INSERT ON {executions} FOR EACH ROW"
"""Before the claim has leased its first job."""
AFTER = "AFTER INSERT ON {executions} FOR EACH STATEMENT"
"""After it has leased all, before it commits."""
CHANGES: dict[str, Callable[[OpenStore], object]] = {
    "pause of the queue": lambda other: pause(other, "queue", "default"),
    "pause of the kind": lambda other: pause(other, "kind", "mail"),
    "limit of the queue": lambda other: limit(other, "queue", "default", max_running=1),
    "limit of the kind": lambda other: limit(other, "kind", "mail", rate="1/h"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_claim_that_began_before_a_change_obeys_it(store: PostgresStore, place: Place, change: str) -> None:
    """The claim has found its jobs before the pause or the limit is stored, and leases them afterwards."""
    other = place.open(real_time=True)
    store.queue.enqueue(many(3))
    leases: list[str] = []
    with stopped(place, lambda: leases.extend(lease.job.id for lease in claim(store)), BEFORE):
        CHANGES[change](other)
    assert len(leases) == (0 if change.startswith("pause") else 1)


@pytest.mark.parametrize("change", CHANGES)
def test_change_waits_for_claims_that_did_not_see_it(store: PostgresStore, place: Place, change: str) -> None:
    """The claim has leased its jobs, but not committed. Later claims count them."""
    other = place.open(real_time=True)
    store.queue.enqueue(many(3))
    ended: list[str] = []
    changing = threading.Thread(target=lambda: (CHANGES[change](other), ended.append("change")))

    def claim_two() -> None:
        assert len(claim(store, limit=2)) == 2
        ended.append("claim")

    with stopped(place, claim_two, AFTER):
        changing.start()
        wait_for_lock(place, f"locktype = 'advisory' AND objid <> {GATE}")
        assert ended == []
    changing.join()
    assert sorted(ended) == ["change", "claim"]
    if change != "limit of the kind":
        assert claim(other) == []


def test_limit_that_is_stored_while_a_claim_locks_others_holds(store: PostgresStore, place: Place) -> None:
    """The claim waits for the lock of one limit; meanwhile another limit of its jobs is stored, and it locks that too:
    a second claim of that limit waits for it.
    """
    limiting, other = place.open(real_time=True), place.open(real_time=True)
    limit(limiting, "queue", "default", max_running=100)
    store.queue.enqueue([*many(1), make(queue="other")])
    with psycopg.connect(place.url) as holder:
        holder.execute(f"SELECT FROM {place.schema}.limits WHERE scope = 'queue' FOR NO KEY UPDATE")
        first = threading.Thread(target=claim, args=(store,))
        first.start()
        wait_for_lock(place, "locktype = 'transactionid'")
        limit(limiting, "kind", "mail", max_running=1)
        second = threading.Thread(target=lambda: other.queue.claim("bob", claim_rules("mail"), ["other"], 1))
        with stopped(place, holder.rollback, BEFORE):
            second.start()
            wait_for_lock(place, "locktype = 'transactionid'")
    first.join()
    second.join()
    (kind,) = [seen for seen in limiting.limits.all() if seen.scope == "kind"]
    assert kind.running == 1


def test_limit_waits_for_a_limited_claim_that_has_counted(store: PostgresStore, place: Place) -> None:
    """A limit that is stored between a claim's count and its leases would not be counted."""
    limiting = place.open(real_time=True)
    limit(limiting, "queue", "default", max_running=100)
    store.queue.enqueue(many(2))
    changing = threading.Thread(target=limit, args=(limiting, "kind", "mail"), kwargs={"max_running": 1})
    with stopped(place, lambda: claim(store), BEFORE):
        changing.start()
        wait_for_lock(place, f"locktype = 'advisory' AND objid <> {GATE}")
    changing.join()
    (kind,) = [seen for seen in limiting.limits.all() if seen.scope == "kind"]
    assert kind.running == 2


def test_pause_does_not_wait_for_a_callers_transaction(store: PostgresStore, place: Place) -> None:
    """Only claims take part: a caller may keep the transaction of an enqueue open for long."""
    limit(store, "key", "mail", max_running=1)
    with psycopg.connect(place.url) as caller:
        store.queue.enqueue([make(), make(concurrency_key="a")], conn=caller)
        pause(store, "queue", "default")
        pause(store, "kind", "mail")
    assert claim(store) == []


def test_migration_locks_limits_in_the_order_of_claims(store: PostgresStore, place: Place) -> None:
    """Whatever the order of the declarations is: in another order, both could wait for each other."""
    declared = [DeclaredLimit("queue", "default", Limit(9)), DeclaredLimit("key", "mail", Limit(9))]
    store.registry.migrate(list(LIFECYCLES.values()), FACTS, declared)
    changed = [replace(each, limit=Limit(8)) for each in declared]
    migration = threading.Thread(target=lambda: store.registry.migrate(list(LIFECYCLES.values()), FACTS, changed))
    with psycopg.connect(place.url) as claiming:
        claiming.execute(f"SELECT FROM {place.schema}.limits WHERE scope = 'key' FOR NO KEY UPDATE")
        migration.start()
        wait_for_lock(place, "locktype = 'transactionid'")
        claiming.execute(f"SELECT FROM {place.schema}.limits WHERE scope = 'queue' FOR NO KEY UPDATE NOWAIT")
    migration.join()
    assert [seen.limit for seen in store.limits.all()] == [Limit(8), Limit(8)]


def test_new_declared_limit_waits_for_claims_that_did_not_see_it(store: PostgresStore, place: Place) -> None:
    """Like one that an operator sets."""
    store.queue.enqueue(many(3))
    other = place.open(real_time=True)
    declared = [DeclaredLimit("kind", "mail", Limit(2))]
    migration = threading.Thread(target=lambda: other.registry.migrate(list(LIFECYCLES.values()), FACTS, declared))
    with stopped(place, lambda: claim(store, limit=2), AFTER):
        migration.start()
        wait_for_lock(place, f"locktype = 'advisory' AND objid <> {GATE}")
    migration.join()
    assert claim(other) == []


def test_changes_and_claims_do_not_deadlock(store: PostgresStore, place: Place) -> None:
    """Limits that appear and disappear, and claims of several queues and kinds."""
    store.queue.enqueue([make(kind, queue=queue) for kind in ("mail", "chore") for queue in "ab" for _ in range(60)])
    before = place.raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    stop = threading.Event()
    failed: list[BaseException] = []

    def repeat(work: Callable[[OpenStore], object]) -> None:
        own = place.open(real_time=True)
        while not stop.is_set():
            try:
                work(own)
            except BaseException as error:
                failed.append(error)
                raise

    def take(own: OpenStore) -> None:
        for lease in own.queue.claim("ann", claim_rules("mail", "chore"), ["a", "b"], 3):
            finish(own, lease)

    def change(scope: str, name: str) -> Callable[[OpenStore], object]:
        def work(own: OpenStore) -> None:
            own.limits.pause(scope, name, by="olga", reason=None)
            own.limits.resume(scope, name, by="olga", reason=None)

        return work

    works = [take, take, change("queue", "a"), change("queue", "b"), change("kind", "mail"), change("kind", "chore")]
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert place.raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == before
