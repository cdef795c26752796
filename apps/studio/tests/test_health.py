"""Promises about the answer for monitors: it says whether images are made, to anybody, and however many ask, the database is asked once and seldom."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import Response

from apps.common.health import FRESH
from apps.studio.api import api
from apps.studio.health import LATE, Health
from apps.studio.jobs import LEASE
from apps.studio.tests.clients import Http, Somebody, refused
from apps.studio.tests.kit import Atelier
from interlock import Unavailable
from interlock.testing import Crashed, Point


@pytest.fixture
def stranger(atelier: Atelier) -> Http:
    return Http(api(atelier.studio, now=atelier.clock.now))


def counted(atelier: Atelier, monkeypatch: pytest.MonkeyPatch, first: Callable[[], None] = lambda: None) -> list[int]:
    """How often the status is asked for from now on; `first` is done each time."""
    asked, status = list[int](), atelier.app.status

    def counting() -> Any:
        asked.append(1)
        first()
        return status()

    monkeypatch.setattr(atelier.app, "status", counting)
    return asked


def test_health_says_whether_images_are_made(atelier: Atelier, stranger: Http) -> None:
    """To anybody, so no name and no prompt is in it."""
    answer = stranger.get("/health")
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "worker": False, "moves": True, "due": 0, "running": 0})
    Somebody(atelier, "ann").create("a hill")
    atelier.clock.advance(LATE + 1)
    answer = stranger.get("/health")
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "worker": False, "moves": False, "due": 1, "running": 0})
    atelier.worker.crash_at(Point.AFTER_CLAIM)
    with pytest.raises(Crashed):
        atelier.run()
    atelier.clock.advance(FRESH + 1)
    assert stranger.get("/health").json()["moves"] is True
    atelier.clock.advance(2 * LEASE + 1)
    assert stranger.get("/health").json()["moves"] is False


def test_an_answer_serves_for_two_seconds(atelier: Atelier, stranger: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, seen = counted(atelier, monkeypatch), list[int]()
    for seconds in (0, 0, FRESH, 0.1, 0, FRESH + 0.1):
        atelier.clock.advance(seconds)
        stranger.get("/health")
        seen.append(len(asked))
    assert (FRESH, seen) == (2.0, [1, 1, 1, 2, 2, 3])


def test_a_clock_that_is_set_back_does_not_make_an_answer_last(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, start = counted(atelier, monkeypatch), atelier.clock.now()
    atelier.clock.advance(3600)
    moments = [atelier.clock.now(), start, start]
    health = Health(atelier.studio, lambda: moments.pop(0))
    asyncio.run(health.health(None))
    asyncio.run(health.health(None))
    assert len(asked) == 2


def together(atelier: Atelier, gate: threading.Event) -> list[Response | BaseException]:
    """What many are answered who all ask before the first answer is there."""
    async def ask() -> list[Response | BaseException]:
        health = Health(atelier.studio, atelier.clock.now)
        asking = [asyncio.create_task(health.health(None)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    return asyncio.run(ask())


def test_many_at_once_ask_the_database_once(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    asked = counted(atelier, monkeypatch, lambda: gate.wait(30))
    answers = together(atelier, gate)
    assert (len(asked), {answer.status_code for answer in answers}) == (1, {503})


def test_a_database_that_does_not_answer_is_asked_again_by_the_next(atelier: Atelier, stranger: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, faults = threading.Event(), [Unavailable("gone"), Unavailable("gone")]

    def fail() -> None:
        gate.wait(30)
        if faults:
            raise faults.pop()

    asked = counted(atelier, monkeypatch, fail)
    answers = together(atelier, gate)
    assert (len(asked), {type(answer) for answer in answers}) == (1, {Unavailable})
    refused(stranger.get("/health"), 503, "database_unavailable")
    assert (stranger.get("/health").json()["moves"], len(asked)) == (True, 3)
