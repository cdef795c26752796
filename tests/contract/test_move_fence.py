"""move: a worker that no longer holds the execution changes nothing."""

from dataclasses import replace
from itertools import pairwise

import pytest

from interlock.core.job import Job
from interlock.core.outcome import (
    Advanced,
    FailedFinally,
    Returned,
    Started,
)
from interlock.store.contract import Store
from tests.contract.kit import (
    again,
    claim,
    claimed,
    decided,
    finish,
    many,
    refused,
    settle,
)
from tests.kit import Raw, SettableClock


# ---------------------------------------------------------------- ownership
def test_owner_of_an_expired_lease_can_still_move_its_job(store: Store, clock: SettableClock) -> None:
    """An expired lease still moves its job until another process adopts it."""
    lease = claimed(store, lease=30.0)
    clock.advance(100_000)
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_refusal_describes_the_stored_row(store: Store) -> None:
    """It has the holder, the status, how the execution ended, and the job's state and version."""
    lease = claimed(store)
    job = finish(store, lease).job
    refusal = refused(store, decided(lease, FailedFinally("late")))
    assert (refusal.attempt, refusal.holder, refusal.status, refusal.ended_by, refusal.state) == (
        1,
        1,
        "DONE",
        "succeed",
        "SUCCEEDED",
    )
    assert (refusal.version, refusal.error) == (job.version, None)


def test_move_of_an_unknown_job_is_refused(store: Store, raw: Raw) -> None:
    """The refusal of an unknown job or attempt has attempt 0."""
    lease = claimed(store)
    before = raw.dump()
    move = decided(lease, FailedFinally("broken"))
    assert refused(store, replace(move, attempt=2)).attempt == 0
    unknown = many(1)[0].id
    assert refused(store, replace(move, job_id=unknown)).attempt == 0
    assert raw.dump() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"holder": 2},
        {"holder": 0},
        {"from_status": "LEASED"},
        {"from_status": "COMMITTED"},
        {"source": "PENDING"},
        {"attempt": 2},
    ],
    ids=str,
)
def test_every_part_of_the_fence_is_checked(store: Store, raw: Raw, changes: dict[str, object]) -> None:
    """A move with one wrong part changes nothing."""
    lease = claimed(store)
    before = raw.dump()
    move = replace(decided(lease, Returned("1", boundary=True)), **changes)
    refused(store, move)
    assert raw.dump() == before


def test_refusal_does_not_affect_the_rest_of_the_batch(store: Store) -> None:
    """The other moves of the batch are stored."""
    store.queue.enqueue(many(3))
    leases = claim(store)
    finish(store, leases[1])
    (refusal,) = store.transitions.move([decided(lease, FailedFinally("broken")) for lease in leases])
    assert refusal.job_id == leases[1].job.id
    assert [store.inspect.get(lease.job.id).state for lease in leases] == ["FAILED", "SUCCEEDED", "FAILED"]


def test_empty_move_changes_nothing(store: Store, raw: Raw) -> None:
    """An empty list returns an empty list."""
    before = raw.dump()
    assert store.transitions.move([]) == []
    assert raw.dump() == before


def test_every_move_increases_updated_at(store: Store, clock: SettableClock) -> None:
    """Also if the clock does not advance."""
    lease = claimed(store, "deliver")
    seen: list[Job] = [lease.job]
    for outcome in (Started(), Advanced("STREAMING"), Returned("1", boundary=False)):
        lease = settle(store, lease, outcome)
        seen.append(lease.job)
    assert [a.updated_at < b.updated_at for a, b in pairwise(seen)] == [True] * 3
    assert again(store, lease).job.version == 4
