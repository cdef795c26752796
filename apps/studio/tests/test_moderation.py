"""The moderation model: it is called only when needed, and while it is slow, only orders wait."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from apps.studio.api import MAX_CONCURRENT_ORDERS, api
from apps.studio.errors import Refusal
from apps.studio.orders import Created, Orders
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.http_clients import HOST, JSON
from apps.studio.tests.scenarios import another_process
from apps.studio.tests.studio_kit import PROMPT, StudioKit

MANY = 45
"""More than there are threads for requests."""
TIME_LIMIT = 30.0


def refused_without_a_question(kit: StudioKit, user_id: int) -> Refusal:
    heard, before = list[str](), kit.stored()
    with another_process(kit, moderator=heard.append) as studio, pytest.raises(Refusal) as refused:
        Orders(studio, now=kit.clock.now).create_job(user_id, PROMPT)
    assert (heard, kit.stored()) == ([], before)
    return refused.value


def test_model_is_not_called_without_enough_credits(kit: StudioKit) -> None:
    refusal = refused_without_a_question(kit, kit.user(credits=0).id)
    assert (refusal.code, "you have 0" in refusal.reason) == ("credits_insufficient", True)


def test_model_is_not_called_for_an_unknown_user(kit: StudioKit) -> None:
    assert refused_without_a_question(kit, 4711).code == "user_unknown"


def test_credits_spent_during_moderation_are_not_spent_twice(kit: StudioKit) -> None:
    poor = kit.user(credits=1)

    def slow(_: str) -> None:
        kit.order(poor, "something else")

    with another_process(kit, moderator=slow) as studio, pytest.raises(Refusal) as refused:
        Orders(studio, now=kit.clock.now).create_job(poor.id, PROMPT)
    assert (refused.value.code, len(kit.app.jobs())) == ("credits_insufficient", 1)
    kit.check()


def test_active_redrive_needs_neither_credits_nor_the_model(kit: StudioKit) -> None:
    """Its dead letter was redriven with the last credit."""
    poor, heard = kit.user(credits=1), list[str]()
    kit.images.fail(Fault.unauthorized())
    first = kit.order(poor)
    kit.run()
    again = kit.dead_letters.redrive(first, by="olga")
    with another_process(kit, moderator=heard.append) as studio:
        assert Orders(studio, now=kit.clock.now).create_job(poor.id, PROMPT) == Created(again, created=False)
    assert heard == []
    kit.check()


class Slow:
    """A model that waits until it is released and counts concurrent calls."""

    def __init__(self) -> None:
        self.full, self.gate, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.now = self.most = 0

    def __call__(self, prompt: str) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == MAX_CONCURRENT_ORDERS:
                self.full.set()
        assert self.gate.wait(TIME_LIMIT)
        with self._lock:
            self.now -= 1


def test_other_requests_are_answered_during_moderation(kit: StudioKit) -> None:
    ann, slow = kit.user(credits=MANY), Slow()

    async def visit(app: Any) -> list[int]:
        own = {"Authorization": f"Bearer {ann.key}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST, headers=own) as client:
            orders = [asyncio.create_task(client.post("/jobs", json={"prompt": f"number {n}"})) for n in range(MANY)]
            try:
                assert await asyncio.to_thread(slow.full.wait, TIME_LIMIT)
                answers = [
                    await asyncio.wait_for(client.get(path), TIME_LIMIT / 3)
                    for path in ("/session", "/jobs", "/credits")
                ]
                assert slow.now == MAX_CONCURRENT_ORDERS
            finally:
                slow.gate.set()
                made = await asyncio.gather(*orders)
            return [answer.status_code for answer in (*answers, *made)]

    with another_process(kit, moderator=slow) as studio:
        codes = asyncio.run(visit(api(studio, now=kit.clock.now)))
    assert (codes, slow.most) == ([200] * 3 + [201] * MANY, MAX_CONCURRENT_ORDERS)
    kit.check()


class Busy:
    """A double click with a model that handles one prompt at a time: the second waits until the next minute."""

    def __init__(self, kit: StudioKit) -> None:
        self._atelier, self._thinking, self._gate = kit, threading.Event(), threading.Event()
        self.prompts = list[str]()

    def __call__(self, prompt: str) -> None:
        self.prompts.append(prompt)
        self._thinking.set()
        assert self._gate.wait(TIME_LIMIT)

    async def clicked(self, client: httpx.AsyncClient) -> list[httpx.Response]:
        arrived = asyncio.Event()

        async def read() -> AsyncIterator[bytes]:
            yield b'{"prompt": "a hill"}'
            arrived.set()

        first = asyncio.create_task(client.post("/jobs", json={"prompt": "a hill"}))
        try:
            assert await asyncio.to_thread(self._thinking.wait, TIME_LIMIT)
            self._atelier.clock.advance(1)
            second = asyncio.create_task(client.post("/jobs", content=read(), headers=JSON))
            await asyncio.wait_for(arrived.wait(), TIME_LIMIT)
            self._atelier.clock.advance(60)
        finally:
            self._gate.set()
        return await asyncio.gather(first, second)


def test_double_click_that_waits_past_the_minute_is_one_job(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.studio.api.MAX_CONCURRENT_ORDERS", 1)
    now, ann, busy = kit.clock.now(), kit.user(), Busy(kit)
    kit.clock.advance((now.replace(second=10, microsecond=0) + timedelta(minutes=1) - now).total_seconds())

    async def visit(app: Any) -> list[httpx.Response]:
        own = {"Authorization": f"Bearer {ann.key}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST, headers=own) as client:
            return await busy.clicked(client)

    with another_process(kit, moderator=busy) as studio:
        first, second = asyncio.run(visit(api(studio, now=kit.clock.now)))
    assert (first.status_code, second.status_code, second.json()["id"]) == (201, 200, first.json()["id"])
    assert (busy.prompts, len(kit.app.jobs()), kit.balance(ann).reserved) == (["a hill"], 1, 1)
    kit.check()
