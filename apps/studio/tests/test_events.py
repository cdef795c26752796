"""Promises about the stream of what changes: first all that is recent, then exactly the changes, until it is told to stop or the session ends."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from apps.studio.answers import Wrong
from apps.studio.events import EVERY, QUIET, RECENT, Watch, stream
from apps.studio.people import User
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier

Told = list[tuple[str, dict[str, Any]]]


def watch(atelier: Atelier, user: User) -> Watch:
    return Watch(atelier.gallery, atelier.people, user.id, lambda job: {"id": job.id, "status": job.status})


def heard(look: Callable[[], Any], *acts: Callable[[], object]) -> list[list[str]]:
    """What a stream tells at first, and after each of these acts; then it is told to stop."""
    return asyncio.run(_heard(look, list(acts)))


async def _heard(look: Callable[[], Any], acts: list[Callable[[], object]]) -> list[list[str]]:
    stop, told = asyncio.Event(), [[]]

    async def pause(given: asyncio.Event, seconds: float) -> None:
        assert (given, seconds) == (stop, EVERY)
        if not acts:
            stop.set()
            return
        await asyncio.to_thread(acts.pop(0))
        told.append([])

    async for text in stream(look, stop, pause):
        told[-1].append(text)
    return told


def read(texts: list[str]) -> Told:
    """Events as a browser reads them."""
    events = []
    for text in texts:
        event, data, *end = text.split("\n")
        assert end == ["", ""]
        events.append((event.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def nothing() -> None:
    """Time passes."""


def credits(available: int, reserved: int = 0, captured: int = 0) -> tuple[str, dict[str, int]]:
    return "credits", {"granted": 10, "available": available, "reserved": reserved, "captured": captured, "forfeited": 0}


def test_the_first_look_tells_all_and_the_next_only_what_changed(atelier: Atelier) -> None:
    ann, bob = atelier.user(), atelier.user()
    first, second = atelier.order(ann, "one"), atelier.order(ann, "two")

    def fail() -> None:
        atelier.images.fail(*[Fault.trouble()] * 3)
        atelier.run()

    told = heard(watch(atelier, ann).look, nothing, lambda: atelier.order(bob), fail, nothing, lambda: atelier.later(4000), nothing)
    assert [read(texts) for texts in told] == [
        [("job", {"id": first, "status": "queued"}), ("job", {"id": second, "status": "queued"}), credits(8, 2)],
        [], [],
        [("job", {"id": first, "status": "failed"}), ("job", {"id": second, "status": "failed"})],
        [],
        [("job", {"id": first, "status": "completed"}), ("job", {"id": second, "status": "completed"}), credits(8, 0, 2)],
        [],
    ]


def test_a_new_order_and_a_grant_are_changes(atelier: Atelier) -> None:
    ann = atelier.user(name="ann")
    made: list[str] = []

    def order() -> None:
        made.append(atelier.order(ann, f"number {len(made)}"))

    told = heard(watch(atelier, ann).look, order, order, lambda: atelier.people.grant("ann", 5, None))
    assert [read(texts) for texts in told] == [
        [credits(10)], [("job", {"id": made[0], "status": "queued"}), credits(9, 1)], [("job", {"id": made[1], "status": "queued"}), credits(8, 2)],
        [("credits", {"granted": 15, "available": 13, "reserved": 2, "captured": 0, "forfeited": 0})],
    ]


def test_a_job_that_moves_while_it_is_read_is_told_once(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions were counted before it moved, and the jobs read afterwards."""
    ann = atelier.user()
    id, looking = atelier.order(ann), watch(atelier, ann)
    versions = atelier.gallery.versions

    def moved(*given: Any) -> dict[str, int]:
        counted = versions(*given)
        if atelier.state(id) == "queued":
            atelier.run()
        return counted

    monkeypatch.setattr(type(atelier.gallery), "versions", lambda _, *given: moved(*given))
    assert [read(texts) for texts in heard(looking.look, nothing)] == [[("job", {"id": id, "status": "completed"}), credits(9, 0, 1)], []]


def test_only_the_newest_jobs_are_followed(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.studio.events.RECENT", 2)
    assert RECENT == 100
    ann = atelier.user()
    ids = [atelier.order(ann, f"number {n}") for n in range(3)]
    told = heard(watch(atelier, ann).look, nothing)
    assert [event[1].get("id") for event in read(told[0])] == [ids[1], ids[2], None]
    assert told[1] == []


def test_a_line_without_news_is_kept_alive() -> None:
    ticks = int(QUIET / EVERY)
    told = heard(list, *[nothing] * (2 * ticks))
    assert [n for n, texts in enumerate(told) if texts] == [ticks - 1, 2 * ticks - 1]
    assert all(text.startswith(":") and text.endswith("\n\n") for texts in told for text in texts)


def test_whoever_may_look_no_more_hears_no_more() -> None:
    allowed = [True]

    def look() -> Told:
        if not allowed:
            raise Wrong(401, "unauthorized", "Sign in.")
        return [("credits", {})]

    told = heard(look, nothing, allowed.clear, nothing)
    assert [len(texts) for texts in told] == [1, 1, 0], "and it has ended by itself"


@contextmanager
def database_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        def fail(*_: object) -> None:
            raise OperationalError("SELECT secret", {}, Exception("gone"))

        patch.setattr("apps.studio.gallery.Gallery.versions", fail)
        yield


def test_a_database_that_goes_and_comes_back_loses_nothing(atelier: Atelier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ann = atelier.user()
    id = atelier.order(ann)
    away = database_away(monkeypatch)

    def back() -> None:
        atelier.run()
        away.__exit__(None, None, None)

    told = heard(watch(atelier, ann).look, away.__enter__, nothing, back)
    assert [len(texts) for texts in told] == [2, 0, 0, 2]
    assert read(told[-1])[0] == ("job", {"id": id, "status": "completed"})
    assert caplog.text.count("The database cannot be asked: gone") == 1, "once for each time that it is away"
    assert "secret" not in caplog.text


def test_what_somebody_wrote_cannot_break_a_line(atelier: Atelier) -> None:
    ann = atelier.user()
    prompt = "a hill\n\nevent: credits\ndata: {}\n\u2028<script>"
    atelier.order(ann, prompt)
    looking = Watch(atelier.gallery, atelier.people, ann.id, lambda job: {"prompt": job.prompt})
    ((first, _),) = heard(looking.look)
    assert first.isascii()
    assert read([first]) == [("job", {"prompt": prompt})]
