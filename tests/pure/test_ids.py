"""Ids increase, whatever the clock does."""

import copy
import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.ids import Ids, id_bounds, shortest_prefix, uuid7


class Ticks:
    """A clock that returns the given times, then repeats the last one."""

    def __init__(self, milliseconds: list[int]) -> None:
        self._left = list(milliseconds)
        self._last = milliseconds[0]

    def __call__(self) -> int:
        if self._left:
            self._last = self._left.pop(0)
        return self._last * 1_000_000


def test_id_is_a_uuid_of_version_7_that_starts_with_the_time() -> None:
    """Other tools can read it."""
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(uuid7())
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    # Earlier tests that made many ids at once may have used up the next milliseconds.
    assert before <= made.int >> 80 <= after + 1000
    assert str(made) == str(uuid.UUID(str(made)))


def test_ids_increase_within_one_millisecond() -> None:
    """If the counter overflows, ids use the next millisecond."""
    ids = Ids(clock=Ticks([1000]))
    made = [ids.uuid7() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_many_ids_at_once_increase_when_a_millisecond_has_no_more_ids() -> None:
    ids = Ids(clock=Ticks([1000]))
    made = [*ids.new_ids(10_000), ids.uuid7()]
    assert made == sorted(set(made))
    assert len(made) == 10_001
    assert all(uuid.UUID(each).version == 7 and str(uuid.UUID(each)) == each for each in made)


@given(st.lists(st.integers(1, 2**47), min_size=1, max_size=50))
def test_ids_increase_whatever_the_clock_does(milliseconds: list[int]) -> None:
    """If it goes back, far ahead, or stands still."""
    ids = Ids(clock=Ticks(milliseconds))
    made = [ids.uuid7() for _ in range(len(milliseconds) + 5)]
    assert made == sorted(set(made))
    assert all(uuid.UUID(each).version == 7 for each in made)


def test_ids_are_unique_across_threads() -> None:
    """Each thread sees its own ids increase."""
    lists: list[list[str]] = [[] for _ in range(8)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(uuid7() for _ in range(2000))) for mine in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in lists)
    assert len({each for mine in lists for each in mine}) == 16_000


def test_processes_make_different_ids_in_the_same_millisecond() -> None:
    """The remaining bits are random."""
    one, two = Ids(clock=Ticks([5])), Ids(clock=Ticks([5]))
    assert not {one.uuid7() for _ in range(1000)} & {two.uuid7() for _ in range(1000)}


def test_forked_child_does_not_wait_for_its_parents_lock() -> None:
    """The thread that held the lock does not exist in the child."""
    ids = Ids()
    ids._lock.acquire()
    ids.after_fork()
    assert ids.uuid7()


def test_forked_child_makes_ids_that_its_parent_does_not_make() -> None:
    """The child inherits the random numbers that its parent would use next."""
    ids = Ids(clock=Ticks([5]))
    ids.uuid7()
    child = copy.deepcopy({"noise": ids._noise, "next": ids._next, "ms": ids._ms})
    parents = {ids.uuid7() for _ in range(10)}
    ids._noise, ids._next, ids._ms = child["noise"], child["next"], child["ms"]
    ids.after_fork()
    assert parents.isdisjoint(ids.uuid7() for _ in range(10))


# ---------------------------------------------------------------- prefixes
@given(st.integers(1, 36), st.booleans())
def test_bounds_of_a_prefix_include_its_id(length: int, upper: bool) -> None:
    """With and without dashes, and in capitals."""
    id = uuid7()
    for prefix in (id[:length], id.replace("-", "")[:length]):
        bounds = id_bounds(prefix.upper() if upper else prefix)
        assert bounds is not None
        assert bounds[0] <= id <= bounds[1]


@pytest.mark.parametrize("prefix", ["", "-", "nonsense", "01g", "0" * 33, "01%", "ß"])
def test_invalid_prefix_has_no_bounds(prefix: str) -> None:
    """No search is needed."""
    assert id_bounds(prefix) is None


def test_shortest_prefix_is_unambiguous() -> None:
    """For ids that were made together; it never ends with a dash, and it covers at least the millisecond."""
    ids = sorted(uuid7() for _ in range(2000))
    for before, id, after in zip([None, *ids[:-1]], ids, [*ids[1:], None], strict=True):
        prefix = shortest_prefix(id, (before, after))
        assert [each for each in ids if each.startswith(prefix)] == [id]
        assert 13 <= len(prefix) <= 19
        assert prefix[-1] != "-"


def test_shortest_prefix_of_a_single_id_is_its_millisecond() -> None:
    """Jobs of later milliseconds do not make it ambiguous."""
    id, before, after = (
        f"019a94b1-7c3e-{rest}"
        for rest in ("7a3f-8000-000000000000", "6fff-8000-000000000000", "7a3f-8000-000000000001")
    )
    assert shortest_prefix(id, (None, None)) == "019a94b1-7c3e"
    assert shortest_prefix(id, (before, None)) == "019a94b1-7c3e-7"
    assert shortest_prefix(id, (before, after)) == id
