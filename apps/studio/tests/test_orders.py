"""Promises about the counter that belong to no transition: prices change, and what is not queued is not turned away."""

import pytest

from apps.studio.counter import Created
from apps.studio.errors import Conflict, NotFound
from apps.studio.jobs import SAFE_BLOCK
from apps.studio.ledger import Balance
from apps.studio.order import PRICES
from apps.studio.tests.kit import PROMPT, Atelier
from apps.studio.tests.scenes import IN_STATE

NO_ID = "01900000-0000-7000-8000-000000000000"


def test_the_same_wish_is_the_same_job_when_its_price_has_changed_meanwhile(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = atelier.user(credits=5)
    first = atelier.counter.create_job(ann.id, PROMPT)
    monkeypatch.setitem(PRICES, "1024x1024", 3)
    before = atelier.stored()
    assert atelier.counter.create_job(ann.id, PROMPT) == Created(first.id, created=False)
    assert (atelier.stored(), atelier.balance(ann)) == (before, Balance(5, 4, 1, 0, 0))
    atelier.clock.advance(60)
    assert atelier.counter.create_job(ann.id, PROMPT).created
    assert atelier.balance(ann) == Balance(5, 1, 4, 0, 0)
    atelier.check()


def test_a_rejected_job_says_by_whom_and_why(atelier: Atelier) -> None:
    job = atelier.order()
    atelier.counter.reject(job, by="olga", reason="not here")
    last = atelier.app.history(job)[-1]
    assert (last.to_state, last.actor, last.reason) == ("rejected", "operator:olga", f"{SAFE_BLOCK}: not here")
    atelier.check()


@pytest.mark.parametrize("state", sorted(set(IN_STATE) - {"queued"}))
def test_only_a_queued_job_is_rejected_by_hand(atelier: Atelier, state: str) -> None:
    job = IN_STATE[state](atelier)
    before = atelier.stored(), atelier.app.get(job)
    with pytest.raises(Conflict, match=f"Job {job} is not rejected: "):
        atelier.counter.reject(job, by="olga", reason="not here")
    assert (atelier.stored(), atelier.app.get(job)) == before


@pytest.mark.parametrize("id", [NO_ID, "1", "", "\x00"])
def test_what_is_no_job_is_not_found(atelier: Atelier, id: str) -> None:
    with pytest.raises(NotFound, match="There is no job"):
        atelier.counter.reject(id, by="olga", reason="not here")
