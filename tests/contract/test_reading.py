"""get, jobs, executions, history, counts, records, now: reading what is stored."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from interlock.core.job_filter import JobFilter
from interlock.core.outcome import Errored, Returned
from interlock.errors import NotFound
from interlock.operate.verify import verify
from interlock.store.contract import Store
from tests.contract.kit import claim, claimed, decided, finish, make, many, settle, stored
from tests.kit import EPOCH, Raw, SettableClock


def test_unknown_job_is_not_found(store: Store) -> None:
    """For an unknown id and for text that is not an id."""
    for id in (make().id, "nonsense"):
        with pytest.raises(NotFound, match=id):
            store.inspect.get(id)
        assert store.inspect.executions(id) == []
        assert store.inspect.history(id) == []


def test_jobs_are_listed_newest_first(store: Store) -> None:
    """In the reverse order of their creation."""
    ids = [each.id for each in store.queue.enqueue(many(5))]
    assert [job.id for job in store.inspect.jobs()] == ids[::-1]


def test_pages_have_no_gaps_and_no_duplicates(store: Store) -> None:
    """`after` is the last id of the previous page; jobs that are stored meanwhile do not matter."""
    ids = [each.id for each in store.queue.enqueue(many(25))]
    seen: list[str] = []
    after = None
    while page := store.inspect.jobs(limit=10, after=after):
        seen += [job.id for job in page]
        after = page[-1].id
        store.queue.enqueue(many(1))
    assert seen == ids[::-1]


def test_all_filters_must_match(store: Store) -> None:
    """A job must match every given filter."""
    store.queue.enqueue([make("mail", queue="a"), make("mail", queue="b"), make("chore", queue="a")])
    claim(store, queues=("b",))
    found = {
        "kind": store.inspect.jobs(matching=JobFilter(kind="mail")),
        "queue": store.inspect.jobs(matching=JobFilter(queue="a")),
        "both": store.inspect.jobs(matching=JobFilter(kind="mail", queue="a")),
        "state": store.inspect.jobs(matching=JobFilter(state="RUNNING")),
        "phase": store.inspect.jobs(matching=JobFilter(phase="pending")),
        "none": store.inspect.jobs(matching=JobFilter(kind="chore", phase="running")),
    }
    assert {name: len(jobs) for name, jobs in found.items()} == {
        "kind": 2,
        "queue": 2,
        "both": 1,
        "state": 1,
        "phase": 2,
        "none": 0,
    }


def test_jobs_are_filtered_by_tags(store: Store) -> None:
    """A job must have every given tag with its value; its other tags do not matter."""
    first = stored(store, tags='{"customer":"Ü\\"1","plan":"pro"}')
    stored(store, tags='{"customer":"2","plan":"pro"}')
    stored(store)
    assert [job.id for job in store.inspect.jobs(matching=JobFilter(tags={"customer": 'Ü"1'}))] == [first.id]
    assert len(store.inspect.jobs(matching=JobFilter(tags={"plan": "pro"}))) == 2
    assert store.inspect.jobs(matching=JobFilter(tags={"plan": "pro", "customer": "3"})) == []
    assert len(store.inspect.jobs(matching=JobFilter(tags={}))) == 3
    assert store.inspect.get(first.id).tags == {"customer": 'Ü"1', "plan": "pro"}


def test_executions_are_ordered_by_attempt(store: Store) -> None:
    """All of them, the first attempt first."""
    job = stored(store, tries=5)
    for _ in range(4):
        settle(store, claim(store)[0], Errored("busy", retryable=True, after=0))
    assert [each.attempt for each in store.inspect.executions(job.id)] == [1, 2, 3, 4]


def test_history_is_ordered_by_version_and_number(store: Store) -> None:
    """A remark follows the transition of its version; numbers start at zero."""
    lease = claimed(store)
    store.control.add_note(lease.job.id, attempt=1, event="note", actor="ann", reason=None)
    finish(store, lease)
    store.control.add_note(lease.job.id, attempt=1, event="note", actor="ann", reason=None)
    history = store.inspect.history(lease.job.id)
    assert [(entry.seq, entry.version, entry.n, entry.event) for entry in history] == [
        (0, 0, 0, "enqueue"),
        (1, 1, 0, "claim"),
        (2, 1, 1, "note"),
        (3, 2, 0, "succeed"),
        (4, 2, 1, "note"),
    ]


def test_counts_are_per_lifecycle_and_state(store: Store) -> None:
    """States without jobs have no count."""
    assert store.inspect.counts() == {}
    store.queue.enqueue([*many(3), *many(2, "paint")])
    finish(store, claim(store, limit=1)[0])
    assert store.inspect.counts() == {"standard": {"PENDING": 2, "SUCCEEDED": 1}, "image": {"queued": 2}}


def test_now_is_the_stores_clock(store: Store, other: Store, clock: SettableClock) -> None:
    """It has a time zone, and is the same for every process."""
    assert store.inspect.now() == EPOCH
    clock.advance(1.5)
    assert store.inspect.now() == other.inspect.now() == clock.now()
    assert store.inspect.now().utcoffset() is not None


def test_records_have_every_job_once(store: Store, clock: SettableClock) -> None:
    """With its executions and history, also if it is pruned, in pages of at most the given size."""
    store.queue.enqueue(many(7))
    gone = finish(store, claim(store, limit=1)[0]).job.id
    clock.advance(100)
    store.retention.prune(phase="succeeded", age=1.0, limit=9)
    leases = claim(store, limit=2)
    pages = list(store.inspect.job_records(size=3))
    assert all(len(page) <= 3 for page in pages)
    found = {record.job_id: record for page in pages for record in page}
    assert len(found) == sum(map(len, pages)) == 7
    assert (found[gone].job, found[gone].executions, len(found[gone].audit)) == (None, [], 3)
    for lease in leases:
        record = found[lease.job.id]
        assert record.job is not None
        assert (record.job.state, record.executions, record.audit) == (
            "RUNNING",
            store.inspect.executions(lease.job.id),
            store.inspect.history(lease.job.id),
        )


BIG, MANY = 300_000, 40
"""The length of a payload and of a result, and the number of such jobs."""


def peak_of(work: Callable[[], object]) -> int:
    """Return the most memory that Python uses during the work, in bytes."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_lists_without_payloads_and_verify_read_no_payloads(store: Store) -> None:
    """A page of a thousand jobs may have a gigabyte of payloads and results."""
    store.queue.enqueue([make(payload=f'{{"text":"{n}{"x" * BIG}"}}') for n in range(MANY)])
    text = '"' + "y" * BIG + '"'
    store.transitions.move([decided(lease, Returned(text, boundary=False)) for lease in claim(store, limit=MANY // 2)])
    whole = store.inspect.jobs(limit=MANY)
    assert {len(job.payload["text"]) for job in whole} >= {BIG + 1}
    assert store.inspect.jobs(limit=MANY, payloads=False) == [replace(job, payload={}, result=None) for job in whole]
    all_of_it = peak_of(lambda: store.inspect.jobs(limit=MANY))
    assert all_of_it > MANY * BIG
    assert peak_of(lambda: store.inspect.jobs(limit=MANY, payloads=False)) < all_of_it / 10
    assert peak_of(lambda: verify(store)) < all_of_it / 10
    assert verify(store).ok


def test_empty_database_has_no_records(store: Store) -> None:
    """There are no pages."""
    assert [record for page in store.inspect.job_records() for record in page] == []


def test_view_jobs_now_shows_the_present_execution(store: Store, raw: Raw) -> None:
    """Users query `jobs_now` in their own SQL: each job with its present execution."""
    lease = claimed(store, by="ann")
    assert raw("SELECT state, execution_status, lease_owner FROM {jobs_now} WHERE id = :id", id=lease.job.id) == [
        ("RUNNING", "IN_PROGRESS", "ann")
    ]


def test_closed_store_can_be_used_again(store: Store) -> None:
    """After `close` the next verb opens new connections."""
    job = stored(store)
    store.close()
    assert store.inspect.get(job.id) == job
