"""Where a claim on PostgreSQL starts to look: at the due time at which the last one ended, once a second at the first.

`claim_bounds.ClaimBounds` explains why. Each of these tests sets the time by which a second passes.
"""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from interlock.store.contract import Store
from interlock.store.postgres import claim_bounds
from tests.contract.kit import CONTENTS, claim, make
from tests.kit import EPOCH, Place, postgres_place


class Watch:
    """The monotonic time of the claims."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(claim_bounds, "time", watch)
    monkeypatch.setattr(claim_bounds, "REMEMBER_AFTER", 0)
    return watch


@pytest.fixture
def draining(place: Place, watch: Watch) -> Store:
    """A store with jobs that are due at 20, 50, 50 and 60. The first two are claimed, and none is looked for again."""
    store = place.open_with(CONTENTS)
    place.clock.advance(100)
    for due in (20, 50, 50, 60):
        add(store, due)
    assert (claimed(store), claimed(store)) == ([20], [50])
    return store


def add(store: Store, due: int, **fields: int) -> None:
    store.queue.enqueue([make(run_at=EPOCH + timedelta(seconds=due), **fields)])


def claimed(store: Store, limit: int = 1) -> list[int]:
    """Claim jobs, and return the seconds at which they were due."""
    return sorted(int((lease.job.due_at - EPOCH).total_seconds()) for lease in claim(store, limit=limit))


def test_next_claim_takes_the_other_jobs_of_the_last_due_time_first(draining: Store) -> None:
    add(draining, 10)
    assert (claimed(draining), claimed(draining)) == ([50], [60])


def test_job_that_was_due_before_the_last_claimed_one_is_claimed_after_a_second(draining: Store, watch: Watch) -> None:
    add(draining, 10)
    watch.now += claim_bounds.LOOK_FROM_START_EVERY
    assert (claimed(draining), claimed(draining), claimed(draining)) == ([10], [50], [60])


def test_claim_that_finds_too_few_jobs_lets_the_next_one_look_from_the_first(draining: Store) -> None:
    add(draining, 10)
    assert claimed(draining, limit=5) == [50, 60]
    assert claimed(draining, limit=5) == [10]


def test_jobs_of_higher_priority_are_claimed_at_once(draining: Store) -> None:
    add(draining, 10, priority=1)
    add(draining, 90, priority=2)
    assert (claimed(draining), claimed(draining), claimed(draining)) == ([90], [10], [50])


def test_jobs_of_lower_priority_are_claimed_after_the_others(draining: Store) -> None:
    add(draining, 10, priority=-1)
    add(draining, 30, priority=-1)
    assert (claimed(draining), claimed(draining), claimed(draining, limit=2)) == ([50], [60], [10, 30])


def test_claim_remembers_nothing_before_many_jobs_are_claimed(
    draining: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that claims few jobs sees an earlier one at once."""
    watch.now += claim_bounds.LOOK_FROM_START_EVERY
    monkeypatch.setattr(claim_bounds, "REMEMBER_AFTER", 1000)
    assert claimed(draining) == [50]
    add(draining, 10)
    assert claimed(draining) == [10]
