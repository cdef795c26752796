"""FM_024: a stale holder changes nothing, whatever it sends."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    Handed,
    Held,
    Lost,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
)
from interlock.store.contract import Store
from interlock.store.types import Heartbeat, Lease
from tests.contract.kit import again, check, claim, claimed, close, commit, decided, fail, finish, make, settle, taken
from tests.kit import Raw, SettableClock

OUTCOMES: list[Outcome] = [
    Started(),
    Advanced("RUNNING"),
    Returned('"late"', boundary=False),
    Returned('"late"', boundary=True),
    Errored("late", retryable=True),
    Errored("late", retryable=False),
    FailedFinally("late"),
    Rejected("late"),
    Lost(),
    Requeued("late"),
    Snoozed(5.0, "late"),
    CancelRequested("late", "olga"),
    Handed("late", 5.0),
    Held("late"),
]
PAST_COMMIT: list[Outcome] = [Finished(), Finished("gave up")]


# ---------------------------------------------------------------- what has happened to the job meanwhile
def adopted(store: Store, clock: SettableClock, lease: Lease, *, by: str = "bob") -> Lease:
    clock.advance(31)
    (new,) = store.leases.adopt(by, [lease.job.kind], 30.0, 9)
    assert new.job.id == lease.job.id
    return new


def adopted_by_itself(store: Store, clock: SettableClock, lease: Lease) -> None:
    adopted(store, clock, lease, by=lease.owner)


def waiting_again(store: Store, clock: SettableClock, lease: Lease) -> None:
    settle(store, adopted(store, clock, lease), Lost())


def leased_again(store: Store, clock: SettableClock, lease: Lease) -> None:
    waiting_again(store, clock, lease)
    claim(store, lease.job.kind, by=lease.owner)


def leased_a_third_time(store: Store, clock: SettableClock, lease: Lease) -> None:
    leased_again(store, clock, lease)
    waiting_again(store, clock, again(store, replace(lease, job=store.inspect.get(lease.job.id), holder=1)))
    claim(store, lease.job.kind, by="cho")


def committed(store: Store, clock: SettableClock, lease: Lease) -> None:
    commit(store, adopted(store, clock, lease), '"new"')


def committed_by_another_attempt(store: Store, clock: SettableClock, lease: Lease) -> None:
    waiting_again(store, clock, lease)
    commit(store, claim(store, lease.job.kind, by="bob")[0], '"new"')


def done(store: Store, clock: SettableClock, lease: Lease) -> None:
    finish(store, adopted(store, clock, lease), '"new"')


def done_by_another_attempt(store: Store, clock: SettableClock, lease: Lease) -> None:
    committed_by_another_attempt(store, clock, lease)
    clock.advance(31)
    close(store, store.leases.adopt("cho", [lease.job.kind], 30.0, 9)[0])


def failed(store: Store, clock: SettableClock, lease: Lease) -> None:
    fail(store, adopted(store, clock, lease), "new")


def cancelled(store: Store, clock: SettableClock, lease: Lease) -> None:
    waiting_again(store, clock, lease)
    assert store.transitions.take([taken(store.inspect.get(lease.job.id))]) == []


def cancelled_in_hand(store: Store, clock: SettableClock, lease: Lease) -> None:
    settle(store, adopted(store, clock, lease), CancelRequested("new", "olga"))


def held(store: Store, clock: SettableClock, lease: Lease) -> None:
    settle(store, adopted(store, clock, lease), Held("new"))


def outside(store: Store, clock: SettableClock, lease: Lease) -> None:
    settle(store, adopted(store, clock, lease), Handed("new", 600.0))


def gone(store: Store, clock: SettableClock, lease: Lease) -> None:
    done(store, clock, lease)
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=1.0, limit=9) == 1


Newer = Callable[[Store, SettableClock, Lease], object]
NEWER: list[Newer] = [
    adopted,
    adopted_by_itself,
    waiting_again,
    leased_again,
    leased_a_third_time,
    committed,
    committed_by_another_attempt,
    done,
    done_by_another_attempt,
    failed,
    cancelled,
    cancelled_in_hand,
    held,
    outside,
    gone,
]


def says_everything(store: Store, raw: Raw, lease: Lease, outcomes: list[Outcome]) -> int:
    """Send every outcome with this stale lease; each is refused, and the database does not change.

    Return the number of calls.
    """
    before, cases = raw.dump(), 0

    def unchanged(what: object) -> None:
        assert raw.dump() == before, what

    def body(tx: object, job: object) -> None:
        pytest.fail("the function of a refused commit was called")

    for outcome in outcomes:
        move = decided(lease, outcome)
        (refusal,) = store.transitions.move([move])
        assert (refusal.job_id, refusal.error) == (lease.job.id, None), outcome
        unchanged(outcome)
        assert store.transitions.commit(move, body) is not None, outcome
        unchanged(("commit", outcome))
        cases += 2
    renewal = store.leases.renew([Heartbeat(lease.fence, 3600.0, progress='[1,2,"late"]')])
    assert (renewal.renewed, renewal.lost, renewal.busy) == ([], [lease.fence], [])
    unchanged("renew")
    return cases + 1


@pytest.mark.parametrize("newer", NEWER)
def test_stale_holder_changes_nothing(store: Store, raw: Raw, clock: SettableClock, newer: Newer) -> None:
    """Every outcome, in its own transaction and with a commit function, and a renewal, against each newer state."""
    lease = claimed(store, by="ann", lease=30.0, tries=9)
    newer(store, clock, lease)
    assert says_everything(store, raw, lease, OUTCOMES) == 29
    if newer is not gone:
        check(store, lease.job.id)


@pytest.mark.parametrize("newer", [adopted, adopted_by_itself, done, gone])
def test_stale_finish_changes_nothing(store: Store, raw: Raw, clock: SettableClock, newer: Newer) -> None:
    """After the commit boundary too: a stale worker's finish is refused once another process has adopted the job."""
    lease = commit(store, claimed(store, by="ann", lease=30.0))
    new = adopted(store, clock, lease, by="ann" if newer is adopted_by_itself else "bob")
    if newer in (done, gone):
        close(store, new)
    if newer is gone:
        clock.advance(100)
        assert store.retention.prune(phase="succeeded", age=1.0, limit=9) == 1
    says_everything(store, raw, lease, PAST_COMMIT)


