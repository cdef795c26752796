"""Promises about taking updates: at least once, in order for each user, whatever Telegram answers."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from aiogram import Bot, Dispatcher
from aiogram.types import Update

from apps.courier import polling
from apps.courier.errors import Refusal, Trouble
from apps.courier.polling import Polling
from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.counter import Counter
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import Office

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def counter(office: Office) -> Iterator[Counter]:
    with open_counter(office) as made:
        yield made


class Listener:
    """In place of the dispatcher: remembers what it was fed, and may be told to do something about it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.handled = asyncio.Event()

    async def feed_update(self, bot: Bot, update: Update) -> None:
        del bot
        text = (update.message and update.message.text) or ""
        await self.on(text)
        self.heard.append(text)
        self.handled.set()

    async def on(self, text: str) -> None:
        """What a test makes of it."""


def polled(counter: Counter, listener: Listener) -> Polling:
    return Polling(cast("Dispatcher", listener), counter.office.courier.outside)


def test_what_was_handled_and_not_confirmed_comes_again(counter: Counter) -> None:
    counter.person().says("one")
    first, second, third = Listener(), Listener(), Listener()
    assert counter.runner.run(polled(counter, first).turn(0)) == 1
    again = polled(counter, second)
    counter.runner.run(again.turn(0))
    assert (first.heard, second.heard) == (["one"], ["one"])
    assert counter.runner.run(again.turn(0)) == 0
    assert counter.runner.run(polled(counter, third).turn(0)) == 0


def test_a_batch_of_which_a_part_was_never_handled_comes_again_whole(counter: Counter) -> None:
    class Killed(BaseException):
        pass

    class Dies(Listener):
        async def on(self, text: str) -> None:
            if text == "two":
                raise Killed

    counter.person().says("one")
    counter.person().says("two")
    dying = polled(counter, Dies())
    with pytest.raises(Killed):
        counter.runner.run(dying.turn(0))
    assert [each["update_id"] for each in counter.office.telegram.pending] == [1000, 1001]
    with pytest.raises(Killed):
        counter.runner.run(dying.turn(0))


def test_users_are_answered_side_by_side_and_each_in_order(counter: Counter) -> None:
    bob_spoke = asyncio.Event()

    class Waits(Listener):
        async def on(self, text: str) -> None:
            if text == "bob":
                bob_spoke.set()
            if text == "ann 1":
                await asyncio.wait_for(bob_spoke.wait(), 10)

    listener = Waits()
    for text in ("ann 1", "ann 2", "ann 3"):
        counter.person(7).says(text)
    counter.person(8, "Bob").says("bob")
    counter.runner.run(polled(counter, listener).turn(0))
    assert listener.heard == ["bob", "ann 1", "ann 2", "ann 3"]


def test_a_handler_that_raises_does_not_stop_the_others(counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Listener):
        async def on(self, text: str) -> None:
            if text == "one":
                raise RuntimeError("70707070 has secrets")

    listener = Raises()
    counter.person(70_707_070).says("one")
    counter.person(70_707_070).says("two")
    counter.runner.run(polled(counter, listener).turn(0))
    assert listener.heard == ["two"]
    assert "RuntimeError" in caplog.text
    assert "70707070" not in caplog.text


def test_an_update_that_cannot_be_read_does_not_hide_the_others(counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    counter.office.telegram.deliver("message", {"message_id": "seventy", "text": "private words"})
    counter.office.telegram.deliver("callback_query", {"id": 5})
    counter.person().says("one")
    taking = polled(counter, listener)
    assert counter.runner.run(taking.turn(0)) == 3
    assert listener.heard == ["one"]
    assert "private words" not in caplog.text
    assert counter.runner.run(taking.turn(0)) == 0


def test_ids_that_begin_anew_are_taken(counter: Counter) -> None:
    listener = Listener()
    taking = polled(counter, listener)
    counter.person().says("one")
    counter.runner.run(taking.turn(0))
    assert counter.runner.run(taking.turn(0)) == 0
    telegram = counter.office.telegram
    counter.person().says("two")
    telegram.pending[-1]["update_id"] = 5
    counter.runner.run(taking.turn(0))
    counter.runner.run(taking.turn(0))
    assert listener.heard == ["one", "two"]
    assert telegram.pending == []


def running(counter: Counter, listener: Listener) -> None:
    """Run until something was handled, then stop."""

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.ensure_future(polled(counter, listener).run(stop))
        waiting: set[asyncio.Future[Any]] = {task, asyncio.ensure_future(listener.handled.wait())}
        await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait_for(task, 10)

    counter.runner.run(main())


def test_it_stops_in_the_midst_of_waiting_and_confirms_what_it_handled(counter: Counter, telegram: FakeTelegram) -> None:
    counter.person().says("one")
    running(counter, Listener())
    assert telegram.pending == []


def test_trouble_passes_and_is_logged(counter: Counter, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(polling, "FIRST", 0.01)
    for status in (500, 502, 409):
        telegram.fail("getUpdates", status)
    telegram.fail("getUpdates", 429, retry_after=0)
    telegram.lose("getUpdates")
    counter.person().says("one")
    listener = Listener()
    with caplog.at_level(logging.WARNING):
        running(counter, listener)
    assert listener.heard == ["one"]
    assert [record.levelname for record in caplog.records if record.name == polling.__name__] == ["WARNING"] * 5
    assert "Another bot is running with this token" in caplog.text
    assert telegram.token not in caplog.text


def test_each_failure_in_a_row_rests_longer_and_telegram_may_ask_for_more(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, rests, troubles = asyncio.Event(), list[float](), [Trouble("x")] * 7 + [Trouble("x", retry_after=50.0)]
    taking = polled(counter, Listener())

    async def fails(stopped: object) -> None:
        if not troubles:
            stop.set()
            return
        raise troubles.pop(0)

    async def rest(waiting: object, **given: float) -> None:
        rests.append(given["timeout"])

    monkeypatch.setattr(taking, "_turn_unless", fails)
    monkeypatch.setattr(asyncio, "wait", rest)
    counter.runner.run(taking.run(stop))
    assert rests == [1, 2, 4, 8, 16, 30, 30, 50]


def test_a_refused_token_ends_it(counter: Counter, telegram: FakeTelegram) -> None:
    telegram.fail("getUpdates", 401)
    with pytest.raises(Refusal) as caught:
        running(counter, Listener())
    assert caught.value.code == "bot_refused"


def test_what_could_not_be_confirmed_at_the_end_is_only_handled_once_more(counter: Counter, telegram: FakeTelegram, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Listener):
        async def on(self, text: str) -> None:
            telegram.fail("getUpdates", 500, times=2)

    counter.person().says("one")
    running(counter, Breaks())
    assert "will be handled once more" in caplog.text
    assert len(telegram.pending) == 1
