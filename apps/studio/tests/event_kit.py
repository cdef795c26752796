"""Helpers for the tests of the event stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import Credential, User
from apps.studio.web.event_feed import POLL_SECONDS, EventFeed
from apps.studio.web.job_watch import JobWatch

Events = list[tuple[str, dict[str, Any]]]


def watch(kit: StudioKit, user: User) -> JobWatch:
    return JobWatch(kit.gallery, kit.users, user.id, lambda job: {"id": job.id, "status": job.status})


def stream_events(
    kit: StudioKit, user: User, *acts: Callable[[], object], looking: JobWatch | None = None
) -> list[list[str]]:
    """Return the events of a stream: the first ones, then those after each of these actions."""
    return asyncio.run(_stream_events(kit, user, looking or watch(kit, user), list(acts)))


async def _stream_events(
    kit: StudioKit, user: User, looking: JobWatch, acts: list[Callable[[], object]]
) -> list[list[str]]:
    stop, told = asyncio.Event(), [[]]

    async def pause(given: asyncio.Event, seconds: float) -> None:
        assert given is stop
        assert seconds >= POLL_SECONDS
        while any(each.pending for each in feed._subscribers):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        if not acts:
            stop.set()
            return
        await asyncio.to_thread(acts.pop(0))
        told.append([])

    feed = EventFeed(kit.gallery, kit.users, stop, kit.clock.now, pause)
    lines = feed.stream(looking, Credential.of("key", user.key or ""))
    assert await anext(lines) == "retry: 1000\n\n", "the browser gets its reconnection time"
    async for text in lines:
        told[-1].append(text)
    assert not feed._subscribers
    return told


def read(texts: list[str]) -> Events:
    """Parse events as a browser does."""
    events = []
    for text in texts:
        event, data, *end = text.split("\n")
        assert end == ["", ""]
        events.append((event.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def nothing() -> None:
    """Do nothing for one poll."""


def credits_event(available: int, reserved: int = 0, captured: int = 0) -> tuple[str, dict[str, int]]:
    return "credits", {
        "granted": 10,
        "available": available,
        "reserved": reserved,
        "captured": captured,
        "forfeited": 0,
    }


def jobs(texts: list[str]) -> list[tuple[str, str]]:
    return [(data["id"], data["status"]) for event, data in read(texts) if event == "job"]


def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[tuple[Any, ...]]:
    """Record the arguments of all calls of this method."""
    asked, verb = list[tuple[Any, ...]](), getattr(of, name)
    monkeypatch.setattr(of, name, lambda self, *given: (asked.append(given), verb(self, *given))[1])
    return asked


async def drain(lines: AsyncGenerator[str]) -> list[str]:
    return [line async for line in lines]
