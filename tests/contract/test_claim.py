"""claim: due jobs are leased, each to one worker."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from interlock.outcome import Errored, Lost, Started
from interlock.store import Store
from tests.contract.kit import LIFECYCLES, check, claim, claimed, finish, make, many, settle, started, stored, taken, walked, ways
from tests.kit import EPOCH, Raw, SettableClock


def ids(leases: list) -> list[str]:
    return [lease.job.id for lease in leases]


# ---------------------------------------------------------------- which, and how many
def test_higher_priority_comes_first_then_the_longest_due(store: Store, clock: SettableClock) -> None:
    """Of those that are due the most important are leased, and among equals those that waited longest."""
    clock.advance(100)
    low, high_late, middle, high_early = (
        stored(store, priority=priority, run_at=EPOCH + timedelta(seconds=due)).id for priority, due in ((-1, 1), (5, 50), (0, 2), (5, 40)))
    assert set(ids(claim(store, limit=2))) == {high_early, high_late}
    assert [ids(claim(store, limit=1)) for _ in range(3)] == [[middle], [low], []]


def test_of_jobs_with_a_ttl_the_one_that_ends_first_comes_first(store: Store, clock: SettableClock) -> None:
    """Within a priority: what would be late if it waited longer goes before what is not in a hurry."""
    clock.advance(100)
    order = [stored(store, priority=priority, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id
             for priority, due, ttl in ((1, 9, 90.0), (0, 5, 40.0), (0, 1, 50.0), (0, 3, 60.0))]
    assert [ids(claim(store, limit=1)) for _ in range(4)] == [[id] for id in order]


def test_a_ttl_sets_no_job_before_a_more_important_one(store: Store) -> None:
    """Jobs with and without a TTL share one order of priority."""
    low, high, middle = (stored(store, priority=priority, ttl=ttl).id for priority, ttl in ((0, 5.0), (2, None), (1, 50.0)))
    assert [ids(claim(store, limit=1)) for _ in range(3)] == [[high], [middle], [low]]


def test_kinds_of_equal_priority_take_turns(store: Store, clock: SettableClock) -> None:
    """The kind whose longest due job waits longest goes first; none is starved by another."""
    clock.advance(100)
    due = {stored(store, kind, run_at=EPOCH + timedelta(seconds=at)).id: at for kind, at in (("mail", 1), ("chore", 2), ("mail", 3), ("chore", 4))}
    order = [due[store.claim("ann", ways("chore", "mail"), ["default"], 1)[0].job.id] for _ in range(4)]
    assert order == [1, 2, 3, 4]


def test_kinds_and_queues_share_one_order(store: Store) -> None:
    """A worker that knows several kinds and serves several queues takes the most important job of all."""
    first = stored(store, "paint", queue="b", priority=9).id
    second = stored(store, "mail", queue="a", priority=8).id
    third = stored(store, "paint", queue="a", priority=7).id
    assert [ids(store.claim("ann", ways("mail", "paint"), ["a", "b"], 1)) for _ in range(3)] == [[first], [second], [third]]


@pytest.mark.parametrize("limit", [0, 1, 7, 20, 21])
def test_never_more_than_asked(store: Store, limit: int) -> None:
    """FM_004: as many as the limit allows and there are, of all queues and with or without a TTL."""
    store.enqueue([*many(5), *many(5, ttl=60.0), *many(5, queue="other"), *many(5, queue="other", ttl=60.0)])
    leases = claim(store, limit=limit, queues=("default", "other"))
    assert len(leases) == len(set(ids(leases))) == min(limit, 20)
    assert store.counts()["standard"].get("RUNNING", 0) == len(leases)


def test_nothing_is_leased_twice(store: Store, other: Store) -> None:
    """What one worker holds, no other is given."""
    store.enqueue(many(10))
    first, second = claim(store, limit=6, by="ann"), claim(other, limit=6, by="bob")
    assert (len(first), len(second)) == (6, 4)
    assert not set(ids(first)) & set(ids(second))


def test_a_job_is_not_due_before_its_time(store: Store, clock: SettableClock) -> None:
    """A delayed job is leased at its moment and not one second before."""
    job = stored(store, delay=60)
    clock.advance(59)
    assert claim(store) == []
    clock.advance(1)
    assert ids(claim(store)) == [job.id]


def test_only_what_the_worker_knows_and_serves(store: Store) -> None:
    """Neither a kind, nor a queue, nor a state that it did not name."""
    stored(store, "chore")
    stored(store, queue="elsewhere")
    resting = settle(store, claimed(store, "paint"), Errored("busy", retryable=True, after=0)).job
    assert claim(store) == []
    assert store.claim("ann", [way for way in ways("paint") if way.state != resting.state], ["default"], 9) == []
    assert store.claim("ann", [], ["default"], 9) == []
    assert store.claim("ann", ways("mail"), [], 9) == []
    assert ids(claim(store, "paint")) == [resting.id]


# ---------------------------------------------------------------- what stands in the way
def _held(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET held_at = updated_at, held_reason = 'look', updated_at = {later} WHERE id = :id", id=id)


def _asked_to_stop(store: Store, raw: Raw, id: str) -> None:
    raw("UPDATE {jobs} SET cancel_requested_at = updated_at, updated_at = {later} WHERE id = :id", id=id)


def _cancelled(store: Store, raw: Raw, id: str) -> None:
    assert store.take([taken(store.get(id))]) == []


@pytest.mark.parametrize("obstacle", [_held, _asked_to_stop, _cancelled])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_what_is_held_or_asked_to_stop_is_left(store: Store, raw: Raw, obstacle: Callable[[Store, Raw, str], None], ttl: float | None) -> None:
    """A job that an operator holds or wants gone is not begun, with or without a TTL; the one behind it is."""
    first, second = stored(store, ttl=ttl), stored(store, ttl=ttl)
    obstacle(store, raw, first.id)
    assert ids(claim(store, limit=1)) == [second.id]
    assert claim(store) == []


def test_what_is_past_its_ttl_is_left(store: Store, clock: SettableClock) -> None:
    """A job whose time to live has ended is never begun, and does not stand in the way of the others."""
    dead, alive = stored(store, ttl=10.0, priority=9), stored(store, ttl=11.0)
    clock.advance(10)
    assert ids(claim(store, limit=1)) == [alive.id]
    assert store.get(dead.id).state == "PENDING"


def test_a_paused_queue_rests(store: Store, raw: Raw) -> None:
    """Nothing of a paused queue is leased until it goes on; other queues do not notice."""
    slow, fast = stored(store, queue="slow"), stored(store, queue="fast")
    raw("INSERT INTO {queues} (name, paused_at, paused_by) SELECT 'slow', updated_at, 'olga' FROM {jobs} WHERE id = :id", id=slow.id)
    assert ids(claim(store, queues=("slow", "fast"))) == [fast.id]
    raw("UPDATE {queues} SET paused_at = NULL")
    assert ids(claim(store, queues=("slow", "fast"))) == [slow.id]


def test_a_kinds_limit_holds(store: Store, other: Store, raw: Raw) -> None:
    """No more of a kind run at once than its limit, whoever claims; one that ends makes room."""
    raw("UPDATE {kinds} SET max_running = 3 WHERE name = 'mail'")
    store.enqueue([*many(5), *many(5, ttl=60.0, queue="other")])
    first = claim(store, limit=2, queues=("default", "other"))
    second = claim(other, limit=9, queues=("other", "default"), by="bob")
    assert (len(first), len(second), claim(store, queues=("default", "other"))) == (2, 1, [])
    stored(store, "chore")
    assert len(claim(store, "chore")) == 1
    finish(store, first[0])
    assert len(claim(store, queues=("default", "other"))) == 1


def test_a_queues_limit_holds_over_its_kinds(store: Store, raw: Raw) -> None:
    """No more of a queue run at once than its limit, all kinds counted together; other queues go on."""
    raw("INSERT INTO {queues} (name, max_running) VALUES ('narrow', 2)")
    store.enqueue([*many(3, queue="narrow"), *many(3, "chore", queue="narrow"), *many(3, queue="wide")])
    leases = store.claim("ann", ways("mail", "chore"), ["narrow", "wide"], 9)
    assert sorted(lease.job.queue for lease in leases) == ["narrow", "narrow", "wide", "wide", "wide"]
    assert store.claim("bob", ways("mail", "chore"), ["narrow", "wide"], 9) == []


def test_a_limit_of_zero_stops_a_kind(store: Store, raw: Raw) -> None:
    """Zero is a limit too."""
    raw("UPDATE {kinds} SET max_running = 0 WHERE name = 'mail'")
    stored(store)
    assert claim(store) == []


# ---------------------------------------------------------------- suspects
def suspects(raw: Raw, *jobs: str) -> None:
    """These have lost a lease."""
    for id in jobs:
        raw("UPDATE {jobs} SET lease_losses = 1, updated_at = {later} WHERE id = :id", id=id)


@pytest.mark.parametrize(("bound", "found"), [(None, 6), (0, 0), (1, 1), (4, 4), (9, 6)])
def test_no_more_suspects_than_asked(store: Store, raw: Raw, bound: int | None, found: int) -> None:
    """Of two kinds, two queues, with and without a TTL, all more important than the others; what they may not fill the others do."""
    most = [make("mail", priority=9), make("mail", priority=9, ttl=60.0), make("mail", priority=8, queue="b"), make("chore", priority=9),
            make("chore", priority=8, queue="b"), make("chore", priority=7)]
    store.enqueue([*most, *many(10), *many(10, ttl=60.0, queue="b")])
    suspects(raw, *(job.id for job in most))
    leases = store.claim("ann", ways("mail", "chore"), ["default", "b"], 10, suspects=bound)
    assert len(leases) == 10
    assert sum(lease.job.lease_losses > 0 for lease in leases) == found


def test_suspects_share_one_order_with_the_others(store: Store, raw: Raw, clock: SettableClock) -> None:
    """Higher priority first, then the longest due, whoever has lost a lease and whoever has a TTL."""
    clock.advance(100)
    order = [stored(store, kind, priority=priority, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id for kind, priority, due, ttl in (
        ("mail", 5, 40, None), ("mail", 5, 50, None), ("chore", 5, 60, None), ("mail", 0, 1, 500.0), ("mail", 0, 2, None), ("chore", 0, 3, None),
        ("mail", -1, 0, None))]
    suspects(raw, *order[::2])
    assert [ids(store.claim("ann", ways("mail", "chore"), ["default"], 1)) for _ in order] == [[id] for id in order]


def test_the_most_important_suspects_come_first(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A bound takes the first of them, of whatever kind and queue."""
    clock.advance(100)
    order = [stored(store, kind, priority=priority, queue=queue, run_at=EPOCH + timedelta(seconds=due), ttl=ttl).id for kind, priority, queue, due, ttl in (
        ("chore", 9, "b", 50, None), ("mail", 5, "a", 1, None), ("mail", 5, "b", 2, 500.0), ("chore", 5, "a", 3, None), ("mail", 5, "a", 4, 500.0))]
    suspects(raw, *order)
    taken_ = [ids(store.claim("ann", ways("mail", "chore"), ["a", "b"], 9, suspects=1)) for _ in order]
    assert taken_ == [[id] for id in order]


