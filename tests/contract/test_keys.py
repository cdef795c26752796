"""Keys: one job per idempotency key, one active job per unique key."""

import pytest

from interlock.core.outcome import Errored, FailedFinally
from interlock.errors import KeyReused
from interlock.store.contract import Store
from tests.contract.kit import claim, claimed, commit, finish, lose, make, settle, started, stored, taken
from tests.kit import EPOCH, Raw, SettableClock


def test_same_key_and_payload_return_the_same_job(store: Store, other: Store, raw: Raw) -> None:
    """FM_001: the second call stores nothing and returns the first job's id, also from another process."""
    (first,) = store.queue.enqueue([make(idempotency_key="k", payload='{"a":1}')])
    before = raw.dump()
    (second,) = other.queue.enqueue([make(idempotency_key="k", payload='{"a":1}')])
    assert (second.id, first.created, second.created) == (first.id, True, False)
    assert raw.dump() == before


def test_idempotency_key_returns_its_job_after_the_end(store: Store) -> None:
    """The key stays taken when the job has finished."""
    lease = claimed(store, idempotency_key="k")
    finish(store, lease)
    assert store.queue.enqueue([make(idempotency_key="k")])[0].id == lease.job.id


def test_same_key_with_another_payload_is_an_error(store: Store, raw: Raw) -> None:
    """The call raises `KeyReused` and stores nothing, not even its other jobs."""
    store.queue.enqueue([make(idempotency_key="k", payload='{"a":1}')])
    before = raw.dump()
    with pytest.raises(KeyReused, match="'k'"):
        store.queue.enqueue([make(), make(idempotency_key="k", payload='{"a":2}'), make(unique_key="u")])
    assert raw.dump() == before


def test_key_used_twice_in_one_call_makes_one_job(store: Store) -> None:
    """The second job with the same key gets the first one's id."""
    answers = store.queue.enqueue(
        [make(idempotency_key="k"), make(), make(idempotency_key="k"), make(unique_key="u"), make(unique_key="u")]
    )
    assert [each.created for each in answers] == [True, True, False, True, False]
    assert answers[2].id == answers[0].id
    assert answers[4].id == answers[3].id


def test_key_used_twice_with_two_payloads_is_an_error(store: Store) -> None:
    """The call stores nothing."""
    with pytest.raises(KeyReused):
        store.queue.enqueue([make(idempotency_key="k", payload="1"), make(idempotency_key="k", payload="2")])
    assert store.inspect.counts() == {}


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_keys_are_separate_for_each_kind(store: Store, key: str) -> None:
    """Two kinds may use the same key."""
    assert all(each.created for each in store.queue.enqueue([make("mail", **{key: "k"}), make("chore", **{key: "k"})]))


def test_unique_and_idempotency_keys_do_not_collide(store: Store) -> None:
    """The same text may be both a unique key and an idempotency key."""
    assert all(each.created for each in store.queue.enqueue([make(idempotency_key="k"), make(unique_key="k")]))


def test_unique_key_returns_its_active_job(store: Store) -> None:
    """While it waits, runs or is committed, whatever the payload."""
    lease = started(store, unique_key="u", payload="1")
    assert store.queue.enqueue([make(unique_key="u", payload="2")])[0].id == lease.job.id
    commit(store, lease)
    assert store.queue.enqueue([make(unique_key="u", payload="3")])[0].id == lease.job.id


@pytest.mark.parametrize("end", ["finished", "failed", "cancelled"])
def test_unique_key_is_free_once_its_job_ended(store: Store, end: str) -> None:
    """In whatever way it ended."""
    if end == "cancelled":
        assert store.transitions.take([taken(stored(store, unique_key="u"))]) == []
    else:
        lease = claimed(store, unique_key="u")
        finish(store, lease) if end == "finished" else settle(store, lease, FailedFinally("broken"))
    assert store.queue.enqueue([make(unique_key="u")])[0].created


def test_idempotency_key_takes_precedence_over_the_unique_key(store: Store) -> None:
    """If two jobs have the two keys, the call returns the one with the idempotency key."""
    first, second = store.queue.enqueue([make(idempotency_key="k"), make(unique_key="u")])
    (answer,) = store.queue.enqueue([make(idempotency_key="k", unique_key="u")])
    assert (answer.id, answer.created) == (first.id, False)
    assert answer.id != second.id


def test_key_freed_by_a_state_makes_a_new_job(store: Store) -> None:
    """Entering a state that the kind lists frees the key; the old job still shows it."""
    lease = claimed(store, "paint", idempotency_key="k")
    old = settle(store, lease, FailedFinally("broken")).job
    assert (old.state, old.key_freed, old.idempotency_key) == ("dead_letter", True, "k")
    (new,) = store.queue.enqueue([make("paint", idempotency_key="k", payload='{"other":1}')])
    assert new.created
    assert store.queue.enqueue([make("paint", idempotency_key="k", payload='{"other":1}')])[0].id == new.id


def test_enqueue_with_the_key_of_a_resting_job_makes_it_due(store: Store) -> None:
    """While a failure rests, the same key makes that job due at once and stores no second job."""
    lease = claimed(store, "paint", idempotency_key="k")
    resting = settle(store, lease, Errored("busy", retryable=True)).job
    assert resting.state == "failed"
    assert resting.due_at > EPOCH
    assert claim(store, "paint") == []
    (answer,) = store.queue.enqueue([make("paint", idempotency_key="k", resting=("failed",))])
    assert (answer.id, answer.created) == (lease.job.id, False)
    assert store.inspect.get(answer.id).due_at == EPOCH
    assert [each.job.id for each in claim(store, "paint")] == [answer.id]


def test_enqueue_with_a_key_does_not_hasten_a_delayed_job(store: Store, clock: SettableClock) -> None:
    """A delayed job stays delayed, and a job that lost its lease is not changed."""
    delayed = stored(store, "paint", idempotency_key="k", delay=60)
    store.queue.enqueue([make("paint", idempotency_key="k", resting=("failed",))])
    assert store.inspect.get(delayed.id).due_at == delayed.due_at
    clock.advance(61)
    (lease,) = claim(store, "paint")
    clock.advance(31)
    lose(store, "paint")
    assert store.queue.enqueue([make("paint", idempotency_key="k", resting=())])[0].id == lease.job.id


def test_pruning_a_job_frees_its_key(store: Store, clock: SettableClock) -> None:
    """The keys of a pruned job are free."""
    finish(store, claimed(store, idempotency_key="k"))
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 1
    assert store.queue.enqueue([make(idempotency_key="k", payload='{"new":1}')])[0].created


def test_rollback_frees_the_key(store: Store) -> None:
    """A key in a transaction that is rolled back was never taken."""
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.queue.enqueue([make(idempotency_key="k")], conn=tx)
        raise ZeroDivisionError
    assert store.queue.enqueue([make(idempotency_key="k", payload='{"a":2}')])[0].created
