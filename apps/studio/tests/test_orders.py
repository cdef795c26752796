"""Orders: prices that change within a minute, and rejections by an administrator."""

import pytest

from apps.studio.errors import Conflict, NotFound
from apps.studio.jobs import SAFE_BLOCK
from apps.studio.ledger import Balance
from apps.studio.order import PRICES
from apps.studio.orders import Created
from apps.studio.tests.scenarios import JOB_IN_STATE
from apps.studio.tests.studio_kit import PROMPT, StudioKit

NO_ID = "01900000-0000-7000-8000-000000000000"


def test_same_order_after_a_price_change_is_the_same_job(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = kit.user(credits=5)
    first = kit.orders.create_job(ann.id, PROMPT)
    monkeypatch.setitem(PRICES, "1024x1024", 3)
    before = kit.stored()
    assert kit.orders.create_job(ann.id, PROMPT) == Created(first.id, created=False)
    assert (kit.stored(), kit.balance(ann)) == (before, Balance(5, 4, 1, 0, 0))
    kit.clock.advance(60)
    assert kit.orders.create_job(ann.id, PROMPT).created
    assert kit.balance(ann) == Balance(5, 1, 4, 0, 0)
    kit.check()


def test_rejection_records_actor_and_reason(kit: StudioKit) -> None:
    job = kit.order()
    kit.orders.reject(job, by="olga", reason="not here")
    last = kit.app.history(job)[-1]
    assert (last.to_state, last.actor, last.reason) == ("rejected", "operator:olga", f"{SAFE_BLOCK}: not here")
    kit.check()


@pytest.mark.parametrize("state", sorted(set(JOB_IN_STATE) - {"queued"}))
def test_only_queued_jobs_can_be_rejected(kit: StudioKit, state: str) -> None:
    job = JOB_IN_STATE[state](kit)
    before = kit.stored(), kit.app.get(job)
    with pytest.raises(Conflict, match=f"Job {job} cannot be rejected: "):
        kit.orders.reject(job, by="olga", reason="not here")
    assert (kit.stored(), kit.app.get(job)) == before


@pytest.mark.parametrize("id", [NO_ID, "1", "", "\x00"])
def test_unknown_job_is_not_found(kit: StudioKit, id: str) -> None:
    with pytest.raises(NotFound, match="No job has the ID"):
        kit.orders.reject(id, by="olga", reason="not here")
