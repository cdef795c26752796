"""The health check: it needs no key, and however many clients ask, it queries the database once in two seconds."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import Response

from apps.common.health_cache import CACHE_SECONDS
from apps.studio.api import api
from apps.studio.jobs import LEASE
from apps.studio.tests.http_clients import ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.web.health_check import LATE, HealthCheck
from interlock import Unavailable
from interlock.testing import Crashed, Failpoint


@pytest.fixture
def stranger(kit: StudioKit) -> HttpClient:
    return HttpClient(api(kit.studio, now=kit.clock.now))


def counted(kit: StudioKit, monkeypatch: pytest.MonkeyPatch, first: Callable[[], None] = lambda: None) -> list[int]:
    """Count the status queries; `first` is called before each."""
    asked, status = list[int](), kit.app.status

    def counting() -> Any:
        asked.append(1)
        first()
        return status()

    monkeypatch.setattr(kit.app, "status", counting)
    return asked


def test_health_reports_whether_images_are_made(kit: StudioKit, stranger: HttpClient) -> None:
    """It contains no names and no prompts."""
    answer = stranger.get("/health")
    assert (answer.status_code, answer.json()) == (
        503,
        {"ok": False, "worker": False, "moves": True, "due": 0, "running": 0},
    )
    ApiUser(kit, "ann").create("a hill")
    kit.clock.advance(LATE + 1)
    answer = stranger.get("/health")
    assert (answer.status_code, answer.json()) == (
        503,
        {"ok": False, "worker": False, "moves": False, "due": 1, "running": 0},
    )
    kit.worker.crash_at(Failpoint.AFTER_CLAIM)
    with pytest.raises(Crashed):
        kit.run()
    kit.clock.advance(CACHE_SECONDS + 1)
    assert stranger.get("/health").json()["moves"] is True
    kit.clock.advance(2 * LEASE + 1)
    assert stranger.get("/health").json()["moves"] is False


def test_health_is_cached_for_two_seconds(
    kit: StudioKit, stranger: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, seen = counted(kit, monkeypatch), list[int]()
    for seconds in (0, 0, CACHE_SECONDS, 0.1, 0, CACHE_SECONDS + 0.1):
        kit.clock.advance(seconds)
        stranger.get("/health")
        seen.append(len(asked))
    assert (CACHE_SECONDS, seen) == (2.0, [1, 1, 1, 2, 2, 3])


def test_clock_set_back_does_not_extend_the_cache(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, start = counted(kit, monkeypatch), kit.clock.now()
    kit.clock.advance(3600)
    moments = [kit.clock.now(), start, start]
    health = HealthCheck(kit.studio, lambda: moments.pop(0))
    asyncio.run(health.health(None))
    asyncio.run(health.health(None))
    assert len(asked) == 2


def together(kit: StudioKit, gate: threading.Event) -> list[Response | BaseException]:
    """The responses to many requests that arrive before the first response."""

    async def ask() -> list[Response | BaseException]:
        health = HealthCheck(kit.studio, kit.clock.now)
        asking = [asyncio.create_task(health.health(None)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    return asyncio.run(ask())


def test_concurrent_requests_share_one_query(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    asked = counted(kit, monkeypatch, lambda: gate.wait(30))
    answers = together(kit, gate)
    assert (len(asked), {answer.status_code for answer in answers}) == (1, {503})


def test_failed_query_is_not_cached(kit: StudioKit, stranger: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, faults = threading.Event(), [Unavailable("gone"), Unavailable("gone")]

    def fail() -> None:
        gate.wait(30)
        if faults:
            raise faults.pop()

    asked = counted(kit, monkeypatch, fail)
    answers = together(kit, gate)
    assert (len(asked), {type(answer) for answer in answers}) == (1, {Unavailable})
    refused(stranger.get("/health"), 503, "database_unavailable")
    assert (stranger.get("/health").json()["moves"], len(asked)) == (True, 3)
