"""Promises about the stream of what changes: first all that is recent, then exactly the changes, until it is told to stop or the session ends."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from apps.studio.events import RECENT, Watch
from apps.studio.feed import EVERY, QUIET, STREAMS, Feed
from apps.studio.gallery import Changes, Gallery
from apps.studio.people import SESSION, Credential, People, User
from apps.studio.tables import entries
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier

Told = list[tuple[str, dict[str, Any]]]


def watch(atelier: Atelier, user: User) -> Watch:
    return Watch(atelier.gallery, atelier.people, user.id, lambda job: {"id": job.id, "status": job.status})


def heard(atelier: Atelier, user: User, *acts: Callable[[], object], looking: Watch | None = None) -> list[list[str]]:
    """What a stream tells at first, and after each of these acts; then it is told to stop."""
    return asyncio.run(_heard(atelier, user, looking or watch(atelier, user), list(acts)))


async def _heard(atelier: Atelier, user: User, looking: Watch, acts: list[Callable[[], object]]) -> list[list[str]]:
    stop, told = asyncio.Event(), [[]]

    async def pause(given: asyncio.Event, seconds: float) -> None:
        assert given is stop
        assert seconds >= EVERY
        while any(each.news for each in feed._followers):  # noqa: ASYNC110 - the stream has no event for having been read
            await asyncio.sleep(0)
        if not acts:
            stop.set()
            return
        await asyncio.to_thread(acts.pop(0))
        told.append([])

    feed = Feed(atelier.gallery, atelier.people, stop, atelier.clock.now, pause)
    lines = feed.stream(looking, Credential.of("key", user.key or ""))
    assert await anext(lines) == "retry: 1000\n\n", "a browser is told how soon to come back"
    async for text in lines:
        told[-1].append(text)
    assert not feed._followers
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

    told = heard(atelier, ann, nothing, lambda: atelier.order(bob), fail, nothing, lambda: atelier.later(4000), nothing)
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

    told = heard(atelier, ann, order, order, lambda: atelier.people.grant("ann", 5, None))
    assert [read(texts) for texts in told] == [
        [credits(10)], [("job", {"id": made[0], "status": "queued"}), credits(9, 1)], [("job", {"id": made[1], "status": "queued"}), credits(8, 2)],
        [("credits", {"granted": 15, "available": 13, "reserved": 2, "captured": 0, "forfeited": 0})],
    ]


def test_a_job_that_moves_while_it_is_read_is_told_once(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes were found before it moved, and the jobs read afterwards. The credits follow with the next look."""
    ann = atelier.user()
    id, looking = atelier.order(ann), watch(atelier, ann)
    changes = atelier.gallery.changes

    def moved(*given: Any) -> Changes:
        found = changes(*given)
        if atelier.state(id) == "queued":
            atelier.run()
        return found

    monkeypatch.setattr(type(atelier.gallery), "changes", lambda _, *given: moved(*given))
    told = [read(texts) for texts in heard(atelier, ann, nothing, looking=looking)]
    assert told == [[("job", {"id": id, "status": "completed"}), credits(9, 1), credits(9, 0, 1)], []]


def test_the_same_wish_that_hurries_a_job_is_told(atelier: Atelier) -> None:
    """It moves nothing, and yet the job is due at another time than the card says."""
    ann = atelier.user()
    id = atelier.order(ann)
    atelier.images.fail(Fault.limited(70))
    atelier.run()
    looking = Watch(atelier.gallery, atelier.people, ann.id, lambda job: {"id": job.id, "due": (job.due_at - atelier.clock.now()).total_seconds()})
    told = heard(atelier, ann, lambda: atelier.order(ann), nothing, looking=looking)
    assert [read(texts)[:1] for texts in told] == [[("job", {"id": id, "due": 70.0})], [("job", {"id": id, "due": 0.0})], []]


