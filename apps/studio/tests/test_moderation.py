"""Promises about a moderation model that takes its time: who cannot pay does not keep it busy, and while it thinks, all but orders go on."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from apps.studio.api import AT_ONCE, api
from apps.studio.counter import Counter, Created
from apps.studio.errors import Refusal
from apps.studio.tests.clients import HOST
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import PROMPT, Atelier
from apps.studio.tests.scenes import elsewhere

MANY = 45
"""More than there are threads for requests."""
PATIENCE = 30.0


def refused_without_a_question(atelier: Atelier, user_id: int) -> Refusal:
    heard, before = list[str](), atelier.stored()
    with elsewhere(atelier, moderator=heard.append) as studio, pytest.raises(Refusal) as refused:
        Counter(studio, now=atelier.clock.now).create_job(user_id, PROMPT)
    assert (heard, atelier.stored()) == ([], before)
    return refused.value


def test_the_model_is_not_asked_for_whoever_cannot_pay(atelier: Atelier) -> None:
    refusal = refused_without_a_question(atelier, atelier.user(credits=0).id)
    assert (refusal.code, "of your credits 0 can be used" in refusal.reason) == ("credits_insufficient", True)


def test_the_model_is_not_asked_for_somebody_unknown(atelier: Atelier) -> None:
    assert refused_without_a_question(atelier, 4711).code == "user_unknown"


def test_credits_that_are_spent_while_the_model_thinks_are_not_spent_twice(atelier: Atelier) -> None:
    poor = atelier.user(credits=1)

    def slow(_: str) -> None:
        atelier.order(poor, "something else")

    with elsewhere(atelier, moderator=slow) as studio, pytest.raises(Refusal) as refused:
        Counter(studio, now=atelier.clock.now).create_job(poor.id, PROMPT)
    assert (refused.value.code, len(atelier.app.jobs())) == ("credits_insufficient", 1)
    atelier.check()


def test_a_wish_that_is_being_granted_after_all_needs_neither_credits_nor_the_model(atelier: Atelier) -> None:
    """Its dead letter is driven again, with the last credit."""
    poor, heard = atelier.user(credits=1), list[str]()
    atelier.images.fail(Fault.unauthorized())
    first = atelier.order(poor)
    atelier.run()
    again = atelier.review.redrive(first, by="olga")
    with elsewhere(atelier, moderator=heard.append) as studio:
        assert Counter(studio, now=atelier.clock.now).create_job(poor.id, PROMPT) == Created(again, created=False)
    assert heard == []
    atelier.check()


class Slow:
    """A model that thinks until it is let go, and knows about how many prompts at once."""

    def __init__(self) -> None:
        self.full, self.gate, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.now = self.most = 0

    def __call__(self, prompt: str) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == AT_ONCE:
                self.full.set()
        assert self.gate.wait(PATIENCE)
        with self._lock:
            self.now -= 1


def test_while_the_model_thinks_everything_else_is_answered(atelier: Atelier) -> None:
    ann, slow = atelier.user(credits=MANY), Slow()

    async def visit(app: Any) -> list[int]:
        own = {"Authorization": f"Bearer {ann.key}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST, headers=own) as client:
            orders = [asyncio.create_task(client.post("/jobs", json={"prompt": f"number {n}"})) for n in range(MANY)]
            try:
                assert await asyncio.to_thread(slow.full.wait, PATIENCE)
                answers = [await asyncio.wait_for(client.get(path), PATIENCE / 3) for path in ("/session", "/jobs", "/credits")]
                assert slow.now == AT_ONCE
            finally:
                slow.gate.set()
                made = await asyncio.gather(*orders)
            return [answer.status_code for answer in (*answers, *made)]

    with elsewhere(atelier, moderator=slow) as studio:
        codes = asyncio.run(visit(api(studio, now=atelier.clock.now)))
    assert (codes, slow.most) == ([200] * 3 + [201] * MANY, AT_ONCE)
    atelier.check()