@pytest.mark.parametrize("newer", [adopted, waiting_again, leased_again, failed])
def test_stale_holder_that_never_started_changes_nothing(
    store: Store, raw: Raw, clock: SettableClock, newer: Newer
) -> None:
    """A worker froze between claim and start: its job was taken over, and its start is refused."""
    lease = claimed(store, "deliver", by="ann", lease=30.0)
    assert lease.status == "LEASED"
    newer(store, clock, lease)
    says_everything(
        store, raw, lease, [Started(), FailedFinally("late"), Lost(), Requeued("late"), Snoozed(5.0, "late")]
    )


def test_stale_holder_is_refused_if_a_claim_changes_no_state(store: Store, raw: Raw, clock: SettableClock) -> None:
    """If a claim changes neither state nor version, only attempt and holder distinguish the old holder from the new
    one.
    """
    lease = claimed(store, "fetch", by="ann", lease=30.0, tries=9)
    waiting_again(store, clock, lease)
    (new,) = claim(store, "fetch", by="ann")
    assert (new.job.state, new.job.version) == (lease.job.state, lease.job.version)
    says_everything(
        store, raw, lease, [Started(), FailedFinally("late"), Lost(), Requeued("late"), CancelRequested("late", "olga")]
    )


def test_stale_take_changes_nothing(store: Store, raw: Raw, clock: SettableClock) -> None:
    """A take that was decided before a claim does not end the job after it."""
    store.queue.enqueue([make(tries=9)])
    take = taken(store.inspect.jobs()[0])

    def refused() -> None:
        before = raw.dump()
        assert len(store.transitions.take([take])) == 1
        assert store.transitions.commit(take, lambda tx, job: pytest.fail("called")) is not None
        assert raw.dump() == before

    (lease,) = claim(store, by="ann", lease=30.0)
    refused()
    waiting_again(store, clock, lease)
    refused()
    claim(store, by="bob")
    refused()
