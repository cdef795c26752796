"""Every form of an enqueue stores the same rows: one job, jobs that are alike, any list, and a caller's transaction."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from interlock.store.contract import Store
from interlock.store.enqueue_plan import CHUNK
from interlock.store.types import Enqueued, NewJob
from tests.contract.kit import check, make, many
from tests.kit import EPOCH, Raw

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "all": {
        "queue": "slow",
        "priority": -3,
        "tries": 7,
        "delay": 1.5,
        "run_at": EPOCH + timedelta(hours=1),
        "ttl": 7200.0,
        "tags": '{"customer":"Ü"}',
        "trace": '{"traceparent":"00-1"}',
        "scheduled_for": EPOCH,
        "actor": "shop",
    },
}
PAYLOAD = '{"text":"☃ \\"twice\\" \\\\ {x} $1 %s :name NULL","n":[1,2.5,null]}'


def one_by_one(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
    return [store.queue.enqueue([job])[0] for job in jobs]


def together(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
    return store.queue.enqueue(jobs)


def among_others(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
    """A job of another kind and a job with a key make the list neither alike nor free of keys."""
    return store.queue.enqueue([*jobs, make("model"), make(unique_key="u")])[: len(jobs)]


def in_a_transaction(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
    with store.transaction() as tx:
        return store.queue.enqueue(jobs, conn=tx)


def with_admit(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
    return store.queue.enqueue(jobs, admit=lambda tx, job: None)


FORMS: list[Callable[[Store, list[NewJob]], list[Enqueued]]] = [
    one_by_one,
    together,
    among_others,
    in_a_transaction,
    with_admit,
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("count", [1, 3])
def test_every_form_of_enqueue_stores_the_same_rows(store: Store, raw: Raw, options: str, count: int) -> None:
    """The rows of the jobs and of the audit are equal in every column but the id."""
    rows: list[list[str]] = []
    for form in FORMS:
        jobs = [make(payload=PAYLOAD, **OPTIONS[options]) for _ in range(count)]
        assert form(store, jobs) == [Enqueued(job.id, True) for job in jobs]
        for job in jobs:
            check(store, job.id)
            rows.append([line.replace(job.id, "id") for line in lines(raw) if job.id in line])
    assert len(rows[0]) == 2
    assert all(row == rows[0] for row in rows)


def lines(raw: Raw) -> list[str]:
    return [*raw.lines("jobs"), *raw.lines("audit")]


def test_long_list_of_alike_jobs_is_stored_in_order(store: Store) -> None:
    """More jobs than one statement takes; the results are in the order of the jobs."""
    jobs = [make(payload=str(n)) for n in range(2_005)]
    assert store.queue.enqueue(jobs) == [Enqueued(job.id, True) for job in jobs]
    assert [store.inspect.get(jobs[n].id).payload for n in (0, 1_000, 2_004)] == [0, 1_000, 2_004]


def test_job_after_a_thousand_alike_ones_is_not_created_if_its_key_is_taken(store: Store) -> None:
    """One statement stores the first jobs, which have no keys. Its result says nothing about the job after them."""
    (first,) = store.queue.enqueue([make(idempotency_key="k")])
    answers = store.queue.enqueue([*many(CHUNK), make(idempotency_key="k")])
    assert all(answer.created for answer in answers[:CHUNK])
    assert answers[CHUNK] == Enqueued(first.id, False)


def test_one_bad_payload_among_alike_jobs_stores_none(store: Store) -> None:
    with pytest.raises(Exception, match=r"(?i)json|constraint"):
        store.queue.enqueue([make(), make(payload="1,2"), make()])
    assert store.inspect.jobs() == []