@pytest.mark.parametrize("obstacle", [_held, _asked_to_stop, _cancelled])
@pytest.mark.parametrize("ttl", [None, 60.0])
def test_a_suspect_that_is_held_or_asked_to_stop_is_left(store: Store, raw: Raw, obstacle: Callable[[Store, Raw, str], None], ttl: float | None) -> None:
    """As every other job."""
    first, second = stored(store, ttl=ttl), stored(store, ttl=ttl)
    suspects(raw, first.id, second.id)
    obstacle(store, raw, first.id)
    assert ids(claim(store)) == [second.id]


def test_a_suspect_is_not_due_before_its_time_nor_after_its_ttl(store: Store, raw: Raw, clock: SettableClock) -> None:
    """As every other job."""
    early, late, dead = stored(store, delay=60), stored(store, delay=60, ttl=100.0), stored(store, ttl=10.0)
    suspects(raw, early.id, late.id, dead.id)
    clock.advance(59)
    assert claim(store) == []
    clock.advance(1)
    assert set(ids(claim(store))) == {early.id, late.id}


def test_a_bound_on_suspects_holds_beside_a_kinds_limit(store: Store, raw: Raw) -> None:
    """Both bounds hold, and what one of them keeps out makes room for others."""
    raw("UPDATE {kinds} SET max_running = 3 WHERE name = 'mail'")
    first = [make(priority=priority) for priority in range(5, 10)]
    store.enqueue([*first, *many(5), *many(2, "chore")])
    suspects(raw, *(job.id for job in first))
    leases = store.claim("ann", ways("mail", "chore"), ["default"], 9, suspects=1)
    assert sorted((lease.job.kind, lease.job.lease_losses) for lease in leases) == [("chore", 0), ("chore", 0), ("mail", 0), ("mail", 0), ("mail", 1)]


