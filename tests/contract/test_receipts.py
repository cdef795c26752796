"""Receipts: fenced records of steps and external calls."""

import threading
from dataclasses import replace

import psycopg
import pytest

from interlock.core.ids import uuid7
from interlock.core.outcome import Errored
from interlock.store.contract import Store
from interlock.store.types import Fence, Lease, Receipt
from tests.contract.kit import (
    FACTS,
    LIFECYCLES,
    claim,
    claimed,
    commit,
    fail,
    finish,
    lose,
    settle,
)
from tests.kit import Raw, SettableClock, postgres_place

NOBODY = Fence("no-such-job", 1, 1)


def the(store: Store, id: str) -> Receipt:
    """Return the one receipt of a job."""
    (receipt,) = store.receipts.for_job(id)
    return receipt


def adopted(store: Store, clock: SettableClock, lease: Lease) -> Lease:
    """Let another process adopt the execution."""
    clock.advance(31)
    (found,) = store.leases.adopt("maintenance", [lease.job.kind], 30.0, 1)
    assert found.job.id == lease.job.id
    return found


def doubtful(store: Store, name: str = "charge") -> Lease:
    """Claim a job and begin an external call whose result is unknown."""
    lease = claimed(store)
    assert store.receipts.begin_effect(lease.fence, name, "h1")
    return lease


# ---------------------------------------------------------------- steps
def test_step_is_stored_with_its_value_and_age(store: Store, clock: SettableClock) -> None:
    """With its fence, its argument hash and its age by the store's clock."""
    lease = claimed(store)
    assert store.receipts.record_step(lease.fence, "link", "h1", '{"url":"u"}')
    clock.advance(12.5)
    assert store.receipts.for_job(lease.job.id) == [
        Receipt("link", "step", 1, 1, "h1", '{"url":"u"}', True, 12.5, None)
    ]


def test_step_can_be_recorded_again(store: Store, clock: SettableClock) -> None:
    """The new value replaces the old one and its age."""
    lease = claimed(store)
    store.receipts.record_step(lease.fence, "link", "h1", '"old"')
    clock.advance(31)
    lose(store)
    (again,) = claim(store)
    clock.advance(5)
    assert store.receipts.record_step(again.fence, "link", "h2", '"new"')
    clock.advance(1)
    assert the(store, lease.job.id) == Receipt("link", "step", 2, 1, "h2", '"new"', True, 1.0, None)


def test_receipts_are_ordered_by_name(store: Store) -> None:
    """Only those of this job; an unknown job has none."""
    lease = claimed(store)
    for name in ("b", "a", "Z"):
        store.receipts.record_step(lease.fence, name, "h", "1")
    store.receipts.record_step(claimed(store, "chore").fence, "c", "h", "1")
    assert [receipt.name for receipt in store.receipts.for_job(lease.job.id)] == ["Z", "a", "b"]
    assert store.receipts.for_job(uuid7()) == store.receipts.for_job("no-such-job") == []


# ---------------------------------------------------------------- external calls
def test_effect_is_in_doubt_until_its_result_is_recorded(store: Store, clock: SettableClock) -> None:
    """Then the receipt has the value, who decided, and the time of the result."""
    lease = doubtful(store)
    clock.advance(3)
    assert the(store, lease.job.id) == Receipt("charge", "effect", 1, 1, "h1", None, False, 3.0, None)
    assert store.receipts.record_effect(lease.fence, "charge", '{"id":7}', decided_by="handler")
    clock.advance(2)
    assert the(store, lease.job.id) == Receipt("charge", "effect", 1, 1, "h1", '{"id":7}', True, 2.0, "handler")


def test_effect_may_have_no_value(store: Store) -> None:
    """The effect was applied, and has no value."""
    lease = doubtful(store)
    assert store.receipts.record_effect(lease.fence, "charge", None, decided_by="handler")
    assert (the(store, lease.job.id).applied, the(store, lease.job.id).value) == (True, None)


def test_effect_in_doubt_can_be_begun_again(store: Store, clock: SettableClock) -> None:
    """The new begin replaces the old one, and only its fence may record the result."""
    lease = doubtful(store)
    holder = adopted(store, clock, lease)
    assert store.receipts.begin_effect(holder.fence, "charge", "h2")
    assert the(store, lease.job.id) == Receipt("charge", "effect", 1, 2, "h2", None, False, 0.0, None)
    assert not store.receipts.record_effect(lease.fence, "charge", "1", decided_by="handler")
    assert not store.receipts.discard_effect(lease.fence, "charge")
    assert store.receipts.record_effect(holder.fence, "charge", "2", decided_by="handler")


