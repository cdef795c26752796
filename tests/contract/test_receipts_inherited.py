"""Receipts are immutable, and a redrive inherits them."""

from dataclasses import replace

import pytest

from interlock.core.outcome import Finished
from interlock.store import OpenStore
from interlock.store.contract import Store
from interlock.store.types import Lease, NewJob
from tests.contract.kit import (
    claim,
    claimed,
    commit,
    decided,
    fail,
    make,
    stored,
)
from tests.contract.test_receipts import doubtful, the
from tests.kit import Raw, SettableClock


# ---------------------------------------------------------------- changes that the database refuses
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {receipts} SET value = '1'",
        "UPDATE {receipts} SET applied_at = NULL",
        "UPDATE {receipts} SET args_hash = 'x'",
        "UPDATE {receipts} SET kind = 'step'",
        "UPDATE {receipts} SET name = 'other'",
        "DELETE FROM {receipts}",
    ],
)
def test_receipt_of_an_applied_effect_never_changes(store: Store, raw: Raw, change: str) -> None:
    """The database refuses every such statement."""
    lease = doubtful(store)
    store.receipts.record_effect(lease.fence, "charge", '"paid"', decided_by="handler")
    before = raw.dump()
    with pytest.raises(raw.refusal, match="interlock refuses"):
        raw(change)
    assert raw.dump() == before


# ---------------------------------------------------------------- redrive
def old_job(store: Store) -> Lease:
    """Return a failed job with a step, an applied effect and an effect in doubt."""
    lease = claimed(store, payload='{"n":1}')
    store.receipts.record_step(lease.fence, "link", "h1", '"l"')
    store.receipts.begin_effect(lease.fence, "charge", "h2")
    store.receipts.record_effect(lease.fence, "charge", '"paid"', decided_by="handler")
    store.receipts.begin_effect(lease.fence, "send", "h3")
    return fail(store, lease)


def redrive(old: Lease, **fields: object) -> NewJob:
    return make(redrive_of=old.job.id, root=old.job.root or old.job.id, **{"inherits": True, **fields})


def test_redrive_inherits_the_receipts(store: Store, clock: SettableClock) -> None:
    """Protocol 25: both known results and effects in doubt, with a fence that no execution has; the old job keeps its
    own.
    """
    old = old_job(store)
    before = store.receipts.for_job(old.job.id)
    clock.advance(7)
    new = redrive(old)
    store.queue.enqueue([new])
    assert store.receipts.for_job(new.id) == [replace(receipt, attempt=0, holder=0, age=7.0) for receipt in before]
    assert [receipt.age for receipt in store.receipts.for_job(old.job.id)] == [7.0] * 3
    (lease,) = claim(store)
    assert not store.receipts.begin_effect(lease.fence, "charge", "h2")
    assert not store.receipts.record_effect(lease.fence, "send", "1", decided_by="handler")
    assert store.receipts.begin_effect(lease.fence, "send", "h3")


def test_redrive_of_a_redrive_keeps_the_root(store: Store) -> None:
    """External systems know both by the id of the first job."""
    old = old_job(store)
    first = redrive(old)
    store.queue.enqueue([first])
    (lease,) = claim(store)
    second = redrive(fail(store, lease))
    store.queue.enqueue([second])
    job = store.inspect.get(second.id)
    assert (old.job.root, job.root, job.redrive_of) == (None, old.job.id, first.id)
    assert claim(store)[0].job.root == old.job.id


def test_fresh_redrive_inherits_nothing(store: Store) -> None:
    new = redrive(old_job(store), inherits=False)
    store.queue.enqueue([new])
    assert store.receipts.for_job(new.id) == []


def test_only_new_jobs_inherit_receipts(store: Store, raw: Raw) -> None:
    """A call that returns an existing job of its key does not change that job's receipts."""
    old = old_job(store)
    holder = stored(store, unique_key="u")
    before = raw.dump()["receipts"]
    answers = store.queue.enqueue([redrive(old, unique_key="u"), other := redrive(old)])
    assert [answer.created for answer in answers] == [False, True]
    assert store.receipts.for_job(holder.id) == []
    assert len(store.receipts.for_job(other.id)) == 3
    assert len(raw.dump()["receipts"]) == len(before) + 3


def test_redrive_in_a_callers_transaction_inherits_receipts(store: OpenStore, raw: Raw) -> None:
    """They are committed or rolled back with the job."""
    old = old_job(store)
    with raw.transaction() as connection:
        kept = store.queue.enqueue([redrive(old)], conn=connection)[0].id
    with pytest.raises(RuntimeError), raw.transaction() as connection:
        store.queue.enqueue([redrive(old)], conn=connection)
        raise RuntimeError
    assert [receipt.name for receipt in store.receipts.for_job(kept)] == ["charge", "link", "send"]
    assert len(raw("SELECT DISTINCT job_id FROM {receipts}")) == 2


@pytest.mark.parametrize("column", ["root", "redrive_of"])
def test_origin_of_a_job_never_changes(store: Store, raw: Raw, column: str) -> None:
    """The database refuses every such statement."""
    new = redrive(old_job(store))
    store.queue.enqueue([new])
    with pytest.raises(raw.refusal, match="never change"):
        raw(f"UPDATE {{jobs}} SET {column} = NULL, updated_at = {{later}} WHERE id = :id", id=new.id)
    assert store.inspect.get(new.id).root == new.root


def test_finished_job_keeps_its_receipts(store: Store) -> None:
    """Until it is pruned."""
    lease = doubtful(store)
    assert store.transitions.move([decided(commit(store, lease), Finished())]) == []
    assert the(store, lease.job.id).name == "charge"