@pytest.mark.parametrize("ttl", [None, 60.0])
def test_suspects_that_must_run_alone_can_be_left_out(store: Store, raw: Raw, ttl: float | None) -> None:
    """Those that have lost two leases, and those on their last try, however important they are."""
    twice, last, once = (stored(store, priority=priority, ttl=ttl) for priority in (9, 8, 7))
    plain = stored(store)
    suspects(raw, twice.id, last.id, once.id)
    raw("UPDATE {jobs} SET lease_losses = 2, updated_at = {later} WHERE id = :id", id=twice.id)
    raw("UPDATE {jobs} SET tries_left = 1, updated_at = {later} WHERE id = :id", id=last.id)
    assert ids(store.claim("ann", ways("mail"), ["default"], 9, suspects=1, alone=False)) == [once.id, plain.id]
    assert ids(store.claim("ann", ways("mail"), ["default"], 9, suspects=9, alone=False)) == []
    assert ids(store.claim("ann", ways("mail"), ["default"], 9, suspects=9)) == [twice.id, last.id]


def test_a_job_whose_holder_was_lost_is_a_suspect(store: Store, clock: SettableClock) -> None:
    """It had begun, and nobody knows what became of it."""
    lease = settle(store, started(store), Lost())
    clock.advance(1000)
    assert lease.job.lease_losses == 1
    assert store.claim("ann", ways("mail"), ["default"], 9, suspects=0) == []
    assert ids(store.claim("ann", ways("mail"), ["default"], 9, suspects=1)) == [lease.job.id]


