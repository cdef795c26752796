"""enqueue: a call stores all of its jobs or none."""

import json
from contextvars import Context
from datetime import timedelta

import pytest

from interlock.errors import InterlockError
from interlock.store.contract import Store, Tx
from interlock.store.types import NewJob
from tests.contract.kit import LIFECYCLES, check, claim, make, many, stored
from tests.kit import EPOCH, Raw, SettableClock


@pytest.mark.parametrize("kind", ["mail", "model", "chore", "deliver", "fetch", "paint"])
def test_new_job_waits_in_its_initial_state(store: Store, kind: str) -> None:
    """A stored job is in the initial state of its lifecycle, has no attempts, and has all its tries."""
    job = stored(store, kind, tries=5)
    assert (job.state, job.phase, job.version, job.attempt) == (LIFECYCLES[job.lifecycle].initial, "pending", 0, 0)
    assert (job.tries, job.tries_left, job.lease_losses, job.lifecycle_version) == (5, 5, 0, 1)
    assert (job.created_at, job.updated_at, job.due_at, job.finished_at) == (EPOCH, EPOCH, EPOCH, None)
    assert store.inspect.executions(job.id) == []
    check(store, job.id)


def test_history_begins_with_the_enqueue(store: Store) -> None:
    """The audit of a new job has one entry: who stored it, and its initial state."""
    job = stored(store, actor="shop")
    (birth,) = store.inspect.history(job.id)
    assert (birth.version, birth.n, birth.event, birth.from_state, birth.to_state, birth.actor, birth.at) == (
        0,
        0,
        "enqueue",
        None,
        "PENDING",
        "shop",
        EPOCH,
    )


def test_every_field_of_a_new_job_is_stored(store: Store, other: Store) -> None:
    """Every field reads back as it was given, also in another process."""
    parent = stored(store)
    payload = {
        "text": "naïve ☃ \U0001f600 'quoted' \"twice\" \\ {x} $1 %s :name",
        "n": [1, 2.5, None, True],
        "nested": {"": [[]]},
    }
    job = stored(
        store,
        payload=json.dumps(payload, ensure_ascii=False),
        queue="slow",
        priority=-3,
        tags='{"customer":"Ü"}',
        trace='{"traceparent":"00-1"}',
        idempotency_key="i'1",
        unique_key='u"1',
        scheduled_for=EPOCH,
        redrive_of=parent.id,
    )
    read = other.inspect.get(job.id)
    assert read == job
    assert (read.payload, read.queue, read.priority, read.tags, read.trace) == (
        payload,
        "slow",
        -3,
        {"customer": "Ü"},
        {"traceparent": "00-1"},
    )
    assert (read.idempotency_key, read.unique_key, read.scheduled_for, read.redrive_of) == (
        "i'1",
        'u"1',
        EPOCH,
        parent.id,
    )


def test_durations_are_added_to_the_stores_clock(store: Store, clock: SettableClock) -> None:
    """A delay and a TTL count from the store's clock, not from the caller's."""
    clock.advance(3600)
    job = stored(store, delay=90.5, ttl=600.0)
    assert job.due_at == EPOCH + timedelta(seconds=3690.5)
    assert job.expires_at == EPOCH + timedelta(seconds=4200)


def test_run_at_is_stored_to_the_microsecond(store: Store) -> None:
    """`run_at` is the time at which the job is due."""
    at = EPOCH + timedelta(days=400, microseconds=123457)
    assert stored(store, run_at=at).due_at == at


def test_enqueue_returns_jobs_in_request_order(store: Store) -> None:
    """The nth answer is for the nth job, however the keys sort and whether the job is new or found."""
    first = store.queue.enqueue([make(idempotency_key=key) for key in "MBX"])
    asked = [make(idempotency_key=key) for key in "ZBYMAX"]
    answers = store.queue.enqueue(asked)
    assert [each.created for each in answers] == [True, False, True, False, True, False]
    assert [each.id for each in answers] == [
        asked[0].id,
        first[1].id,
        asked[2].id,
        first[0].id,
        asked[4].id,
        first[2].id,
    ]


def test_empty_enqueue_stores_nothing(store: Store, raw: Raw) -> None:
    """An empty list returns an empty list."""
    before = raw.dump()
    assert store.queue.enqueue([]) == []
    assert raw.dump() == before


