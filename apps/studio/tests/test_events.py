"""The event stream: first recent jobs, then each change once, until it is stopped or the session ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from apps.studio.gallery import Changes, Gallery
from apps.studio.tests.event_kit import counted, credits_event, drain, jobs, nothing, read, stream_events, watch
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import Credential
from apps.studio.web.event_feed import EventFeed
from apps.studio.web.job_watch import JobWatch


def test_first_poll_sends_all_and_later_polls_only_changes(kit: StudioKit) -> None:
    ann, bob = kit.user(), kit.user()
    first, second = kit.order(ann, "one"), kit.order(ann, "two")

    def fail() -> None:
        kit.images.fail(*[Fault.trouble()] * 3)
        kit.run()

    told = stream_events(kit, ann, nothing, lambda: kit.order(bob), fail, nothing, lambda: kit.run_after(4000), nothing)
    assert [read(texts) for texts in told] == [
        [("job", {"id": first, "status": "queued"}), ("job", {"id": second, "status": "queued"}), credits_event(8, 2)],
        [],
        [],
        [("job", {"id": first, "status": "failed"}), ("job", {"id": second, "status": "failed"})],
        [],
        [
            ("job", {"id": first, "status": "completed"}),
            ("job", {"id": second, "status": "completed"}),
            credits_event(8, 0, 2),
        ],
        [],
    ]


def test_new_orders_and_grants_are_sent(kit: StudioKit) -> None:
    ann = kit.user(name="ann")
    made: list[str] = []

    def order() -> None:
        made.append(kit.order(ann, f"number {len(made)}"))

    told = stream_events(kit, ann, order, order, lambda: kit.users.grant("ann", 5, None))
    assert [read(texts) for texts in told] == [
        [credits_event(10)],
        [("job", {"id": made[0], "status": "queued"}), credits_event(9, 1)],
        [("job", {"id": made[1], "status": "queued"}), credits_event(8, 2)],
        [("credits", {"granted": 15, "available": 13, "reserved": 2, "captured": 0, "forfeited": 0})],
    ]


def test_job_that_changes_during_a_poll_is_sent_once(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes after its change time was read and before the job was read. The credits follow with the next poll."""
    ann = kit.user()
    id, looking = kit.order(ann), watch(kit, ann)
    changes = kit.gallery.changes

    def moved(*given: Any) -> Changes:
        found = changes(*given)
        if kit.state(id) == "queued":
            kit.run()
        return found

    monkeypatch.setattr(type(kit.gallery), "changes", lambda _, *given: moved(*given))
    told = [read(texts) for texts in stream_events(kit, ann, nothing, looking=looking)]
    assert told == [[("job", {"id": id, "status": "completed"}), credits_event(9, 1), credits_event(9, 0, 1)], []]


def test_new_due_time_of_a_job_is_sent(kit: StudioKit) -> None:
    """The state does not change, but the card shows another time."""
    ann = kit.user()
    id = kit.order(ann)
    kit.images.fail(Fault.limited(70))
    kit.run()
    looking = JobWatch(
        kit.gallery,
        kit.users,
        ann.id,
        lambda job: {"id": job.id, "due": (job.due_at - kit.clock.now()).total_seconds()},
    )
    told = stream_events(kit, ann, lambda: kit.order(ann), nothing, looking=looking)
    assert [read(texts)[:1] for texts in told] == [
        [("job", {"id": id, "due": 70.0})],
        [("job", {"id": id, "due": 0.0})],
        [],
    ]


# ---------------------------------------------------------------- watched jobs
@pytest.mark.usefixtures("few")
def test_only_the_newest_ended_jobs_are_sent(kit: StudioKit) -> None:
    ann = kit.user()
    ids = [kit.order(ann, f"number {n}") for n in range(3)]
    kit.run()
    told = stream_events(kit, ann, nothing)
    assert [jobs(texts) for texts in told] == [[(ids[1], "completed"), (ids[2], "completed")], []]


