"""Event streams: limits, keepalives, the end of a session, and database outages."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from apps.studio.tables import entries
from apps.studio.tests.event_kit import credits_event, drain, nothing, read, stream_events, watch
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import SESSION, Credential, User, Users
from apps.studio.web.event_feed import KEEPALIVE_SECONDS, MAX_STREAMS, EventFeed
from apps.studio.web.job_watch import JobWatch


def test_number_of_streams_per_user_is_limited(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who closes a stream may open another."""
    ann, bob = kit.user(), kit.user()

    async def following() -> None:
        feed = EventFeed(kit.gallery, kit.users, asyncio.Event(), kit.clock.now)

        def opened(user: User) -> AsyncGenerator[str]:
            return feed.stream(watch(kit, user), Credential.of("key", user.key or ""))

        streams = [opened(ann) for _ in range(MAX_STREAMS)]
        for each in streams:
            await anext(each)
        assert (feed.is_full(ann.id), feed.is_full(bob.id)) == (True, False)
        assert await drain(opened(ann)) == []
        await anext(theirs := opened(bob))
        await streams.pop().aclose()
        assert not feed.is_full(ann.id)
        await anext(again := opened(ann))
        for each in (*streams, again, theirs):
            await each.aclose()
        assert not feed._streams

    asyncio.run(following())


def test_entry_that_commits_after_a_newer_one_is_sent(kit: StudioKit) -> None:
    """Transactions may commit in another order than their entries' IDs."""
    ann = kit.user()

    def late() -> None:
        with kit.studio.engine.begin() as tx:
            tx.execute(entries.insert().values(id=-1, user_id=ann.id, entry="grant", amount=5))

    (_, told) = stream_events(kit, ann, late)
    assert [data["available"] for _, data in read(told)] == [15]


# ---------------------------------------------------------------- the connection
def test_idle_stream_sends_keepalives(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEEPALIVE_SECONDS == 15.0
    monkeypatch.setattr("apps.studio.web.event_feed.KEEPALIVE_SECONDS", 0.02)

    async def listening() -> list[str]:
        ann, stop = kit.user(), asyncio.Event()
        feed = EventFeed(kit.gallery, kit.users, stop, kit.clock.now)
        lines = feed.stream(watch(kit, ann), Credential.of("key", ann.key or ""))
        told = [await anext(lines) for _ in range(5)]
        stop.set()
        return told + await drain(lines)

    _, credits_event, *alive = asyncio.run(listening())
    assert credits_event.startswith("event: credits")
    assert len(alive) >= 3
    assert all(text.startswith(":") and text.endswith("\n\n") for text in alive)


def test_stream_ends_when_its_credential_expires(kit: StudioKit) -> None:
    """This holds for a replaced key and for an expired session."""
    ann = kit.user(name="ann")
    order, replace_key = (lambda: kit.order(ann, "one")), (lambda: kit.users.replace_key("ann"))
    told = stream_events(kit, ann, order, replace_key, *[lambda: kit.order(ann, "another")] * 1000)
    assert [len(texts) for texts in told[:2]] == [1, 2]
    assert not any(told[2:])
    assert len(told) < 1000, "it has ended by itself"


@pytest.mark.parametrize("end", ["sign out", "thirty days"])
def test_stream_ends_with_its_session(kit: StudioKit, end: str) -> None:
    ann, now = kit.user(), kit.clock.now()
    _, token = kit.users.sign_in(ann.key or "", now)

    async def listening() -> list[str]:
        async def pause(*_: object) -> None:
            if end == "sign out":
                await asyncio.to_thread(kit.users.sign_out, token)
            else:
                kit.clock.advance(SESSION.total_seconds())

        feed = EventFeed(kit.gallery, kit.users, asyncio.Event(), kit.clock.now, pause)
        return await drain(feed.stream(watch(kit, ann), Credential.of("session", token)))

    assert len(asyncio.run(listening())) == 2


def test_failed_poll_ends_all_streams_and_the_next_stream_restarts_it(
    kit: StudioKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, faults, known = kit.user(), [ValueError("a fault of ours")], Users.valid_credentials

    def broken(*given: Any) -> set[Credential]:
        if faults:
            raise faults.pop()
        return known(*given)

    async def listening() -> None:
        stop = asyncio.Event()

        async def pause(*_: object) -> None:
            stop.set()

        feed = EventFeed(kit.gallery, kit.users, stop, kit.clock.now, pause)
        for _ in range(2):
            assert len(await drain(feed.stream(watch(kit, ann), Credential.of("key", ann.key or "")))) == 2
            assert feed._task is not None
            await asyncio.wait([feed._task])
            assert stop.is_set() == (feed._task.exception() is None)

    monkeypatch.setattr(Users, "valid_credentials", broken)
    asyncio.run(listening())


@contextmanager
def database_away(monkeypatch: pytest.MonkeyPatch, verb: str) -> Iterator[None]:
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OperationalError("SELECT secret", {}, Exception("gone"))

        patch.setattr(f"apps.studio.{verb}", fail)
        yield


@pytest.mark.parametrize(
    "verb",
    [
        *(f"gallery.Gallery.{name}" for name in ("changes_of_jobs", "changes", "changes_by_id", "jobs_by_id")),
        "users.Users.valid_credentials",
        "users.Users.balance_versions",
    ],
)
def test_database_outage_loses_no_event(
    kit: StudioKit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: str,
) -> None:
    """This holds whichever query of the poll fails."""
    ann = kit.user()
    id = kit.order(ann)
    away = database_away(monkeypatch, verb)

    def go() -> None:
        kit.run()
        away.__enter__()

    told = stream_events(kit, ann, go, nothing, lambda: away.__exit__(None, None, None), nothing)
    assert [len(texts) for texts in told] == [2, 0, 0, 2, 0]
    assert read(told[3]) == [("job", {"id": id, "status": "completed"}), credits_event(9, 0, 1)]
    assert caplog.text.count("The database is unreachable: gone") == 1, "once for each time that it is unreachable"
    assert "secret" not in caplog.text


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("verb", ["gallery.Gallery.changes_of_open_jobs", "users.Users.balance_versions"])
def test_failed_first_poll_is_repeated(kit: StudioKit, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    ann = kit.user()
    ids = [kit.order(ann, f"number {n}") for n in range(3)]
    away = database_away(monkeypatch, verb)
    away.__enter__()
    told = stream_events(kit, ann, lambda: away.__exit__(None, None, None))
    assert [read(texts) for texts in told] == [
        [],
        [*[("job", {"id": id, "status": "queued"}) for id in ids], credits_event(7, 3)],
    ]


def test_line_breaks_in_a_prompt_are_escaped(kit: StudioKit) -> None:
    ann = kit.user()
    prompt = "a hill\n\nevent: credits\ndata: {}\n\u2028<script>"
    kit.order(ann, prompt)
    looking = JobWatch(kit.gallery, kit.users, ann.id, lambda job: {"prompt": job.prompt})
    ((first, _),) = stream_events(kit, ann, looking=looking)
    assert first.isascii()
    assert read([first]) == [("job", {"prompt": prompt})]