def test_one_call_stores_thousands_of_jobs(store: Store) -> None:
    """A list that needs several statements is stored completely, in order."""
    asked = many(2501)
    assert [each.id for each in store.queue.enqueue(asked)] == [each.id for each in asked]
    assert store.inspect.counts() == {"standard": {"PENDING": 2501}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"lifecycle_version": 2},
        {"lifecycle": "unheard_of"},
        {"state": "RUNNING"},
        {"state": "nowhere"},
        {"tries": 0},
        {"payload": "not JSON"},
    ],
    ids=["unregistered version", "unregistered lifecycle", "not initial", "no state", "no tries", "no JSON"],
)
def test_one_bad_job_refuses_the_whole_call(store: Store, raw: Raw, wrong: dict[str, object]) -> None:
    """If the database refuses one job, the call stores nothing and leaves no transaction open."""
    before = raw.dump()
    bad = make()
    for name, value in wrong.items():
        setattr(bad, name, value)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each dialect has its own error; that nothing is stored is the promise
        store.queue.enqueue([make(), bad, make()])
    assert raw.dump() == before
    assert store.queue.enqueue([make()])[0].created


def test_admit_is_called_for_each_new_job_in_its_transaction(store: Store, raw: Raw) -> None:
    """`admit` is called once for each new job, and its writes are stored with the jobs."""
    raw("CREATE TABLE {credits} (job text)")
    store.queue.enqueue([make(idempotency_key="old")])
    asked = [make(idempotency_key="old"), make(), make()]

    def admit(tx: Tx, job: NewJob) -> None:
        tx.execute(raw.words(f"INSERT INTO {{credits}} VALUES ('{job.id}')"))

    store.queue.enqueue(asked, admit=admit)
    assert sorted(raw("SELECT job FROM {credits}")) == [(job.id,) for job in asked[1:]]


def test_admit_that_raises_refuses_the_whole_call(store: Store, raw: Raw) -> None:
    """Neither the jobs nor the writes of `admit` are stored, and its exception is raised."""
    raw("CREATE TABLE {credits} (job text)")
    asked = many(3)

    def admit(tx: Tx, job: NewJob) -> None:
        tx.execute(raw.words(f"INSERT INTO {{credits}} VALUES ('{job.id}')"))
        if job is asked[-1]:
            raise PermissionError("no credit left")

    before = raw.dump()
    with pytest.raises(PermissionError, match="no credit left"):
        store.queue.enqueue(asked, admit=admit)
    assert raw.dump() == before
    assert raw("SELECT * FROM {credits}") == []


def test_job_exists_exactly_if_the_callers_transaction_commits(store: Store, other: Store, raw: Raw) -> None:
    """FM_002: the job exists exactly if the caller's transaction commits, and no worker sees it before."""
    before = raw.dump()
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.queue.enqueue(many(3), conn=tx)
        raise ZeroDivisionError
    assert raw.dump() == before
    with store.transaction() as tx:
        assert store.queue.enqueue(many(3), conn=tx)[2].created
        # A new context acts as another worker: code inside the block reads in its transaction, through any store.
        assert Context().run(other.inspect.counts) == {}
        assert other.inspect.counts() == {"standard": {"PENDING": 3}}
    assert len(claim(other)) == 3


def test_driver_connection_is_accepted_as_conn(store: Store, raw: Raw) -> None:
    """A plain driver connection serves as `conn`; it is never committed, rolled back or closed."""
    with pytest.raises(ZeroDivisionError), raw.transaction() as connection:
        store.queue.enqueue([make()], conn=connection)
        raise ZeroDivisionError
    assert store.inspect.counts() == {}
    with raw.transaction() as connection:
        store.queue.enqueue([make()], conn=connection)
        connection.execute("SELECT 1")
    assert store.inspect.counts() == {"standard": {"PENDING": 1}}


def test_refused_call_leaves_the_callers_transaction_open(store: Store) -> None:
    """If `admit` raises inside the caller's transaction, nothing of the call is stored, and the caller can continue and
    commit.
    """

    def refuse(tx: Tx, job: NewJob) -> None:
        raise PermissionError

    with store.transaction() as tx:
        kept = store.queue.enqueue([make()], conn=tx)[0].id
        with pytest.raises(PermissionError):
            store.queue.enqueue(many(2), conn=tx, admit=refuse)
    assert [job.id for job in store.inspect.jobs()] == [kept]


def test_wrong_type_of_conn_is_refused(store: Store) -> None:
    """The call raises an error, and nothing is stored."""
    with pytest.raises(InterlockError):
        store.queue.enqueue([make()], conn=object())
    assert store.inspect.counts() == {}