@pytest.mark.usefixtures("few")
def test_open_jobs_are_watched_until_they_end(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the oldest job, behind many newer ones."""
    ann = kit.user()
    ids, asked = [kit.order(ann, f"number {n}") for n in range(5)], counted(monkeypatch, Gallery, "changes_by_id")

    def reject(id: str) -> Callable[[], None]:
        return lambda: kit.orders.reject(id, by="olga", reason="no")

    told = stream_events(kit, ann, reject(ids[0]), nothing, reject(ids[1]), kit.run, nothing)
    assert [jobs(texts) for texts in told] == [
        [(id, "queued") for id in ids],
        [(ids[0], "rejected")],
        [],
        [(ids[1], "rejected")],
        [(id, "completed") for id in ids[2:]],
        [],
    ]
    assert [len(behind) for _, behind in asked] == [0, 3, 2, 1], "and no longer"


@pytest.mark.usefixtures("few")
def test_many_new_jobs_at_once_lose_no_change(kit: StudioKit) -> None:
    ann = kit.user()
    old, new = kit.order(ann, "the old one"), list[str]()

    def order() -> None:
        kit.run()
        new.extend(kit.order(ann, f"number {n}") for n in range(5))

    told = stream_events(kit, ann, order, nothing)
    assert [jobs(texts) for texts in told] == [
        [(old, "queued")],
        [(old, "completed"), *[(id, "queued") for id in new]],
        [],
    ]


# ---------------------------------------------------------------- queries
def test_polls_read_only_changed_jobs_and_the_history_once(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = kit.user()
    ids = [kit.order(ann, f"number {n}") for n in range(3)]
    reads, walks = counted(monkeypatch, Gallery, "jobs_by_id"), counted(monkeypatch, Gallery, "changes_of_open_jobs")
    stream_events(
        kit,
        ann,
        nothing,
        lambda: kit.orders.reject(ids[1], by="olga", reason="no"),
        lambda: ids.append(kit.order(ann)),
        nothing,
    )
    assert [sorted(read) for _, read in reads] == [ids[:3], [ids[1]], [ids[3]]], "polls without changes read nothing"
    assert len(walks) == 1


def test_job_that_fails_between_two_polls_is_sent(kit: StudioKit) -> None:
    """Its credits were released, so the balance is unchanged."""
    ann = kit.user()
    made: list[str] = []

    def bury() -> None:
        kit.images.fail(Fault.unauthorized())
        made.append(kit.order(ann))
        kit.run()

    told = stream_events(kit, ann, bury, nothing)
    assert [read(texts) for texts in told] == [
        [credits_event(10)],
        [("job", {"id": made[0], "status": "dead_letter"})],
        [],
    ]


def test_order_during_a_poll_is_sent_by_the_next_poll(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, changes, made = kit.user(), Gallery.changes, list[str]()

    def late(self: Gallery, *given: Any) -> Changes:
        found = changes(self, *given)
        if not made:
            made.append(kit.order(ann))
        return found

    monkeypatch.setattr(Gallery, "changes", late)
    told = stream_events(kit, ann, nothing)
    assert [jobs(texts) for texts in told] == [[(made[0], "queued")], []]


def test_all_streams_of_a_process_share_one_poll(kit: StudioKit) -> None:
    """Without changes, thirty streams run as few queries as one; if one user's job changes, no other stream queries."""
    users = [kit.user() for _ in range(30)]
    ids = [kit.order(user) for user in users]
    questions: list[int] = []

    async def following(count: int) -> None:
        stop, asked, rounds = asyncio.Event(), list[str](), list[int]()
        event.listen(kit.studio.engine, "before_cursor_execute", listener := lambda *given: asked.append(given[2]))

        async def pause(*_: object) -> None:
            if len(feed._subscribers) < count:
                await asyncio.sleep(0.001)
                return
            rounds.append(len(asked))
            if len(rounds) == 3:
                await asyncio.to_thread(kit.orders.reject, ids[count // 2], by="olga", reason="no")
                rounds.append(len(asked))
            if len(rounds) == 5:
                stop.set()

        feed = EventFeed(kit.gallery, kit.users, stop, kit.clock.now, pause)
        await asyncio.gather(
            *(drain(feed.stream(watch(kit, user), Credential.of("key", user.key or ""))) for user in users[:count])
        )
        event.remove(kit.studio.engine, "before_cursor_execute", listener)
        questions.append(rounds[2] - rounds[1])
        assert rounds[4] - rounds[3] <= 2 * (rounds[2] - rounds[1]) + 4, "one looks"

    asyncio.run(following(1))
    asyncio.run(following(30))
    assert questions[1] <= questions[0]