# ---------------------------------------------------------------- which jobs
def jobs(texts: list[str]) -> list[tuple[str, str]]:
    return [(data["id"], data["status"]) for event, data in read(texts) if event == "job"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest, two are followed, so that few tell of many."""
    assert RECENT == 100
    monkeypatch.setattr("apps.studio.events.RECENT", 2)


@pytest.mark.usefixtures("few")
def test_of_what_has_ended_only_the_newest_is_told(atelier: Atelier) -> None:
    ann = atelier.user()
    ids = [atelier.order(ann, f"number {n}") for n in range(3)]
    atelier.run()
    told = heard(atelier, ann, nothing)
    assert [jobs(texts) for texts in told] == [[(ids[1], "completed"), (ids[2], "completed")], []]


@pytest.mark.usefixtures("few")
def test_whatever_has_not_ended_is_followed_to_its_end_however_old(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is made first, when many newer ones wait behind it."""
    ann = atelier.user()
    ids, asked = [atelier.order(ann, f"number {n}") for n in range(5)], counted(monkeypatch, Gallery, "changes_of")

    def reject(id: str) -> Callable[[], None]:
        return lambda: atelier.counter.reject(id, by="olga", reason="no")

    told = heard(atelier, ann, reject(ids[0]), nothing, reject(ids[1]), atelier.run, nothing)
    assert [jobs(texts) for texts in told] == [
        [(id, "queued") for id in ids], [(ids[0], "rejected")], [], [(ids[1], "rejected")], [(id, "completed") for id in ids[2:]], []]
    assert [len(behind) for _, behind in asked] == [0, 3, 2, 1], "and no longer"


@pytest.mark.usefixtures("few")
def test_many_new_ones_at_once_are_all_told_and_none_that_ended_behind_them_is_lost(atelier: Atelier) -> None:
    ann = atelier.user()
    old, new = atelier.order(ann, "the old one"), list[str]()

    def order() -> None:
        atelier.run()
        new.extend(atelier.order(ann, f"number {n}") for n in range(5))

    told = heard(atelier, ann, order, nothing)
    assert [jobs(texts) for texts in told] == [[(old, "queued")], [(old, "completed"), *[(id, "queued") for id in new]], []]


# ---------------------------------------------------------------- what it costs
def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[tuple[Any, ...]]:
    """What this verb is asked from now on."""
    asked, verb = list[tuple[Any, ...]](), getattr(of, name)
    monkeypatch.setattr(of, name, lambda self, *given: (asked.append(given), verb(self, *given))[1])
    return asked


def test_only_what_changed_is_read_and_a_users_history_is_walked_through_once(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = atelier.user()
    ids = [atelier.order(ann, f"number {n}") for n in range(3)]
    reads, walks = counted(monkeypatch, Gallery, "these"), counted(monkeypatch, Gallery, "changes_of_unended")
    heard(atelier, ann, nothing, lambda: atelier.counter.reject(ids[1], by="olga", reason="no"), lambda: ids.append(atelier.order(ann)), nothing)
    assert [sorted(read) for _, read in reads] == [ids[:3], [ids[1]], [ids[3]]], "and nobody looks where nothing has changed"
    assert len(walks) == 1


def test_order_that_is_buried_between_two_looks_is_told(atelier: Atelier) -> None:
    """Its credits came back, so the balance is as it was."""
    ann = atelier.user()
    made: list[str] = []

    def bury() -> None:
        atelier.images.fail(Fault.unauthorized())
        made.append(atelier.order(ann))
        atelier.run()

    told = heard(atelier, ann, bury, nothing)
    assert [read(texts) for texts in told] == [[credits(10)], [("job", {"id": made[0], "status": "dead_letter"})], []]


def test_order_that_is_stored_while_somebody_looks_is_told_by_the_next_look(
        atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, changes, made = atelier.user(), Gallery.changes, list[str]()

    def late(self: Gallery, *given: Any) -> Changes:
        found = changes(self, *given)
        if not made:
            made.append(atelier.order(ann))
        return found

    monkeypatch.setattr(Gallery, "changes", late)
    told = heard(atelier, ann, nothing)
    assert [jobs(texts) for texts in told] == [[(made[0], "queued")], []]


def test_all_streams_of_a_process_ask_the_database_together(atelier: Atelier) -> None:
    """Without changes, thirty streams run as few queries as one; if one user's job changes, no other stream queries."""
    users = [atelier.user() for _ in range(30)]
    ids = [atelier.order(user) for user in users]
    questions: list[int] = []

    async def following(count: int) -> None:
        stop, asked, rounds = asyncio.Event(), list[str](), list[int]()
        event.listen(atelier.studio.engine, "before_cursor_execute", listener := lambda *given: asked.append(given[2]))

        async def pause(*_: object) -> None:
            if len(feed._followers) < count:
                await asyncio.sleep(0.001)
                return
            rounds.append(len(asked))
            if len(rounds) == 3:
                await asyncio.to_thread(atelier.counter.reject, ids[count // 2], by="olga", reason="no")
                rounds.append(len(asked))
            if len(rounds) == 5:
                stop.set()

        feed = Feed(atelier.gallery, atelier.people, stop, atelier.clock.now, pause)
        await asyncio.gather(*(
            _drained(feed.stream(watch(atelier, user), Credential.of("key", user.key or ""))) for user in users[:count]))
        event.remove(atelier.studio.engine, "before_cursor_execute", listener)
        questions.append(rounds[2] - rounds[1])
        assert rounds[4] - rounds[3] <= 2 * (rounds[2] - rounds[1]) + 4, "one looks"

    asyncio.run(following(1))
    asyncio.run(following(30))
    assert questions[1] <= questions[0]


async def _drained(lines: AsyncGenerator[str]) -> list[str]:
    return [line async for line in lines]


def test_user_has_a_bounded_number_of_streams(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is per user, and a user who closes a stream may open another."""
    ann, bob = atelier.user(), atelier.user()

    async def following() -> None:
        feed = Feed(atelier.gallery, atelier.people, asyncio.Event(), atelier.clock.now)

        def opened(user: User) -> AsyncGenerator[str]:
            return feed.stream(watch(atelier, user), Credential.of("key", user.key or ""))

        streams = [opened(ann) for _ in range(STREAMS)]
        for each in streams:
            await anext(each)
        assert (feed.full(ann.id), feed.full(bob.id)) == (True, False)
        assert await _drained(opened(ann)) == []
        await anext(theirs := opened(bob))
        await streams.pop().aclose()
        assert not feed.full(ann.id)
        await anext(again := opened(ann))
        for each in (*streams, again, theirs):
            await each.aclose()
        assert not feed._streams

    asyncio.run(following())


def test_an_entry_that_is_seen_later_than_a_newer_one_is_told(atelier: Atelier) -> None:
    """A transaction that took its number first may end last."""
    ann = atelier.user()

    def late() -> None:
        with atelier.studio.engine.begin() as tx:
            tx.execute(entries.insert().values(id=-1, user_id=ann.id, entry="grant", amount=5))

    (_, told) = heard(atelier, ann, late)
    assert [data["available"] for _, data in read(told)] == [15]


# ---------------------------------------------------------------- the line
def test_a_line_without_news_is_kept_alive(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUIET == 15.0
    monkeypatch.setattr("apps.studio.feed.QUIET", 0.02)

    async def listening() -> list[str]:
        ann, stop = atelier.user(), asyncio.Event()
        feed = Feed(atelier.gallery, atelier.people, stop, atelier.clock.now)
        lines = feed.stream(watch(atelier, ann), Credential.of("key", ann.key or ""))
        told = [await anext(lines) for _ in range(5)]
        stop.set()
        return told + await _drained(lines)

    _, credits, *alive = asyncio.run(listening())
    assert credits.startswith("event: credits")
    assert len(alive) >= 3
    assert all(text.startswith(":") and text.endswith("\n\n") for text in alive)


def test_stream_ends_when_its_credential_expires(atelier: Atelier) -> None:
    """With a key that was replaced, and in an expired session."""
    ann = atelier.user(name="ann")
    order, rekey = (lambda: atelier.order(ann, "one")), (lambda: atelier.people.rekey("ann"))
    told = heard(atelier, ann, order, rekey, *[lambda: atelier.order(ann, "another")] * 1000)
    assert [len(texts) for texts in told[:2]] == [1, 2]
    assert not any(told[2:])
    assert len(told) < 1000, "it has ended by itself"


@pytest.mark.parametrize("end", ["sign out", "thirty days"])
def test_stream_ends_with_its_session(atelier: Atelier, end: str) -> None:
    ann, now = atelier.user(), atelier.clock.now()
    _, token = atelier.people.sign_in(ann.key or "", now)

    async def listening() -> list[str]:
        async def pause(*_: object) -> None:
            if end == "sign out":
                await asyncio.to_thread(atelier.people.sign_out, token)
            else:
                atelier.clock.advance(SESSION.total_seconds())

        feed = Feed(atelier.gallery, atelier.people, asyncio.Event(), atelier.clock.now, pause)
        return await _drained(feed.stream(watch(atelier, ann), Credential.of("session", token)))

    assert len(asyncio.run(listening())) == 2


def test_feed_that_breaks_ends_its_streams_and_the_next_starts_it_anew(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, faults, known = atelier.user(), [ValueError("a fault of ours")], People.known

    def broken(*given: Any) -> set[Credential]:
        if faults:
            raise faults.pop()
        return known(*given)

    async def listening() -> None:
        stop = asyncio.Event()

        async def pause(*_: object) -> None:
            stop.set()

        feed = Feed(atelier.gallery, atelier.people, stop, atelier.clock.now, pause)
        for _ in range(2):
            assert len(await _drained(feed.stream(watch(atelier, ann), Credential.of("key", ann.key or "")))) == 2
            assert feed._task is not None
            await asyncio.wait([feed._task])
            assert stop.is_set() == (feed._task.exception() is None)

    monkeypatch.setattr(People, "known", broken)
    asyncio.run(listening())


@contextmanager
def database_away(monkeypatch: pytest.MonkeyPatch, verb: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        def fail(*_: object) -> None:
            raise OperationalError("SELECT secret", {}, Exception("gone"))

        patch.setattr(f"apps.studio.{verb}", fail)
        yield


@pytest.mark.parametrize("verb", [
    *(f"gallery.Gallery.{name}" for name in ("changed", "changes", "changes_of", "these")), "people.People.known", "people.People.standing"])
def test_a_database_that_goes_and_comes_back_loses_nothing(
    atelier: Atelier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str,
) -> None:
    """Whichever question is the one that it does not answer."""
    ann = atelier.user()
    id = atelier.order(ann)
    away = database_away(monkeypatch, verb)

    def go() -> None:
        atelier.run()
        away.__enter__()

    told = heard(atelier, ann, go, nothing, lambda: away.__exit__(None, None, None), nothing)
    assert [len(texts) for texts in told] == [2, 0, 0, 2, 0]
    assert read(told[3]) == [("job", {"id": id, "status": "completed"}), credits(9, 0, 1)]
    assert caplog.text.count("The database cannot be asked: gone") == 1, "once for each time that it is away"
    assert "secret" not in caplog.text


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("verb", ["gallery.Gallery.changes_of_unended", "people.People.standing"])
def test_a_first_look_that_fails_is_made_again(atelier: Atelier, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    ann = atelier.user()
    ids = [atelier.order(ann, f"number {n}") for n in range(3)]
    away = database_away(monkeypatch, verb)
    away.__enter__()
    told = heard(atelier, ann, lambda: away.__exit__(None, None, None))
    assert [read(texts) for texts in told] == [[], [*[("job", {"id": id, "status": "queued"}) for id in ids], credits(7, 3)]]


def test_what_somebody_wrote_cannot_break_a_line(atelier: Atelier) -> None:
    ann = atelier.user()
    prompt = "a hill\n\nevent: credits\ndata: {}\n\u2028<script>"
    atelier.order(ann, prompt)
    looking = Watch(atelier.gallery, atelier.people, ann.id, lambda job: {"prompt": job.prompt})
    ((first, _),) = heard(atelier, ann, looking=looking)
    assert first.isascii()
    assert read([first]) == [("job", {"prompt": prompt})]