# ---------------------------------------------------------------- what a claim writes
def test_a_claimed_job_has_its_next_attempt(store: Store, clock: SettableClock) -> None:
    """The lease carries the job as it is now; its execution begins with holder 1 and a lease that ends."""
    job = stored(store)
    clock.advance(5)
    (lease,) = claim(store, by="ann", lease=12.5)
    assert (lease.job.id, lease.job.attempt, lease.holder, lease.owner, lease.seconds) == (job.id, 1, 1, "ann", 12.5)
    assert lease.job == store.get(job.id)
    (execution,) = store.executions(job.id)
    now = EPOCH + timedelta(seconds=5)
    assert (execution.attempt, execution.holder, execution.lease_owner, execution.kind) == (1, 1, "ann", "mail")
    assert (execution.leased_at, execution.heartbeat_at, execution.lease_expires_at) == (now, now, now + timedelta(seconds=12.5))
    assert lease.job.updated_at == now


@pytest.mark.parametrize("name", list(LIFECYCLES))
def test_a_claim_walks_the_arrows_of_its_way(store: Store, name: str) -> None:
    """State, version, status and audit are those of the way, also where no `claim` is drawn."""
    kind = next(way.kind for way in ways() if way.lifecycle == name)
    way = next(way for way in ways(kind) if way.state == LIFECYCLES[name].initial)
    lease = claimed(store, kind)
    assert (lease.job.state, lease.job.phase, lease.job.version, lease.status) == (way.target, "running", len(way.path), way.status)
    assert walked(store, lease.job.id) == [(arrow.source, arrow.event, arrow.target) for arrow in way.path]
    (execution,) = store.executions(lease.job.id)
    assert (execution.status, execution.state, execution.started_at is not None) == (way.status, way.target, way.status == "IN_PROGRESS")
    check(store, lease.job.id)


