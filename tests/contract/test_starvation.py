"""Users' transactions never make a worker wait for a connection, or for the write lock behind other writers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from interlock.core.outcome import Returned
from interlock.store.contract import Store
from interlock.store.postgres.pool import SIZE
from interlock.store.postgres.store import PostgresStore
from interlock.store.sqlite.store import SqliteStore
from interlock.store.types import Fence, Heartbeat, Lease, NewJob, WorkerFacts
from tests.contract.kit import FACTS, LIFECYCLES, claim, claim_rules, decided, make, started, stored
from tests.kit import Place, postgres_place, sqlite_place


def fence(lease: Lease) -> Fence:
    return Fence(lease.job.id, lease.job.attempt, lease.holder)


# ---------------------------------------------------------------- PostgreSQL: connections
@pytest.fixture
def crowded(postgres_url: str) -> Iterator[PostgresStore]:
    """Return a store with as many open users' transactions as it has connections for users."""
    place: Place = postgres_place(postgres_url)
    store = place.open(real_time=True)
    assert isinstance(store, PostgresStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    with ExitStack() as transactions:
        for _ in range(SIZE):
            transactions.enter_context(store.transaction()).execute("SELECT 1")
        yield store
    place.close()


def renew(store: Store, lease: Lease) -> bool:
    return store.leases.renew([Heartbeat(fence(lease), 30.0)]).renewed == [fence(lease)]


def report_worker(store: Store, _: Lease) -> bool:
    store.workers.report(WorkerFacts("ann", "here", 1, "Idle", 1, 0, ("mail",), ("default",)))
    return True


def claim_next(store: Store, _: Lease) -> bool:
    stored(store)
    return len(claim(store)) == 1


def report(store: Store, lease: Lease) -> bool:
    return store.transitions.move([decided(lease, Returned("1", boundary=False))]) == []


def commit(store: Store, lease: Lease) -> bool:
    return (
        store.transitions.commit(decided(lease, Returned("1", boundary=True)), lambda tx, _: tx.execute("SELECT 1"))
        is None
    )


def maintain(store: Store, _: Lease) -> bool:
    nothing = (
        store.leases.adopt("maintenance", ["mail"], 30.0, 10) == []
        and store.queue.due_in(claim_rules("mail"), ["default"]) is None
    )
    return nothing and store.inspect.uptime() is not None


def listen(store: Store, _: Lease) -> bool:
    heard = threading.Event()
    with closing(store.queue.listen(heard.set)):
        return heard.wait(30)


@pytest.mark.parametrize("verb", [renew, report_worker, claim_next, report, commit, maintain, listen])
def test_worker_gets_a_connection_while_users_use_all_of_theirs(
    crowded: PostgresStore,
    verb: Callable[[Store, Lease], bool],
) -> None:
    """Protocol 6: renewal has its own connection, and no other verb of a worker waits for a user's transaction."""
    assert verb(crowded, started(crowded))


def test_renewal_waits_for_no_other_verb(crowded: PostgresStore) -> None:
    """Other verbs of the store cannot use its connection, even if many of them wait for one lock."""
    lease = started(crowded)
    with ExitStack() as busy:
        for _ in range(SIZE):
            busy.enter_context(crowded.session.pool.begin())
        assert renew(crowded, lease)
        assert report_worker(crowded, lease)


def test_slow_admit_does_not_block_workers(postgres_url: str) -> None:
    """`admit` is user code, so it runs on a user's connection."""
    place = postgres_place(postgres_url)
    store = place.open(real_time=True)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    lease, inside, go = started(store), threading.Semaphore(0), threading.Event()

    def admit(tx: Any, job: NewJob) -> None:
        inside.release()
        go.wait(120)

    callers = [threading.Thread(target=lambda: store.queue.enqueue([make("chore")], admit=admit)) for _ in range(SIZE)]
    for caller in callers:
        caller.start()
    for _ in callers:
        assert inside.acquire(timeout=30)
    assert renew(store, lease)
    assert report(store, lease)
    go.set()
    for caller in callers:
        caller.join()
    place.close()


# ---------------------------------------------------------------- SQLite: the queue of writers
def test_renewal_is_first_in_the_write_queue(quick_path: Any) -> None:
    """SQLite has one writer at a time: the renewal waits for the open transaction, but not for other waiting writers."""
    place = sqlite_place(quick_path)
    store = place.open(real_time=True)
    assert isinstance(store, SqliteStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    lease, order = started(store), list[str]()

    def write(name: str) -> None:
        with store.transaction():
            order.append(name)

    def heartbeat() -> None:
        assert renew(store, lease)
        order.append("renewal")

    with store.transaction():
        threads = []
        for n, work in enumerate([lambda: write("first"), lambda: write("second"), heartbeat], start=1):
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            while store.file.waiting < n:
                pass
    for thread in threads:
        thread.join()
    assert order[0] == "renewal"
    place.close()


@pytest.mark.parametrize("journal", ["sqlite", "sqlite+pysqlite3"])
def test_readers_do_not_block_renewal(quick_path: Any, journal: str) -> None:
    """Each page is a short snapshot, so a reader blocks no renewal, also without a write-ahead log."""
    place = sqlite_place(quick_path)
    place.url = place.url.replace("sqlite", journal, 1)
    store = place.open(real_time=True)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    lease = started(store)
    store.queue.enqueue([make() for _ in range(500)])
    pages = store.inspect.job_records(10)
    next(pages)
    assert renew(store, lease)
    assert sum(len(page) for page in pages) == 491
    place.close()
