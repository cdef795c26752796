"""Remarks are numbered under the job's lock: two at once are both stored, and neither makes a move fail."""

import threading
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import psycopg
import pytest

from interlock.core.outcome import Errored, FailedFinally, Held, Requeued, Returned
from interlock.errors import Unavailable
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.enqueue_plan import Statement
from interlock.store.postgres.connection import runner
from interlock.store.postgres.pool import TRIES, is_database_error
from interlock.store.postgres.store import PostgresStore
from interlock.store.types import Lease
from tests.contract.kit import FACTS, LIFECYCLES, check, claim, claim_rules, claimed, decided, settle, started, stored
from tests.contract.test_races import settle_batch
from tests.kit import Place, postgres_place


# ---------------------------------------------------------------- forced interleavings, on PostgreSQL
@pytest.fixture
def crowded(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def many_writers(crowded: Place) -> PostgresStore:
    store = crowded.open(real_time=True)
    assert isinstance(store, PostgresStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    return store


def behind_a_remark(store: PostgresStore, place: Place, job_id: str, work: Callable[[], Any]) -> Any:
    """Run `work` while another process holds the job's lock with a remark that is not yet committed."""
    rival = place.open(real_time=True)
    assert isinstance(rival, PostgresStore)
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    worker = threading.Thread(target=run)
    remark = {"id": job_id, "attempt": None, "event": "looked_at", "actor": "rival", "reason": None}
    with rival.session.pool.begin() as conn:
        runner(conn)(Statement(rival.session.queries["add_note"], remark, answers=False))
        holder = conn.info.backend_pid
        worker.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE :pid = ANY(pg_blocking_pids(pid))"
        while worker.is_alive() and not place.raw(blocked, pid=holder):
            pass
        assert worker.is_alive()
    worker.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def running(store: Store) -> Lease:
    return started(store)


def downloading(store: Store) -> Lease:
    """Claim an execution that ends without a transition: its end is a remark."""
    return claimed(store, "fetch")


RETRY, WAIT, HOLD = Errored("busy", retryable=True), Requeued("its worker drains"), Held("in doubt")
ENDS = [(downloading, RETRY), (downloading, WAIT), (downloading, HOLD), (running, HOLD)]
SEEN = """INSERT INTO {audit} (job_id, version, n, at, event, actor)
          VALUES (:id, 0, :n, clock_timestamp(), 'looked_at', 'rival')"""


@pytest.mark.parametrize(("begin", "outcome"), ENDS)
def test_move_that_waited_for_a_remark_is_stored(
    many_writers: PostgresStore,
    crowded: Place,
    begin: Callable[[Store], Lease],
    outcome: Any,
) -> None:
    """Its remark gets the next number, from a snapshot newer than the lock for which it waited."""
    store, lease = many_writers, begin(many_writers)
    assert (
        behind_a_remark(store, crowded, lease.job.id, lambda: store.transitions.move([decided(lease, outcome)])) == []
    )
    assert store.inspect.get(lease.job.id).phase == "pending"
    check(store, lease.job.id)
    assert {entry.event for entry in store.inspect.history(lease.job.id)} >= {"looked_at"}


def test_batch_with_two_transitions_that_waited_for_a_remark_is_stored(
    many_writers: PostgresStore, crowded: Place
) -> None:
    """Also if the batch is written in several steps."""
    store = many_writers
    lease, buried = downloading(store), claimed(store, "paint")
    moves = [decided(lease, RETRY), decided(buried, FailedFinally("broken"))]
    assert behind_a_remark(store, crowded, lease.job.id, lambda: store.transitions.move(moves)) == []
    assert (store.inspect.get(lease.job.id).phase, store.inspect.get(buried.job.id).state) == ("pending", "dead_letter")


def test_cancel_request_that_waited_for_a_remark_is_stored(many_writers: PostgresStore, crowded: Place) -> None:
    store, lease = many_writers, running(many_writers)
    id = lease.job.id
    assert (
        behind_a_remark(store, crowded, id, lambda: store.control.request_cancel(id, by="operator:olga", reason="x"))
        is True
    )
    assert [entry.event for entry in store.inspect.history(lease.job.id) if entry.n] == [
        "looked_at",
        "cancel_requested",
    ]


def test_remark_that_waited_for_a_remark_is_stored(many_writers: PostgresStore, crowded: Place) -> None:
    store, job = many_writers, stored(many_writers)
    refused = {"attempt": None, "event": "refused", "actor": "ann", "reason": None}
    behind_a_remark(store, crowded, job.id, lambda: store.control.add_note(job.id, **refused))  # type: ignore[arg-type]
    assert [entry.event for entry in store.inspect.history(job.id) if entry.n] == ["looked_at", "refused"]


def test_release_that_waited_for_a_remark_is_stored(many_writers: PostgresStore, crowded: Place) -> None:
    store, lease = many_writers, running(many_writers)
    id = settle(store, lease, HOLD).job.id
    assert (
        behind_a_remark(store, crowded, id, lambda: store.control.release(id, by="operator:olga", reason="looked"))
        is True
    )
    assert [entry.event for entry in store.inspect.history(lease.job.id) if entry.n] == ["hold", "looked_at", "release"]


def test_claim_without_a_transition_succeeds_despite_a_concurrent_remark(
    many_writers: PostgresStore,
    crowded: Place,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The remark is committed after the claim's snapshot and before the claim has its lock."""
    store, job = many_writers, stored(many_writers, "fetch")
    raw = crowded.raw
    raw.script(f"""CREATE OR REPLACE FUNCTION {crowded.schema}.clock() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
      $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4712); RETURN clock_timestamp(); END $$""")
    leases: list[Lease] = []
    with psycopg.connect(crowded.url, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(4712)")
        claimer = threading.Thread(target=lambda: leases.extend(claim(store, "fetch")))
        claimer.start()
        while not raw("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4712 AND NOT granted"):
            pass
        raw(SEEN, id=job.id, n=1)
        gate.execute("SELECT pg_advisory_unlock(4712)")
        claimer.join()
    assert [lease.job.id for lease in leases] == [job.id]
    assert [entry.event for entry in store.inspect.history(job.id) if entry.n] == ["looked_at", "claim"]
    assert "set aside" not in caplog.text


def test_repeatable_read_commit_is_retried_after_a_concurrent_remark(
    many_writers: PostgresStore, crowded: Place
) -> None:
    """Its snapshot cannot see the remark: the transaction runs again, and the job does not fail."""
    store, lease = many_writers, downloading(many_writers)
    calls: list[int] = []

    def body(tx: Any, _: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            crowded.raw(SEEN, id=lease.job.id, n=9)

    def transaction() -> Any:
        connection = psycopg.connect(crowded.url)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    crowded.raw(SEEN, id=lease.job.id, n=8)
    assert store.transitions.commit(decided(lease, RETRY), body, transaction=transaction) is None
    assert calls == [1, 1]
    assert store.inspect.get(lease.job.id).phase == "pending"


def test_collision_is_distinguished_from_data_that_cannot_be_stored(
    many_writers: PostgresStore, crowded: Place
) -> None:
    """Both refusals have the database's error; only bad data may fail the job."""
    store, rivalled, broken = many_writers, claimed(many_writers, "paint"), running(many_writers)
    crowded.raw.copy("audit", "job_id = :id AND version = 1", {"version": "2"}, id=rivalled.job.id)
    moves = [decided(rivalled, FailedFinally("x")), decided(broken, Returned('{"half":', boundary=False))]
    refusals = {each.job_id: each for each in store.transitions.move(moves)}
    assert all(each.error for each in refusals.values())
    assert {id: each.collided for id, each in refusals.items()} == {rivalled.job.id: True, broken.job.id: False}


BUSY = [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable]
DATA = [
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.NumericValueOutOfRange,
    psycopg.DataError,
]


@pytest.mark.parametrize("error", BUSY)
def test_busy_database_is_unavailable_and_fails_no_row(
    many_writers: PostgresStore,
    error: type[psycopg.Error],
) -> None:
    """After the retries; a worker that reports a finished job sends the same move again until it is stored."""
    tried: list[int] = []

    def work(_: object) -> None:
        tried.append(1)
        raise error

    with pytest.raises(Unavailable, match="Nothing was stored; try again later"):
        many_writers.session.pool.transact(work)
    assert len(tried) == TRIES
    assert is_database_error(error())


@pytest.mark.parametrize("error", DATA)
def test_value_too_large_or_too_deep_fails_only_its_own_job(error: type[psycopg.Error]) -> None:
    """The rest of its batch is stored."""
    assert not is_database_error(error())


# ---------------------------------------------------------------- races, on both stores
def held_and_released(store: Store, job_id: str, rounds: int) -> None:
    """A worker and an operator take turns with one job. A claim skips a job that is locked."""
    for turn in range(rounds):
        while not (leases := store.queue.claim("ann", claim_rules("fetch"), ["default"], 1)):
            pass
        assert (
            store.transitions.move(
                [decided(leases[0], Held("in doubt") if turn % 3 else Requeued("its worker drains"))]
            )
            == []
        )
        if turn % 3:
            assert store.control.release(job_id, by="operator:olga", reason="looked")


def test_concurrent_moves_remarks_and_releases_are_all_stored(live: Store, place: Place) -> None:
    """Four processes write to one job: every move is stored, no verb raises, and every remark has its own number."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    job, over = stored(live, "fetch"), Event()

    def work(number: int) -> None:
        if number == 0:
            try:
                held_and_released(stores[0], job.id, 60)
            finally:
                over.set()
        while not over.is_set():
            stores[number].control.add_note(job.id, attempt=None, event="seen", actor=f"w{number}", reason=None)

    settle_batch(4, work)
    found = live.inspect.get(job.id)
    assert (found.phase, found.state, found.attempt) == ("pending", "queued", 60)
    numbers = [entry.n for entry in live.inspect.history(job.id)]
    assert numbers == list(range(len(numbers)))
    assert verify(live).ok


def test_cancel_request_during_remarks_and_a_retry_raises_nothing(live: Store, place: Place) -> None:
    """A cancel request, two remarks and a retry at the same time: none raises, and the job does not fail."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    for _ in range(20):
        lease = started(live, "deliver")

        def work(number: int, lease: Lease = lease) -> Any:
            store, id = stores[number], lease.job.id
            match number:
                case 0:
                    return store.transitions.move([decided(lease, RETRY)])
                case 1:
                    return store.control.request_cancel(id, by="operator:olga", reason="enough")
                case _:
                    return store.control.add_note(id, attempt=1, event="refused", actor=f"w{number}", reason=None)

        refusals = settle_batch(4, work)[0]
        assert [refusal.error for refusal in refusals] in ([], [None])
        check(live, lease.job.id)
        assert live.inspect.get(lease.job.id).phase in ("pending", "running")
        if refusals:
            settle(live, lease, FailedFinally("enough"))
        else:
            live.queue.claim("last", claim_rules("deliver"), ["default"], 1)
