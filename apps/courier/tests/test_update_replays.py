"""Promises about updates that come twice, at once, in any order, or from whom they should not: they make no second job and tell nobody anything."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from aiogram.types import Update
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.courier.bot import dispatcher
from apps.courier.callbacks import Callbacks, Cancel, Decide, Download
from apps.courier.polling import Polling
from apps.courier.telegram import Telegram
from apps.courier.tests.bot_api import Message, Person
from apps.courier.tests.counter import Counter
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import READER, STRANGER, Office
from apps.courier.words import EN

SECRETS = ("emma", "Annabel", "Library", str(READER))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def counter(office: Office) -> Iterator[Counter]:
    with open_counter(office) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_went_wrong(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing here may end in an error that the bot has not foreseen."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


def shown_file(counter: Counter, office: Office, person: Person) -> Message:
    """The message in which this person sees a file that they may order."""
    office.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    counter.says(person, "/start")
    counter.presses(person, "emma.pdf")
    return person.chat[-1]


def state(office: Office) -> dict[str, Any]:
    """All that must not change when something is said again."""
    return {
        "users": sorted((user.id, user.name, user.status) for user in office.desk.users()),
        "deliveries": sorted((job.id, job.state) for job in office.app.jobs(kind="deliver")),
        "rows": office.stored(),
    }


# ---------------------------------------------------------------- twice
def test_clicks_at_once_make_one_job(counter: Counter, office: Office) -> None:
    ann = counter.reader(name="Annabel")
    message = shown_file(counter, office, ann)
    for _ in range(8):
        ann.presses(message, EN["download"])
    raw = list(office.telegram.pending)

    async def all_at_once(_: Polling) -> None:
        outside = office.courier.outside
        answers = dispatcher(office.desk, office.catalogue, outside, office.settings)
        await asyncio.gather(*(answers.feed_update(outside.bot, Update.model_validate(each, context={"bot": outside.bot})) for each in raw))

    counter.within(all_at_once)
    assert counter.jobs() == ["QUEUED"]
    assert sorted(each.text or "" for each in office.telegram.answered[-8:]) == sorted([EN["ordered"]] + [EN["already"]] * 7)
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"


def story(counter: Counter, office: Office) -> None:
    """From the first /start to a delivery, with one that was cancelled on the way, and somebody who was let in and shut out."""
    eve, admin = counter.person(STRANGER, "Eve"), counter.admin
    office.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    counter.says(admin, "/start")
    counter.says(eve, "/start")
    counter.presses(admin, EN["allow"])
    for label in ("emma.pdf", EN["download"], EN["cancel"], EN["download"]):
        if label == "emma.pdf":
            counter.says(eve, "/start")
        counter.presses(eve, label, next(each for each in reversed(eve.chat) if each.buttons))
    counter.says(counter.person(55, "Mallory"), "/start")
    counter.says(admin, "/allow 55")
    counter.says(admin, "/block 55")


def test_everything_said_again_five_times_in_any_order_changes_nothing(counter: Counter, office: Office) -> None:
    story(counter, office)
    before = state(office)
    assert [status for _, status in before["deliveries"]] == ["CANCELLED", "QUEUED"]
    assert [status for *_, status in before["users"]] == ["ACTIVE", "BLOCKED", "ACTIVE"]
    for seed in range(5):
        office.telegram.replay(shuffled=Random(seed))
        counter.answer()
        assert state(office) == before
    office.run()
    delivered = [each for each in counter.person(STRANGER).chat if each.document]
    assert len(delivered) == 1
    office.telegram.replay(shuffled=Random(9))
    counter.answer()
    office.run()
    assert [each for each in counter.person(STRANGER).chat if each.document] == delivered


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_bot_that_is_killed_anywhere_ends_where_one_that_was_not_does(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Whatever it was about to say to Telegram when it was killed: the next bot takes the same updates, and nothing is lost or done twice."""
    admin, eve = counter.admin, counter.person(STRANGER, "Eve")
    office.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    counter.says(admin, "/start")

    def after_a_crash(do: object) -> None:
        del do
        left, say, edit = [nth], Telegram.say, Telegram.edit

        def dies(method: Any) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return await method(*args, **kwargs)

            return call

        with monkeypatch.context() as dying:
            dying.setattr(Telegram, "say", dies(say))
            dying.setattr(Telegram, "edit", dies(edit))
            with suppress(Killed):
                counter.answer()
        counter.answer()

    after_a_crash(eve.says("/start"))
    asked = next(each for each in reversed(admin.chat) if each.buttons and "asks" in (each.text or ""))
    after_a_crash(admin.presses(asked, EN["allow"]))
    assert EN["welcome"] in [each.text for each in eve.chat]
    after_a_crash(eve.says("/start"))
    library = eve.chat[-1]
    after_a_crash(eve.presses(library, "📄 emma.pdf"))
    after_a_crash(eve.presses(library, EN["download"]))
    assert library.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [card.card_id for card in office.desk.open_cards()] == [library.id]
    assert counter.jobs() == ["QUEUED"]
    office.run()
    assert len([each for each in eve.chat if each.document]) == 1


