"""Promises about a moderation model that takes its time: who cannot pay does not keep it busy, and while it thinks, all but orders go on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from apps.studio.api import AT_ONCE, api
from apps.studio.counter import Counter, Created
from apps.studio.errors import Refusal
from apps.studio.tests.clients import HOST, JSON
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


class Busy:
    """A double click before a model that thinks about one prompt at a time: the second one waits for its turn into the next minute."""

    def __init__(self, atelier: Atelier) -> None:
        self._atelier, self._thinking, self._gate = atelier, threading.Event(), threading.Event()
        self.prompts = list[str]()

    def __call__(self, prompt: str) -> None:
        self.prompts.append(prompt)
        self._thinking.set()
        assert self._gate.wait(PATIENCE)

    async def clicked(self, client: httpx.AsyncClient) -> list[httpx.Response]:
        arrived = asyncio.Event()

        async def read() -> AsyncIterator[bytes]:
            yield b'{"prompt": "a hill"}'
            arrived.set()

        first = asyncio.create_task(client.post("/jobs", json={"prompt": "a hill"}))
        try:
            assert await asyncio.to_thread(self._thinking.wait, PATIENCE)
            self._atelier.clock.advance(1)
            second = asyncio.create_task(client.post("/jobs", content=read(), headers=JSON))
            await asyncio.wait_for(arrived.wait(), PATIENCE)
            self._atelier.clock.advance(60)
        finally:
            self._gate.set()
        return await asyncio.gather(first, second)


def test_a_double_click_that_waits_for_its_turn_into_the_next_minute_is_one_job(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.studio.api.AT_ONCE", 1)
    now, ann, busy = atelier.clock.now(), atelier.user(), Busy(atelier)
    atelier.clock.advance((now.replace(second=10, microsecond=0) + timedelta(minutes=1) - now).total_seconds())

    async def visit(app: Any) -> list[httpx.Response]:
        own = {"Authorization": f"Bearer {ann.key}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST, headers=own) as client:
            return await busy.clicked(client)

    with elsewhere(atelier, moderator=busy) as studio:
        first, second = asyncio.run(visit(api(studio, now=atelier.clock.now)))
    assert (first.status_code, second.status_code, second.json()["id"]) == (201, 200, first.json()["id"])
    assert (busy.prompts, len(atelier.app.jobs()), atelier.balance(ann).reserved) == (["a hill"], 1, 1)
    atelier.check()