def test_applied_effect_is_never_begun_again(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Neither by its own holder nor by a later one."""
    lease = doubtful(store)
    store.receipts.record_effect(lease.fence, "charge", '"paid"', decided_by="handler")
    holder = adopted(store, clock, lease)
    before = raw.dump()
    assert not store.receipts.begin_effect(lease.fence, "charge", "h1")
    assert not store.receipts.begin_effect(holder.fence, "charge", "h1")
    assert not store.receipts.discard_effect(lease.fence, "charge")
    assert not store.receipts.record_effect(lease.fence, "charge", '"twice"', decided_by="handler")
    assert raw.dump() == before


def test_result_sent_again_is_accepted(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Protocol 10: after a lost reply the same call is sent again; the receipt keeps its first time."""
    lease = doubtful(store)
    assert store.receipts.record_effect(lease.fence, "charge", '{"b":1,"a":2}', decided_by="handler")
    before = raw.dump()
    clock.advance(5)
    assert store.receipts.record_effect(lease.fence, "charge", '{"b":1,"a":2}', decided_by="handler")
    assert raw.dump() == before


def test_begin_effect_sent_again_is_accepted(store: Store) -> None:
    """A worker that lost the reply sends the same call again."""
    lease = doubtful(store)
    assert store.receipts.begin_effect(lease.fence, "charge", "h1")
    assert len(store.receipts.for_job(lease.job.id)) == 1


def test_discarded_effect_is_forgotten(store: Store) -> None:
    """It is not in doubt any more, and can be begun again."""
    lease = doubtful(store)
    assert store.receipts.discard_effect(lease.fence, "charge")
    assert store.receipts.for_job(lease.job.id) == []
    assert not store.receipts.discard_effect(lease.fence, "charge")
    assert not store.receipts.record_effect(lease.fence, "charge", "1", decided_by="handler")
    assert store.receipts.begin_effect(lease.fence, "charge", "h1")


def test_step_and_effect_cannot_share_a_name(store: Store, raw: Raw) -> None:
    """Neither replaces the other, whether known or in doubt."""
    lease = claimed(store)
    store.receipts.record_step(lease.fence, "link", "h", "1")
    store.receipts.begin_effect(lease.fence, "charge", "h")
    before = raw.dump()
    assert not store.receipts.begin_effect(lease.fence, "link", "h")
    assert not store.receipts.record_step(lease.fence, "charge", "h", "1")
    assert not store.receipts.record_effect(lease.fence, "link", "2", decided_by="handler")
    assert raw.dump() == before


# ---------------------------------------------------------------- the fence
@pytest.mark.parametrize("status", ["LEASED", "IN_PROGRESS", "COMMITTED"])
def test_live_execution_stores_receipts(store: Store, status: str) -> None:
    """Before the start, while it runs and after the commit."""
    lease = claimed(store, "deliver") if status == "LEASED" else claimed(store)
    lease = commit(store, lease) if status == "COMMITTED" else lease
    assert lease.status == status
    assert store.receipts.record_step(lease.fence, "link", "h", "1")
    assert store.receipts.begin_effect(lease.fence, "charge", "h")


@pytest.mark.parametrize("ended", ["done", "failed", "retried"])
def test_ended_execution_stores_no_receipt(store: Store, raw: Raw, ended: str) -> None:
    """A stale worker may not begin an external call, and its values are not stored."""
    lease = claimed(store)
    if ended == "done":
        finish(store, lease)
    elif ended == "failed":
        fail(store, lease)
    else:
        settle(store, lease, Errored("busy", retryable=True, after=0))
        claim(store)
    before = raw.dump()
    assert not store.receipts.begin_effect(lease.fence, "charge", "h")
    assert not store.receipts.record_step(lease.fence, "link", "h", "1")
    assert raw.dump() == before


def test_other_holder_stores_no_receipt(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Every part of the fence is checked; an unknown job has no holder."""
    lease = claimed(store)
    adopted(store, clock, lease)
    wrong = [
        lease.fence,
        replace(lease.fence, holder=3),
        replace(lease.fence, attempt=2, holder=2),
        replace(lease.fence, job_id=uuid7(), holder=2),
        NOBODY,
    ]
    before = raw.dump()
    assert [store.receipts.begin_effect(fence, "charge", "h") for fence in wrong] == [False] * 5
    assert [store.receipts.record_step(fence, "link", "h", "1") for fence in wrong] == [False] * 5
    assert [store.receipts.record_effect(fence, "charge", "1", decided_by="handler") for fence in wrong] == [False] * 5
    assert [store.receipts.discard_effect(fence, "charge") for fence in wrong] == [False] * 5
    assert raw.dump() == before


@pytest.mark.parametrize("answer", ["apply", "unask"])
def test_result_is_stored_after_the_lease_was_lost(store: Store, clock: SettableClock, answer: str) -> None:
    """Protocol 23: a worker may record the result of its own call after its execution was adopted, lost and claimed
    again.
    """
    lease = doubtful(store)
    clock.advance(31)
    lose(store)
    claim(store)
    if answer == "apply":
        assert store.receipts.record_effect(lease.fence, "charge", '"paid"', decided_by="handler")
        assert the(store, lease.job.id).value == '"paid"'
    else:
        assert store.receipts.discard_effect(lease.fence, "charge")
        assert store.receipts.for_job(lease.job.id) == []


def test_result_is_stored_after_the_jobs_end(store: Store) -> None:
    """A job that has ended still stores the result of its external call."""
    lease = doubtful(store)
    fail(store, lease)
    assert store.receipts.record_effect(lease.fence, "charge", '"paid"', decided_by="handler")


def test_adopter_sees_every_effect_that_was_begun(postgres_url: str) -> None:
    """`begin_effect` locks its execution: an adopter that comes later reads the effect; after an earlier adoption it is
    refused.
    """
    place = postgres_place(postgres_url)
    store = place.open(real_time=True)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    lease = claimed(store, lease=0.0)
    with psycopg.connect(place.url) as adopter:
        adopter.execute(
            f"UPDATE {place.schema}.executions SET holder = 2, lease_owner = 'bob' WHERE job_id = %s", [lease.job.id]
        )
        answers: list[bool] = []
        asking = threading.Thread(
            target=lambda: answers.append(store.receipts.begin_effect(lease.fence, "charge", "h"))
        )
        asking.start()
        while asking.is_alive() and not place.raw("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass
        adopter.commit()
    asking.join()
    assert answers == [False]
    assert store.receipts.for_job(lease.job.id) == []
    place.close()