def test_a_claim_that_walks_no_arrow_leaves_a_remark(store: Store) -> None:
    """Where no `claim` is drawn the state stays, and the history still says who took the job."""
    lease = claimed(store, "fetch", by="ann")
    last = store.history(lease.job.id)[-1]
    assert (last.event, last.actor, last.attempt, last.to_state) == ("claim", "ann", 1, None)
    assert last.n > 0
    assert lease.job.state == "queued"


def test_the_claim_that_ends_a_rest_writes_both_arrows(store: Store, clock: SettableClock) -> None:
    """failed --> queued --> running: two audited arrows, two versions, one attempt."""
    resting = settle(store, claimed(store, "paint"), Errored("busy", retryable=True)).job
    assert (resting.state, resting.phase, resting.version) == ("failed", "pending", 2)
    clock.advance(10)
    (lease,) = claim(store, "paint")
    assert (lease.job.state, lease.job.version, lease.job.attempt) == ("running", 4, 2)
    assert walked(store, resting.id)[2:] == [("failed", "retry", "queued"), ("queued", "claim", "running")]
    check(store, resting.id)


def test_each_kind_has_its_own_lease(store: Store) -> None:
    """A way says how long its kind is leased."""
    store.enqueue([make("mail"), make("chore")])
    leases = store.claim("ann", [*ways("mail", lease=5.0), *ways("chore", lease=50.0)], ["default"], 9)
    assert {lease.job.kind: lease.seconds for lease in leases} == {"mail": 5.0, "chore": 50.0}
    ends = {kind: store.executions(next(lease.job.id for lease in leases if lease.job.kind == kind))[0].lease_expires_at for kind in ("mail", "chore")}
    assert ends == {"mail": EPOCH + timedelta(seconds=5), "chore": EPOCH + timedelta(seconds=50)}


def test_a_started_job_comes_back_with_a_new_attempt(store: Store, clock: SettableClock) -> None:
    """After a retry the attempt has grown, the old execution stands, and the tries are fewer."""
    lease = settle(store, claimed(store, "deliver"), Started())
    settle(store, lease, Errored("busy", retryable=True))
    assert claim(store, "deliver") == []
    clock.advance(10)
    (second,) = claim(store, "deliver", by="bob")
    assert (second.job.attempt, second.holder, second.job.tries_left) == (2, 1, 2)
    assert [(each.attempt, each.status, each.lease_owner) for each in store.executions(lease.job.id)] == [(1, "ABORTED", "ann"), (2, "LEASED", "bob")]
    check(store, lease.job.id)


def test_a_job_of_another_lifecycle_is_left_alone(store: Store) -> None:
    """A kind that was declared anew on another lifecycle: its old jobs are not pinned to versions of the new one, though a state has the same name."""
    stored(store, "mail")
    foreign = [replace(way, lifecycle="state_model") for way in ways("mail")]
    assert store.claim("ann", foreign, ["default"], 10) == []
    assert len(claim(store)) == 1
