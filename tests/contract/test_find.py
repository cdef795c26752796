"""find and adjacent ids: a job is found by a prefix of its id."""

import pytest

from interlock.core.ids import shortest_prefix
from interlock.store.contract import Store
from tests.contract.kit import claimed, finish, make, many, stored
from tests.kit import SettableClock


def test_job_is_found_by_any_prefix_of_its_id(store: Store) -> None:
    """Whole, short, in capitals and without dashes."""
    id = stored(store).id
    for prefix in (id, id[:13], id[:9], id[:1], id.upper()[:14], id.replace("-", "")[:20]):
        assert store.inspect.find(prefix, 9) == [id]


def test_ambiguous_prefix_finds_its_jobs_in_order(store: Store) -> None:
    """At most as many as the limit."""
    ids = sorted(each.id for each in store.queue.enqueue(many(5)))
    assert store.inspect.find(ids[0][:8], 9) == ids
    assert store.inspect.find(ids[0][:8], 2) == ids[:2]
    assert store.inspect.find(ids[0][:8], 0) == []


@pytest.mark.parametrize("prefix", ["", "nonsense", "%", "ffffffff", "0" * 40])
def test_prefix_that_no_job_has_finds_nothing(store: Store, prefix: str) -> None:
    """Whether or not an id could begin like this."""
    stored(store)
    assert store.inspect.find(prefix, 9) == []


def test_pruned_job_is_found_by_an_unambiguous_prefix(store: Store, clock: SettableClock) -> None:
    """It is found by its history, and only once."""
    gone = finish(store, claimed(store)).job.id
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=1.0, limit=9) == 1
    assert store.inspect.find(gone[:13], 9) == [gone]
    kept = stored(store).id
    assert store.inspect.find(kept[:1], 9) == [kept]


def test_neighbours_are_the_next_ids_in_order(store: Store) -> None:
    """None at the ends; also for an id that no job has."""
    ids = sorted(each.id for each in store.queue.enqueue(many(3)))
    later = make().id
    assert store.inspect.adjacent_ids([*ids, later]) == {
        ids[0]: (None, ids[1]),
        ids[1]: (ids[0], ids[2]),
        ids[2]: (ids[1], None),
        later: (ids[2], None),
    }
    assert store.inspect.adjacent_ids([]) == {}


def test_shortest_prefix_finds_exactly_its_job(store: Store) -> None:
    """For jobs that were enqueued together, of which only some are shown."""
    ids = [each.id for each in store.queue.enqueue(many(50))][:10]
    for id, neighbours in store.inspect.adjacent_ids(ids).items():
        assert store.inspect.find(shortest_prefix(id, neighbours), 2) == [id]
