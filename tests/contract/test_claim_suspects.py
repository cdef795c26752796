"""claim: jobs that lost a lease are claimed separately, up to a limit."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from interlock.core.outcome import Lost
from interlock.store.contract import Store
from tests.contract.kit import claim, claim_rules, limit, make, many, settle, started, stored
from tests.contract.test_claim import _asked_to_stop, _cancelled, _held, ids
from tests.kit import EPOCH, Raw, SettableClock


# ---------------------------------------------------------------- suspects
def suspects(raw: Raw, *jobs: str) -> None:
    """Mark these jobs as having lost a lease."""
    for id in jobs:
        raw("UPDATE {jobs} SET lease_losses = 1, updated_at = {later} WHERE id = :id", id=id)


@pytest.mark.parametrize(("bound", "found"), [(None, 6), (0, 0), (1, 1), (4, 4), (9, 6)])
def test_claim_returns_at_most_its_limit_of_suspects(store: Store, raw: Raw, bound: int | None, found: int) -> None:
    """The suspects are of two kinds and two queues, with and without a TTL, and have the highest priority; other jobs
    fill the rest of the limit.
    """
    most = [
        make("mail", priority=9),
        make("mail", priority=9, ttl=60.0),
        make("mail", priority=8, queue="b"),
        make("chore", priority=9),
        make("chore", priority=8, queue="b"),
        make("chore", priority=7),
    ]
    store.queue.enqueue([*most, *many(10), *many(10, ttl=60.0, queue="b")])
    suspects(raw, *(job.id for job in most))
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["default", "b"], 10, suspects=bound)
    assert len(leases) == 10
    assert sum(lease.job.lease_losses > 0 for lease in leases) == found


def test_suspects_and_other_jobs_share_one_order(store: Store, raw: Raw, clock: SettableClock) -> None:
    """Higher priority first, then the longest due, whether or not a job has lost a lease or has a TTL."""
    clock.advance(100)
    order = [
        stored(store, kind, priority=priority, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id
        for kind, priority, due, ttl in (
            ("mail", 5, 40, None),
            ("mail", 5, 50, None),
            ("chore", 5, 60, None),
            ("mail", 0, 1, 500.0),
            ("mail", 0, 2, None),
            ("chore", 0, 3, None),
            ("mail", -1, 0, None),
        )
    ]
    suspects(raw, *order[::2])
    assert [ids(store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 1)) for _ in order] == [
        [id] for id in order
    ]


def test_suspects_with_the_highest_priority_are_claimed_first(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A limit takes the first suspects, of any kind and queue."""
    clock.advance(100)
    order = [
        stored(store, kind, priority=priority, queue=queue, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id
        for kind, priority, queue, due, ttl in (
            ("chore", 9, "b", 50, None),
            ("mail", 5, "a", 1, None),
            ("mail", 5, "b", 2, 500.0),
            ("chore", 5, "a", 3, None),
            ("mail", 5, "a", 4, 500.0),
        )
    ]
    suspects(raw, *order)
    taken_ = [ids(store.queue.claim("ann", claim_rules("mail", "chore"), ["a", "b"], 9, suspects=1)) for _ in order]
    assert taken_ == [[id] for id in order]


@pytest.mark.parametrize("obstacle", [_held, _asked_to_stop, _cancelled])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_held_or_cancel_requested_suspect_is_not_claimed(
    store: Store, raw: Raw, obstacle: Callable[[Store, Raw, str], None], ttl: float | None
) -> None:
    """The same rules apply as for other jobs."""
    first, second = stored(store, ttl=ttl), stored(store, ttl=ttl)
    suspects(raw, first.id, second.id)
    obstacle(store, raw, first.id)
    assert ids(claim(store)) == [second.id]


def test_delayed_or_expired_suspect_is_not_claimed(store: Store, raw: Raw, clock: SettableClock) -> None:
    """The same rules apply as for other jobs."""
    early, late, dead = stored(store, delay=60), stored(store, delay=60, ttl=100.0), stored(store, ttl=10.0)
    suspects(raw, early.id, late.id, dead.id)
    clock.advance(59)
    assert claim(store) == []
    clock.advance(1)
    assert set(ids(claim(store))) == {early.id, late.id}


def test_limits_on_suspects_and_on_kinds_apply_together(store: Store, raw: Raw) -> None:
    """Both limits apply, and other jobs fill the places that they leave."""
    limit(store, "kind", "mail", max_running=3)
    first = [make(priority=priority) for priority in range(5, 10)]
    store.queue.enqueue([*first, *many(5), *many(2, "chore")])
    suspects(raw, *(job.id for job in first))
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 9, suspects=1)
    assert sorted((lease.job.kind, lease.job.lease_losses) for lease in leases) == [
        ("chore", 0),
        ("chore", 0),
        ("mail", 0),
        ("mail", 0),
        ("mail", 1),
    ]


@pytest.mark.parametrize("ttl", [None, 60.0])
def test_claim_can_leave_out_suspects_that_must_run_alone(store: Store, raw: Raw, ttl: float | None) -> None:
    """Jobs that have lost two leases, and suspects on their last try, whatever their priority."""
    twice, last, once = (stored(store, priority=priority, ttl=ttl) for priority in (9, 8, 7))
    plain = stored(store)
    suspects(raw, twice.id, last.id, once.id)
    raw("UPDATE {jobs} SET lease_losses = 2, updated_at = {later} WHERE id = :id", id=twice.id)
    raw("UPDATE {jobs} SET tries_left = 1, updated_at = {later} WHERE id = :id", id=last.id)
    assert ids(store.queue.claim("ann", claim_rules("mail"), ["default"], 9, suspects=1, alone=False)) == [
        once.id,
        plain.id,
    ]
    assert ids(store.queue.claim("ann", claim_rules("mail"), ["default"], 9, suspects=9, alone=False)) == []
    assert ids(store.queue.claim("ann", claim_rules("mail"), ["default"], 9, suspects=9)) == [twice.id, last.id]


def test_job_that_lost_its_lease_is_a_suspect(store: Store, clock: SettableClock) -> None:
    """Its attempt had started, and its outcome is unknown."""
    lease = settle(store, started(store), Lost())
    clock.advance(1000)
    assert lease.job.lease_losses == 1
    assert store.queue.claim("ann", claim_rules("mail"), ["default"], 9, suspects=0) == []
    assert ids(store.queue.claim("ann", claim_rules("mail"), ["default"], 9, suspects=1)) == [lease.job.id]
