"""claim: due jobs are leased, each to one worker."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.core.outcome import Errored, Started
from interlock.store.contract import Store
from tests.contract.kit import (
    LIFECYCLES,
    check,
    claim,
    claim_rules,
    claimed,
    finish,
    limit,
    make,
    many,
    pause,
    resume,
    settle,
    stored,
    taken,
    walked,
)
from tests.kit import EPOCH, Raw, SettableClock


def ids(leases: list) -> list[str]:
    return [lease.job.id for lease in leases]


# ---------------------------------------------------------------- order and limits
def test_higher_priority_comes_first_then_the_longest_due(store: Store, clock: SettableClock) -> None:
    """Among jobs of one priority, the one that has been due longest is leased first."""
    clock.advance(100)
    low, high_late, middle, high_early = (
        stored(store, priority=priority, run_at=EPOCH + timedelta(seconds=due)).id
        for priority, due in ((-1, 1), (5, 50), (0, 2), (5, 40))
    )
    assert set(ids(claim(store, limit=2))) == {high_early, high_late}
    assert [ids(claim(store, limit=1)) for _ in range(3)] == [[middle], [low], []]


def test_job_whose_ttl_ends_first_is_claimed_first(store: Store, clock: SettableClock) -> None:
    """Within a priority, the jobs that would expire first are claimed first."""
    clock.advance(100)
    order = [
        stored(store, priority=priority, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id
        for priority, due, ttl in ((1, 9, 90.0), (0, 5, 40.0), (0, 1, 50.0), (0, 3, 60.0))
    ]
    assert [ids(claim(store, limit=1)) for _ in range(4)] == [[id] for id in order]


def test_jobs_of_the_two_extreme_priorities_are_claimed(store: Store) -> None:
    """The first and the last priority that `enqueue` accepts."""
    ids = [stored(store, priority=priority).id for priority in (-(2**31), 0, 2**31 - 1)]
    assert [claim(store, limit=1)[0].job.id for _ in ids] == ids[::-1]


def test_ttl_does_not_override_priority(store: Store) -> None:
    """Jobs with and without a TTL share one order of priority."""
    low, high, middle = (
        stored(store, priority=priority, ttl=ttl).id for priority, ttl in ((0, 5.0), (2, None), (1, 50.0))
    )
    assert [ids(claim(store, limit=1)) for _ in range(3)] == [[high], [middle], [low]]


def test_kinds_of_equal_priority_take_turns(store: Store, clock: SettableClock) -> None:
    """The kind whose longest due job has waited longest goes first, so no kind starves another."""
    clock.advance(100)
    due = {
        stored(store, kind, run_at=EPOCH + timedelta(seconds=at)).id: at
        for kind, at in (("mail", 1), ("chore", 2), ("mail", 3), ("chore", 4))
    }
    order = [due[store.queue.claim("ann", claim_rules("chore", "mail"), ["default"], 1)[0].job.id] for _ in range(4)]
    assert order == [1, 2, 3, 4]


def test_kinds_and_queues_share_one_order(store: Store) -> None:
    """A worker that knows several kinds and serves several queues claims the job with the highest priority of all."""
    first = stored(store, "paint", queue="b", priority=9).id
    second = stored(store, "mail", queue="a", priority=8).id
    third = stored(store, "paint", queue="a", priority=7).id
    assert [ids(store.queue.claim("ann", claim_rules("mail", "paint"), ["a", "b"], 1)) for _ in range(3)] == [
        [first],
        [second],
        [third],
    ]


@pytest.mark.parametrize("limit", [0, 1, 7, 20, 21])
def test_claim_returns_at_most_its_limit(store: Store, limit: int) -> None:
    """FM_004: a claim returns as many jobs as there are, up to the limit, from all queues, with or without a TTL."""
    store.queue.enqueue([*many(5), *many(5, ttl=60.0), *many(5, queue="other"), *many(5, queue="other", ttl=60.0)])
    leases = claim(store, limit=limit, queues=("default", "other"))
    assert len(leases) == len(set(ids(leases))) == min(limit, 20)
    assert store.inspect.counts()["standard"].get("RUNNING", 0) == len(leases)


def test_leased_job_is_not_leased_again(store: Store, other: Store) -> None:
    """A job leased by one worker is given to no other."""
    store.queue.enqueue(many(10))
    first, second = claim(store, limit=6, by="ann"), claim(other, limit=6, by="bob")
    assert (len(first), len(second)) == (6, 4)
    assert not set(ids(first)) & set(ids(second))


def test_delayed_job_is_not_claimed_early(store: Store, clock: SettableClock) -> None:
    """The job is leased when its delay has passed, and not one second before."""
    job = stored(store, delay=60)
    clock.advance(59)
    assert claim(store) == []
    clock.advance(1)
    assert ids(claim(store)) == [job.id]


def test_claim_returns_only_known_kinds_queues_and_states(store: Store) -> None:
    """The claim returns no kind, queue or state that the worker did not name."""
    stored(store, "chore")
    stored(store, queue="elsewhere")
    resting = settle(store, claimed(store, "paint"), Errored("busy", retryable=True, after=0)).job
    assert claim(store) == []
    assert (
        store.queue.claim("ann", [rule for rule in claim_rules("paint") if rule.state != resting.state], ["default"], 9)
        == []
    )
    assert store.queue.claim("ann", [], ["default"], 9) == []
    assert store.queue.claim("ann", claim_rules("mail"), [], 9) == []
    assert ids(claim(store, "paint")) == [resting.id]


# ---------------------------------------------------------------- jobs that cannot be claimed
def _held(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET held_at = updated_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=id)


def _asked_to_stop(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET cancel_requested_at = updated_at, updated_at = {later} WHERE id = :id", id=id)


def _cancelled(store: Store, raw: Raw, id: str) -> None:
    assert store.transitions.take([taken(store.inspect.get(id))]) == []


@pytest.mark.parametrize("obstacle", [_held, _asked_to_stop, _cancelled])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_held_or_cancel_requested_job_is_not_claimed(
    store: Store, raw: Raw, obstacle: Callable[[Store, Raw, str], None], ttl: float | None
) -> None:
    """A job that is held, cancelled or has a cancel request is skipped, with or without a TTL; the next job is claimed."""
    first, second = stored(store, ttl=ttl), stored(store, ttl=ttl)
    obstacle(store, raw, first.id)
    assert ids(claim(store, limit=1)) == [second.id]
    assert claim(store) == []


def test_expired_job_is_not_claimed(store: Store, clock: SettableClock) -> None:
    """A job whose TTL has ended is never started, and does not block the others."""
    dead, alive = stored(store, ttl=10.0, priority=9), stored(store, ttl=11.0)
    clock.advance(10)
    assert ids(claim(store, limit=1)) == [alive.id]
    assert store.inspect.get(dead.id).state == "PENDING"


def test_jobs_of_a_paused_queue_are_not_claimed(store: Store) -> None:
    """No job of a paused queue is leased until it is resumed; other queues are not affected."""
    slow, fast = stored(store, queue="slow"), stored(store, queue="fast")
    pause(store, "queue", "slow")
    assert ids(claim(store, queues=("slow", "fast"))) == [fast.id]
    resume(store, "queue", "slow")
    assert ids(claim(store, queues=("slow", "fast"))) == [slow.id]


def test_limit_of_a_kind_applies_to_all_workers(store: Store, other: Store) -> None:
    """Jobs of a kind never exceed its limit, whichever worker claims; a job that ends frees a place."""
    limit(store, "kind", "mail", max_running=3)
    store.queue.enqueue([*many(5), *many(5, ttl=60.0, queue="other")])
    first = claim(store, limit=2, queues=("default", "other"))
    second = claim(other, limit=9, queues=("other", "default"), by="bob")
    assert (len(first), len(second), claim(store, queues=("default", "other"))) == (2, 1, [])
    stored(store, "chore")
    assert len(claim(store, "chore")) == 1
    finish(store, first[0])
    assert len(claim(store, queues=("default", "other"))) == 1


def test_limit_of_a_queue_applies_to_all_its_kinds(store: Store) -> None:
    """Jobs of a queue never exceed its limit, all kinds together; other queues are not affected."""
    limit(store, "queue", "narrow", max_running=2)
    store.queue.enqueue([*many(3, queue="narrow"), *many(3, "chore", queue="narrow"), *many(3, queue="wide")])
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["narrow", "wide"], 9)
    assert sorted(lease.job.queue for lease in leases) == ["narrow", "narrow", "wide", "wide", "wide"]
    assert store.queue.claim("bob", claim_rules("mail", "chore"), ["narrow", "wide"], 9) == []


def test_limit_of_zero_stops_a_kind(store: Store) -> None:
    """Zero is a valid limit."""
    limit(store, "kind", "mail", max_running=0)
    stored(store)
    assert claim(store) == []


# ---------------------------------------------------------------- what a claim writes
def test_claim_creates_the_next_execution(store: Store, clock: SettableClock) -> None:
    """The lease has the job as it is now; its execution starts with holder 1 and an expiry."""
    job = stored(store)
    clock.advance(5)
    (lease,) = claim(store, by="ann", lease=12.5)
    assert (lease.job.id, lease.job.attempt, lease.holder, lease.owner, lease.seconds) == (job.id, 1, 1, "ann", 12.5)
    assert lease.job == store.inspect.get(job.id)
    (execution,) = store.inspect.executions(job.id)
    now = EPOCH + timedelta(seconds=5)
    assert (execution.attempt, execution.holder, execution.lease_owner, execution.kind) == (1, 1, "ann", "mail")
    assert (execution.leased_at, execution.heartbeat_at, execution.lease_expires_at) == (
        now,
        now,
        now + timedelta(seconds=12.5),
    )
    assert lease.job.updated_at == now


@pytest.mark.parametrize("name", list(LIFECYCLES))
def test_claim_records_the_transitions_of_its_rule(store: Store, name: str) -> None:
    """State, version, status and audit are those of the claim rule, also if the lifecycle has no `claim`."""
    kind = next(rule.kind for rule in claim_rules() if rule.lifecycle == name)
    rule = next(rule for rule in claim_rules(kind) if rule.state == LIFECYCLES[name].initial)
    lease = claimed(store, kind)
    assert (lease.job.state, lease.job.phase, lease.job.version, lease.status) == (
        rule.target,
        "running",
        len(rule.path),
        rule.status,
    )
    assert walked(store, lease.job.id) == [(arrow.source, arrow.event, arrow.target) for arrow in rule.path]
    (execution,) = store.inspect.executions(lease.job.id)
    assert (execution.status, execution.state, execution.started_at is not None) == (
        rule.status,
        rule.target,
        rule.status == "IN_PROGRESS",
    )
    check(store, lease.job.id)


def test_claim_without_a_transition_adds_a_remark(store: Store) -> None:
    """If the lifecycle has no `claim`, the state stays, and the history still says which worker claimed the job."""
    lease = claimed(store, "fetch", by="ann")
    last = store.inspect.history(lease.job.id)[-1]
    assert (last.event, last.actor, last.attempt, last.to_state) == ("claim", "ann", 1, None)
    assert last.n > 0
    assert lease.job.state == "queued"


def test_claim_of_a_resting_job_records_both_transitions(store: Store, clock: SettableClock) -> None:
    """failed --> queued --> running: two audit entries, two versions, one attempt."""
    resting = settle(store, claimed(store, "paint"), Errored("busy", retryable=True)).job
    assert (resting.state, resting.phase, resting.version) == ("failed", "pending", 2)
    clock.advance(10)
    (lease,) = claim(store, "paint")
    assert (lease.job.state, lease.job.version, lease.job.attempt) == ("running", 4, 2)
    assert walked(store, resting.id)[2:] == [("failed", "retry", "queued"), ("queued", "claim", "running")]
    check(store, resting.id)


def test_each_kind_has_its_own_lease_time(store: Store) -> None:
    """The claim rule says how long its kind is leased."""
    store.queue.enqueue([make("mail"), make("chore")])
    leases = store.queue.claim(
        "ann", [*claim_rules("mail", lease=5.0), *claim_rules("chore", lease=50.0)], ["default"], 9
    )
    assert {lease.job.kind: lease.seconds for lease in leases} == {"mail": 5.0, "chore": 50.0}
    ends = {
        kind: store.inspect.executions(next(lease.job.id for lease in leases if lease.job.kind == kind))[
            0
        ].lease_expires_at
        for kind in ("mail", "chore")
    }
    assert ends == {"mail": EPOCH + timedelta(seconds=5), "chore": EPOCH + timedelta(seconds=50)}


def test_retried_job_is_claimed_with_a_new_attempt(store: Store, clock: SettableClock) -> None:
    """After a retry the attempt has grown, the old execution is kept, and the job has one try less."""
    lease = settle(store, claimed(store, "deliver"), Started())
    settle(store, lease, Errored("busy", retryable=True))
    assert claim(store, "deliver") == []
    clock.advance(10)
    (second,) = claim(store, "deliver", by="bob")
    assert (second.job.attempt, second.holder, second.job.tries_left) == (2, 1, 2)
    assert [(each.attempt, each.status, each.lease_owner) for each in store.inspect.executions(lease.job.id)] == [
        (1, "ABORTED", "ann"),
        (2, "LEASED", "bob"),
    ]
    check(store, lease.job.id)


def test_job_of_another_lifecycle_is_not_claimed(store: Store) -> None:
    """A kind was declared again with another lifecycle: its old jobs are not pinned to versions of the new lifecycle,
    even if a state has the same name.
    """
    stored(store, "mail")
    foreign = [replace(rule, lifecycle="state_model") for rule in claim_rules("mail")]
    assert store.queue.claim("ann", foreign, ["default"], 10) == []
    assert len(claim(store)) == 1
