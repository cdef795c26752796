"""Updates that are repeated, concurrent, shuffled or forged make no second job and reveal nothing."""

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

from apps.courier.bot import make_dispatcher
from apps.courier.callback_data import CallbackCodec, Cancel, Decide, Download
from apps.courier.clients.telegram import Telegram
from apps.courier.polling import UpdatePoller
from apps.courier.tests.bot_driver import BotDriver
from apps.courier.tests.bot_driver import driver as open_driver
from apps.courier.tests.courier_kit import READER, STRANGER, CourierKit
from apps.courier.tests.fake_telegram import Message, Person
from apps.courier.texts import EN

SECRETS = ("emma", "Annabel", "Library", str(READER))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    with open_driver(kit) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_went_wrong(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if the bot logs an unexpected error."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


def open_file(driver: BotDriver, kit: CourierKit, person: Person) -> Message:
    """Return the message that shows this person a file to order."""
    kit.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    driver.send_text(person, "/start")
    driver.press(person, "emma.pdf")
    return person.chat[-1]


def snapshot(kit: CourierKit) -> dict[str, Any]:
    """Return everything that a repeated update must not change."""
    return {
        "users": sorted((user.id, user.name, user.status) for user in kit.service.users()),
        "deliveries": sorted((job.id, job.state) for job in kit.app.jobs(kind="deliver")),
        "rows": kit.row_counts(),
    }


# ---------------------------------------------------------------- repeated
def test_concurrent_clicks_make_one_job(driver: BotDriver, kit: CourierKit) -> None:
    ann = driver.reader(name="Annabel")
    message = open_file(driver, kit, ann)
    for _ in range(8):
        ann.press(message, EN["download"])
    raw = list(kit.telegram.pending)

    async def all_at_once(_: UpdatePoller) -> None:
        clients = kit.courier.clients
        answers = make_dispatcher(kit.service, kit.catalogue, clients, kit.settings)
        await asyncio.gather(
            *(
                answers.feed_update(clients.bot, Update.model_validate(each, context={"bot": clients.bot}))
                for each in raw
            )
        )

    driver.with_poller(all_at_once)
    assert driver.jobs() == ["QUEUED"]
    assert sorted(each.text or "" for each in kit.telegram.answered[-8:]) == sorted(
        [EN["ordered"]] + [EN["already"]] * 7
    )
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"


def play_story(driver: BotDriver, kit: CourierKit) -> None:
    """Play a story from the first /start to a delivery, with a cancelled delivery and a user who is allowed and then
    blocked.
    """
    eve, admin = driver.person(STRANGER, "Eve"), driver.admin
    kit.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    driver.send_text(admin, "/start")
    driver.send_text(eve, "/start")
    driver.press(admin, EN["allow"])
    for label in ("emma.pdf", EN["download"], EN["cancel"], EN["download"]):
        if label == "emma.pdf":
            driver.send_text(eve, "/start")
        driver.press(eve, label, next(each for each in reversed(eve.chat) if each.buttons))
    driver.send_text(driver.person(55, "Mallory"), "/start")
    driver.send_text(admin, "/allow 55")
    driver.send_text(admin, "/block 55")


def test_replaying_all_updates_in_any_order_changes_nothing(driver: BotDriver, kit: CourierKit) -> None:
    play_story(driver, kit)
    before = snapshot(kit)
    assert [status for _, status in before["deliveries"]] == ["CANCELLED", "QUEUED"]
    assert [status for *_, status in before["users"]] == ["ACTIVE", "BLOCKED", "ACTIVE"]
    for seed in range(5):
        kit.telegram.replay(shuffled=Random(seed))
        driver.handle_updates()
        assert snapshot(kit) == before
    kit.run()
    delivered = [each for each in driver.person(STRANGER).chat if each.document]
    assert len(delivered) == 1
    kit.telegram.replay(shuffled=Random(9))
    driver.handle_updates()
    kit.run()
    assert [each for each in driver.person(STRANGER).chat if each.document] == delivered


@pytest.mark.parametrize("nth", range(1, 5))
def test_bot_killed_at_any_message_reaches_the_same_state(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The next bot receives the same updates, and nothing is lost or done twice."""
    admin, eve = driver.admin, driver.person(STRANGER, "Eve")
    kit.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    driver.send_text(admin, "/start")

    def after_a_crash(do: object) -> None:
        del do
        left, say, edit = [nth], Telegram.send_text, Telegram.edit_text

        def dies(method: Any) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return await method(*args, **kwargs)

            return call

        with monkeypatch.context() as dying:
            dying.setattr(Telegram, "send_text", dies(say))
            dying.setattr(Telegram, "edit_text", dies(edit))
            with suppress(Killed):
                driver.handle_updates()
        driver.handle_updates()

    after_a_crash(eve.send_text("/start"))
    asked = next(each for each in reversed(admin.chat) if each.buttons and "requests access" in (each.text or ""))
    after_a_crash(admin.press(asked, EN["allow"]))
    assert EN["welcome"] in [each.text for each in eve.chat]
    after_a_crash(eve.send_text("/start"))
    library = eve.chat[-1]
    after_a_crash(eve.press(library, "📄 emma.pdf"))
    after_a_crash(eve.press(library, EN["download"]))
    assert library.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [card.card_id for card in kit.service.open_cards()] == [library.id]
    assert driver.jobs() == ["QUEUED"]
    kit.run()
    assert len([each for each in eve.chat if each.document]) == 1


def test_handled_but_unconfirmed_batch_makes_no_second_job(driver: BotDriver, kit: CourierKit) -> None:
    ann = driver.reader(name="Annabel")
    message = open_file(driver, kit, ann)
    ann.press(message, EN["download"])
    for _ in range(3):

        async def handled_but_not_confirmed(polling: UpdatePoller) -> None:
            assert await polling.poll_once(wait=0) == 1

        driver.with_poller(handled_but_not_confirmed)
    assert driver.jobs() == ["QUEUED"]
    assert len(kit.service.open_cards()) == 1


# ---------------------------------------------------------------- forged
def forged_data(driver: BotDriver, kit: CourierKit) -> tuple[Person, list[str]]:
    """Return a reader, and callback data that they should not have."""
    ann, bob = driver.reader(name="Annabel"), driver.reader(8, "Bob")
    message = open_file(driver, kit, ann)
    download = message.buttons[0][1]
    driver.press(ann, EN["download"])
    [job] = kit.app.jobs(kind="deliver")
    file_id, callbacks = job.payload["file_id"], CallbackCodec("4242:the-token-of-another-bot-altogether")
    driver.send_text(bob, "/help")
    return bob, [
        download,
        callbacks.pack(Download(file_id), bob.id),
        callbacks.pack(Cancel(job.id), bob.id),
        callbacks.pack(Decide(STRANGER, "ACTIVE"), bob.id),
        callbacks.pack(Decide(bob.id, "BLOCKED"), bob.id),
        download[:-1] + ("A" if download[-1] != "A" else "B"),
        "d:2147483648:AAAAAAAAAAAAAAAAAAA",
        f"d:{file_id}:",
        f"d:{file_id}:{'A' * 19}",
        "f:2147483648",
        "f:-1",
        "b:99999999999999999999:1",
        "b:2147483647:1",
        "a:9999999999999999:A",
        "c:00000000-0000-0000-0000-000000000000",
        "c:" + "f" * 62,
        "\x00",
        "d" * 64,
        "🙂" * 16,
    ]


def test_forged_presses_have_no_effect_and_reveal_nothing(driver: BotDriver, kit: CourierKit) -> None:
    bob, made_up = forged_data(driver, kit)
    kit.add_user(STRANGER, None, name="Eve")
    before, chat = snapshot(kit), [each.text for each in bob.chat]
    for data in made_up:
        assert driver.press_forged(bob, data) in (EN["outdated"], EN["gone"]), data
    assert snapshot(kit) == before
    assert [each.text for each in bob.chat] == chat


def test_forged_presses_of_a_stranger_all_get_the_same_answer(driver: BotDriver, kit: CourierKit) -> None:
    _, made_up = forged_data(driver, kit)
    eve = driver.person(STRANGER, "Eve")
    driver.send_text(eve, "hello")
    before = snapshot(kit)
    for data in [*made_up, "b:0:1", "b:1:1", "f:1", "f:2"]:
        assert driver.press_forged(eve, data) == EN["closed"], data
    assert snapshot(kit) == before
    assert not any(secret in (each.text or "") for each in eve.chat for secret in SECRETS)


def test_random_bytes_do_nothing(driver: BotDriver, kit: CourierKit) -> None:
    ann = driver.reader(name="Annabel")
    open_file(driver, kit, ann)
    eve = driver.person(STRANGER, "Eve")
    driver.send_text(eve, "hello")
    before = snapshot(kit)
    shapes = st.from_regex(r"[dcax]:[0-9]{0,20}:?[\w=-]{0,24}", fullmatch=True)

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=64) | shapes, min_size=1, max_size=20))
    def pressed(everything: list[str]) -> None:
        for data in everything:
            ann.press_forged(data)
            eve.press_forged(data)
        driver.handle_updates()
        answered = kit.telegram.answered[-2 * len(everything) :]
        assert {each.text for each in answered if each.person_id == eve.id} == {EN["closed"]}
        assert EN["wrong"] not in {each.text for each in answered}

    pressed()
    assert {key: value for key, value in snapshot(kit).items() if key != "rows"} == {
        key: value for key, value in before.items() if key != "rows"
    }
    assert kit.app.jobs(kind="deliver") == []
    assert not any(secret in (each.text or "") for each in eve.chat for secret in SECRETS)
