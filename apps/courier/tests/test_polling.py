"""Receiving updates: at least once, in order per user, regardless of errors."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from aiogram import Bot, Dispatcher
from aiogram.types import Update

from apps.courier import polling
from apps.courier.errors import PermanentError, TemporaryError
from apps.courier.polling import UpdatePoller
from apps.courier.tests.bot_driver import BotDriver
from apps.courier.tests.bot_driver import driver as open_driver
from apps.courier.tests.courier_kit import CourierKit
from apps.courier.tests.fake_telegram import FakeTelegram

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    with open_driver(kit) as made:
        yield made


class RecordingDispatcher:
    """Replaces the dispatcher and records the updates. Subclasses override `on`."""

    def __init__(self) -> None:
        self.handled_texts: list[str] = []
        self.handled = asyncio.Event()

    async def feed_update(self, bot: Bot, update: Update) -> None:
        del bot
        text = (update.message and update.message.text) or ""
        await self.on(text)
        self.handled_texts.append(text)
        self.handled.set()

    async def on(self, text: str) -> None:
        """Called before an update is recorded."""


def make_poller(driver: BotDriver, dispatcher: RecordingDispatcher) -> UpdatePoller:
    return UpdatePoller(cast("Dispatcher", dispatcher), driver.kit.courier.clients)


def test_unconfirmed_updates_are_received_again(driver: BotDriver) -> None:
    driver.person().send_text("one")
    first, second, third = RecordingDispatcher(), RecordingDispatcher(), RecordingDispatcher()
    assert driver.runner.run(make_poller(driver, first).poll_once(0)) == 1
    again = make_poller(driver, second)
    driver.runner.run(again.poll_once(0))
    assert (first.handled_texts, second.handled_texts) == (["one"], ["one"])
    assert driver.runner.run(again.poll_once(0)) == 0
    assert driver.runner.run(make_poller(driver, third).poll_once(0)) == 0


def test_partly_handled_batch_is_received_again(driver: BotDriver) -> None:
    class Killed(BaseException):
        pass

    class Dies(RecordingDispatcher):
        async def on(self, text: str) -> None:
            if text == "two":
                raise Killed

    driver.person().send_text("one")
    driver.person().send_text("two")
    dying = make_poller(driver, Dies())
    with pytest.raises(Killed):
        driver.runner.run(dying.poll_once(0))
    assert [each["update_id"] for each in driver.kit.telegram.pending] == [1000, 1001]
    with pytest.raises(Killed):
        driver.runner.run(dying.poll_once(0))


def test_users_are_answered_concurrently_and_each_in_order(driver: BotDriver) -> None:
    bob_spoke = asyncio.Event()

    class Waits(RecordingDispatcher):
        async def on(self, text: str) -> None:
            if text == "bob":
                bob_spoke.set()
            if text == "ann 1":
                await asyncio.wait_for(bob_spoke.wait(), 10)

    dispatcher = Waits()
    for text in ("ann 1", "ann 2", "ann 3"):
        driver.person(7).send_text(text)
    driver.person(8, "Bob").send_text("bob")
    driver.runner.run(make_poller(driver, dispatcher).poll_once(0))
    assert dispatcher.handled_texts == ["bob", "ann 1", "ann 2", "ann 3"]


def test_failing_handler_does_not_stop_the_others(driver: BotDriver, caplog: pytest.LogCaptureFixture) -> None:
    class Raises(RecordingDispatcher):
        async def on(self, text: str) -> None:
            if text == "one":
                raise RuntimeError("70707070 has secrets")

    dispatcher = Raises()
    driver.person(70_707_070).send_text("one")
    driver.person(70_707_070).send_text("two")
    driver.runner.run(make_poller(driver, dispatcher).poll_once(0))
    assert dispatcher.handled_texts == ["two"]
    assert "RuntimeError" in caplog.text
    assert "70707070" not in caplog.text


def test_unreadable_update_does_not_hide_the_others(driver: BotDriver, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = RecordingDispatcher()
    driver.kit.telegram.add_update("message", {"message_id": "seventy", "text": "private words"})
    driver.kit.telegram.add_update("callback_query", {"id": 5})
    driver.person().send_text("one")
    poller = make_poller(driver, dispatcher)
    assert driver.runner.run(poller.poll_once(0)) == 3
    assert dispatcher.handled_texts == ["one"]
    assert "private words" not in caplog.text
    assert driver.runner.run(poller.poll_once(0)) == 0


def test_restarted_update_ids_are_received(driver: BotDriver) -> None:
    dispatcher = RecordingDispatcher()
    poller = make_poller(driver, dispatcher)
    driver.person().send_text("one")
    driver.runner.run(poller.poll_once(0))
    assert driver.runner.run(poller.poll_once(0)) == 0
    telegram = driver.kit.telegram
    driver.person().send_text("two")
    telegram.pending[-1]["update_id"] = 5
    driver.runner.run(poller.poll_once(0))
    driver.runner.run(poller.poll_once(0))
    assert dispatcher.handled_texts == ["one", "two"]
    assert telegram.pending == []


def run_until_handled(driver: BotDriver, dispatcher: RecordingDispatcher) -> None:
    """Run until an update was handled, then stop."""

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.ensure_future(make_poller(driver, dispatcher).run(stop))
        waiting: set[asyncio.Future[Any]] = {task, asyncio.ensure_future(dispatcher.handled.wait())}
        await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait_for(task, 10)

    driver.runner.run(main())


def test_poller_stops_while_waiting_and_confirms_handled_updates(driver: BotDriver, telegram: FakeTelegram) -> None:
    driver.person().send_text("one")
    run_until_handled(driver, RecordingDispatcher())
    assert telegram.pending == []


def test_temporary_errors_are_logged_and_retried(
    driver: BotDriver, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polling, "FIRST_PAUSE", 0.01)
    for status in (500, 502, 409):
        telegram.fail("getUpdates", status)
    telegram.fail("getUpdates", 429, retry_after=0)
    telegram.lose_answer("getUpdates")
    driver.person().send_text("one")
    dispatcher = RecordingDispatcher()
    with caplog.at_level(logging.WARNING):
        run_until_handled(driver, dispatcher)
    assert dispatcher.handled_texts == ["one"]
    assert [record.levelname for record in caplog.records if record.name == polling.__name__] == ["WARNING"] * 5
    assert "Another bot is running with this token" in caplog.text
    assert telegram.token not in caplog.text


def test_pause_grows_with_each_failure_and_respects_retry_after(
    driver: BotDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, pauses, errors = (
        asyncio.Event(),
        list[float](),
        [TemporaryError("x")] * 7 + [TemporaryError("x", retry_after=50.0)],
    )
    poller = make_poller(driver, RecordingDispatcher())

    async def fails(stopped: object) -> None:
        if not errors:
            stop.set()
            return
        raise errors.pop(0)

    async def record_pause(waiting: object, **given: float) -> None:
        pauses.append(given["timeout"])

    monkeypatch.setattr(poller, "_poll_unless_stopped", fails)
    monkeypatch.setattr(asyncio, "wait", record_pause)
    driver.runner.run(poller.run(stop))
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 50]


def test_rejected_token_ends_polling(driver: BotDriver, telegram: FakeTelegram) -> None:
    telegram.fail("getUpdates", 401)
    with pytest.raises(PermanentError) as caught:
        run_until_handled(driver, RecordingDispatcher())
    assert caught.value.code == "bot_token_rejected"


def test_unconfirmed_updates_at_the_end_are_handled_again(
    driver: BotDriver, telegram: FakeTelegram, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks(RecordingDispatcher):
        async def on(self, text: str) -> None:
            telegram.fail("getUpdates", 500, times=2)

    driver.person().send_text("one")
    run_until_handled(driver, Breaks())
    assert "will be handled again" in caplog.text
    assert len(telegram.pending) == 1
