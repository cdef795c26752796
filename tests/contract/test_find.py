"""find, neighbours: a job by the beginning of its id, and how much of an id that takes."""

import pytest

from interlock.ids import shortest_prefix
from interlock.store import Store
from tests.contract.kit import claimed, finish, make, many, stored
from tests.kit import SettableClock


def test_job_is_found_by_any_prefix_of_its_id(store: Store) -> None:
    """Whole, short, in capitals, and without dashes."""
    id = stored(store).id
    for prefix in (id, id[:13], id[:9], id[:1], id.upper()[:14], id.replace("-", "")[:20]):
        assert store.find(prefix, 9) == [id]


def test_ambiguous_prefix_finds_its_jobs_in_order(store: Store) -> None:
    """And no more of them than asked."""
    ids = sorted(each.id for each in store.enqueue(many(5)))
    assert store.find(ids[0][:8], 9) == ids
    assert store.find(ids[0][:8], 2) == ids[:2]
    assert store.find(ids[0][:8], 0) == []


@pytest.mark.parametrize("prefix", ["", "nonsense", "%", "ffffffff", "0" * 40])
def test_prefix_that_no_job_has_finds_nothing(store: Store, prefix: str) -> None:
    """Whether an id could begin so or not."""
    stored(store)
    assert store.find(prefix, 9) == []


def test_pruned_job_is_found_where_no_other_begins_so(store: Store, clock: SettableClock) -> None:
    """By its history, once."""
    gone = finish(store, claimed(store)).job.id
    clock.advance(100)
    assert store.prune(phase="succeeded", age=1.0, limit=9) == 1
    assert store.find(gone[:13], 9) == [gone]
    kept = stored(store).id
    assert store.find(kept[:1], 9) == [kept]


def test_neighbours_are_the_next_ids_in_order(store: Store) -> None:
    """None at the ends; also for an id that no job has."""
    ids = sorted(each.id for each in store.enqueue(many(3)))
    later = make().id
    assert store.neighbours([*ids, later]) == {
        ids[0]: (None, ids[1]), ids[1]: (ids[0], ids[2]), ids[2]: (ids[1], None), later: (ids[2], None)}
    assert store.neighbours([]) == {}


def test_shortest_prefix_finds_exactly_its_job(store: Store) -> None:
    """For jobs that were enqueued together, of which the database knows more than are shown."""
    ids = [each.id for each in store.enqueue(many(50))][:10]
    for id, neighbours in store.neighbours(ids).items():
        assert store.find(shortest_prefix(id, neighbours), 2) == [id]
