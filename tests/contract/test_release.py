"""release: an operator ends a hold and decides about external calls in doubt."""

import pytest

from interlock.core.ids import uuid7
from interlock.core.outcome import Held
from interlock.store.contract import Store
from interlock.store.types import Decision, Receipt
from tests.contract.kit import check, claim, claimed, settle, stored
from tests.kit import EPOCH, Raw, SettableClock

OLGA = "operator:olga"


def held(store: Store) -> str:
    """Return a job that is held with two effects in doubt, an applied effect and a step."""
    lease = claimed(store)
    for name in ("charge", "send", "pay"):
        store.receipts.begin_effect(lease.fence, name, "h")
    store.receipts.record_effect(lease.fence, "pay", '"paid"', decided_by="handler")
    store.receipts.record_step(lease.fence, "link", "h", '"l"')
    return settle(store, lease, Held("did it happen?")).job.id


def told(store: Store, id: str) -> dict[str, tuple[str | None, bool, str | None]]:
    return {
        receipt.name: (receipt.value, receipt.applied, receipt.decided_by) for receipt in store.receipts.for_job(id)
    }


KNOWN = {"link": ('"l"', True, None), "pay": ('"paid"', True, "handler")}


def test_released_job_is_due_at_once(store: Store, clock: SettableClock) -> None:
    """The hold ends, the history says who released it and why, and the job can be claimed."""
    id = held(store)
    now = clock.advance(60)
    assert store.control.release(id, by=OLGA, reason="looked it up")
    job = store.inspect.get(id)
    assert (job.held_at, job.held_reason, job.due_at, job.updated_at, job.phase) == (None, None, now, now, "pending")
    last = store.inspect.history(id)[-1]
    assert (last.event, last.actor, last.reason, last.attempt, last.to_state, last.at) == (
        "release",
        OLGA,
        "looked it up",
        1,
        None,
        now,
    )
    check(store, id)
    assert [lease.job.id for lease in claim(store)] == [id]


def test_release_increases_updated_at(store: Store) -> None:
    """Also if the clock does not advance."""
    id = held(store)
    before = store.inspect.get(id).updated_at
    store.control.release(id, by=OLGA, reason="go on")
    assert store.inspect.get(id).updated_at > before
    assert store.inspect.get(id).due_at == EPOCH


def test_release_without_a_decision_keeps_effects_in_doubt(store: Store) -> None:
    """The job runs again, and its handler must resolve them."""
    id = held(store)
    before = store.receipts.for_job(id)
    store.control.release(id, by=OLGA, reason="go on")
    assert store.receipts.for_job(id) == before
    assert store.inspect.history(id)[-1].detail is None


def test_effect_released_as_happened_has_a_receipt(store: Store, clock: SettableClock) -> None:
    """Every effect in doubt is resolved with who decided and when; known results stay."""
    id = held(store)
    clock.advance(5)
    assert store.control.release(id, by=OLGA, reason="it is on the bill", decision=Decision(True, '{"id":7}'))
    assert told(store, id) == KNOWN | {"charge": ('{"id":7}', True, OLGA), "send": ('{"id":7}', True, OLGA)}
    assert {receipt.name: receipt.age for receipt in store.receipts.for_job(id)} == {
        "charge": 0.0,
        "send": 0.0,
        "link": 5.0,
        "pay": 5.0,
    }
    assert store.inspect.history(id)[-1].detail == {"happened": True, "effects": ["charge", "send"]}
    (lease,) = claim(store)
    assert not store.receipts.begin_effect(lease.fence, "charge", "h")


def test_effect_released_as_happened_may_have_no_value(store: Store) -> None:
    id = held(store)
    store.control.release(id, by=OLGA, reason="it did", decision=Decision(True))
    assert told(store, id)["charge"] == (None, True, OLGA)


def test_effect_released_as_not_happened_is_forgotten(store: Store) -> None:
    """The effects in doubt are removed, the history keeps their names, and they can be begun again."""
    id = held(store)
    assert store.control.release(id, by=OLGA, reason="not on the bill", decision=Decision(False))
    assert told(store, id) == KNOWN
    assert store.inspect.history(id)[-1].detail == {"happened": False, "effects": ["charge", "send"]}
    (lease,) = claim(store)
    assert store.receipts.begin_effect(lease.fence, "charge", "h")


def test_decision_without_effects_in_doubt_is_only_recorded(store: Store) -> None:
    id = settle(store, claimed(store), Held("wait")).job.id
    assert store.control.release(id, by=OLGA, reason="go on", decision=Decision(True, "1"))
    assert (store.receipts.for_job(id), store.inspect.history(id)[-1].detail) == ([], {"happened": True, "effects": []})


def test_late_result_does_not_replace_an_operators_decision(store: Store) -> None:
    """The old holder's own result comes too late; the same value is accepted."""
    lease = claimed(store)
    store.receipts.begin_effect(lease.fence, "charge", "h")
    id = settle(store, lease, Held("did it?")).job.id
    store.control.release(id, by=OLGA, reason="it did", decision=Decision(True, '"theirs"'))
    assert not store.receipts.record_effect(lease.fence, "charge", '"ours"', decided_by="handler")
    assert store.receipts.record_effect(lease.fence, "charge", '"theirs"', decided_by="handler")
    (receipt,) = store.receipts.for_job(id)
    assert receipt == Receipt("charge", "effect", 1, 1, "h", '"theirs"', True, 0.0, OLGA)


@pytest.mark.parametrize("job", ["waiting", "running", "released", "unknown", "no id"])
def test_job_that_is_not_held_cannot_be_released(store: Store, raw: Raw, job: str) -> None:
    """The call returns False and changes nothing, also for effects in doubt."""
    id = {"unknown": uuid7(), "no id": "x"}.get(job) or (
        stored(store).id if job == "waiting" else held(store) if job == "released" else ""
    )
    if job == "running":
        lease = claimed(store)
        store.receipts.begin_effect(lease.fence, "charge", "h")
        id = lease.job.id
    if job == "released":
        assert store.control.release(id, by=OLGA, reason="first")
    before = raw.dump()
    assert not store.control.release(id, by=OLGA, reason="again", decision=Decision(True, "1"))
    assert raw.dump() == before