def test_a_batch_that_was_handled_and_never_confirmed_makes_no_second_job(counter: Counter, office: Office) -> None:
    ann = counter.reader(name="Annabel")
    message = shown_file(counter, office, ann)
    ann.presses(message, EN["download"])
    for _ in range(3):

        async def handled_but_not_confirmed(polling: Polling) -> None:
            assert await polling.turn(wait=0) == 1

        counter.within(handled_but_not_confirmed)
    assert counter.jobs() == ["QUEUED"]
    assert len(office.desk.open_cards()) == 1


# ---------------------------------------------------------------- forged
def forged(counter: Counter, office: Office) -> tuple[Person, list[str]]:
    """A reader who may look at the library, and data that they should not have."""
    ann, bob = counter.reader(name="Annabel"), counter.reader(8, "Bob")
    message = shown_file(counter, office, ann)
    download = message.buttons[0][1]
    counter.presses(ann, EN["download"])
    [job] = office.app.jobs(kind="deliver")
    file_id, callbacks = job.payload["file_id"], Callbacks("4242:somebody-elses-token-altogether")
    counter.says(bob, "/help")
    return bob, [
        download, callbacks.pack(Download(file_id), bob.id), callbacks.pack(Cancel(job.id), bob.id), callbacks.pack(Decide(STRANGER, "ACTIVE"), bob.id),
        callbacks.pack(Decide(bob.id, "BLOCKED"), bob.id), download[:-1] + ("A" if download[-1] != "A" else "B"), "d:2147483648:AAAAAAAAAAAAAAAAAAA",
        f"d:{file_id}:", f"d:{file_id}:{'A' * 19}", "f:2147483648", "f:-1", "b:99999999999999999999:1", "b:2147483647:1", "a:9999999999999999:A",
        "c:00000000-0000-0000-0000-000000000000", "c:" + "f" * 62, "\x00", "d" * 64, "🙂" * 16,
    ]  # fmt: skip


def test_forged_presses_do_nothing_and_tell_nothing(counter: Counter, office: Office) -> None:
    bob, made_up = forged(counter, office)
    office.user(STRANGER, None, name="Eve")
    before, chat = state(office), [each.text for each in bob.chat]
    for data in made_up:
        assert counter.forges(bob, data) in (EN["outdated"], EN["gone"]), data
    assert state(office) == before
    assert [each.text for each in bob.chat] == chat


def test_forged_presses_of_a_stranger_all_get_the_same_answer(counter: Counter, office: Office) -> None:
    _, made_up = forged(counter, office)
    eve = counter.person(STRANGER, "Eve")
    counter.says(eve, "hello")
    before = state(office)
    for data in [*made_up, "b:0:1", "b:1:1", "f:1", "f:2"]:
        assert counter.forges(eve, data) == EN["closed"], data
    assert state(office) == before
    assert not any(secret in (each.text or "") for each in eve.chat for secret in SECRETS)


def test_random_bytes_do_nothing(counter: Counter, office: Office) -> None:
    ann = counter.reader(name="Annabel")
    shown_file(counter, office, ann)
    eve = counter.person(STRANGER, "Eve")
    counter.says(eve, "hello")
    before = state(office)
    shapes = st.from_regex(r"[dcax]:[0-9]{0,20}:?[\w=-]{0,24}", fullmatch=True)

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=64) | shapes, min_size=1, max_size=20))
    def pressed(everything: list[str]) -> None:
        for data in everything:
            ann.forges(data)
            eve.forges(data)
        counter.answer()
        answered = office.telegram.answered[-2 * len(everything) :]
        assert {each.text for each in answered if each.person_id == eve.id} == {EN["closed"]}
        assert EN["wrong"] not in {each.text for each in answered}

    pressed()
    assert {key: value for key, value in state(office).items() if key != "rows"} == {key: value for key, value in before.items() if key != "rows"}
    assert office.app.jobs(kind="deliver") == []
    assert not any(secret in (each.text or "") for each in eve.chat for secret in SECRETS)
