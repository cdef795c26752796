"""The fake Telegram behaves like the Bot API, as far as aiogram and the courier's tests rely on it."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import (
    TelegramBadRequest,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramForbiddenError,
    TelegramNetworkError,
    TelegramNotFound,
    TelegramRetryAfter,
    TelegramServerError,
    TelegramUnauthorizedError,
)
from aiogram.methods import GetChat
from aiogram.types import BotCommand, BufferedInputFile, InlineKeyboardButton, InlineKeyboardMarkup, InputFile

from apps.courier.tests.fake_telegram import FakeTelegram, Person, RecordedRequest


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram(max_file_size=2**20) as fake:
        yield fake


@pytest.fixture
def ann(telegram: FakeTelegram) -> Person:
    """A person who has written to the bot."""
    person = telegram.person(7)
    person.spoke = True
    return person


@asynccontextmanager
async def open_bot(telegram: FakeTelegram, token: str | None = None) -> AsyncIterator[Bot]:
    bot = Bot(token or telegram.token, AiohttpSession(api=TelegramAPIServer.from_base(telegram.url)))
    try:
        yield bot
    finally:
        await bot.session.close()


def run(telegram: FakeTelegram, do: Callable[[Bot], Awaitable[None]], token: str | None = None) -> None:
    async def main() -> None:
        async with open_bot(telegram, token) as bot, asyncio.timeout(20):
            await do(bot)

    asyncio.run(main())


def keyboard(*data: str) -> InlineKeyboardMarkup:
    return InlineKeyboardMarkup(
        inline_keyboard=[[InlineKeyboardButton(text=f"press {each}", callback_data=each)] for each in data]
    )


# ---------------------------------------------------------------- updates


def test_long_poll_waits_for_the_next_update_and_confirms_older_ones(telegram: FakeTelegram) -> None:
    ann = telegram.person(7, name="Ann", language="ru")

    async def do(bot: Bot) -> None:
        assert await bot.get_updates(timeout=0) == []
        waiting = asyncio.create_task(bot.get_updates(timeout=15))
        await asyncio.to_thread(telegram.wait, lambda: telegram.is_polled)
        first = await asyncio.to_thread(ann.send_text, "/start now")
        (update,) = await waiting
        assert update.update_id == first
        assert update.message
        assert update.message.from_user
        assert (update.message.text, update.message.chat.type, update.message.from_user.language_code) == (
            "/start now",
            "private",
            "ru",
        )
        assert [each.update_id for each in await bot.get_updates()] == [first]
        second, third = ann.send_text("two"), ann.send_text("three")
        assert [each.update_id for each in await bot.get_updates(offset=first + 1, limit=1)] == [second]
        assert [each.update_id for each in await bot.get_updates(offset=third)] == [third]
        assert await bot.get_updates(offset=third + 1) == []

    run(telegram, do)


def test_second_poll_ends_the_first_with_a_conflict(telegram: FakeTelegram) -> None:
    async def do(bot: Bot) -> None:
        first = asyncio.create_task(bot.get_updates(timeout=15))
        await asyncio.to_thread(telegram.wait, lambda: telegram.is_polled)
        second = asyncio.create_task(bot.get_updates(timeout=15))
        with pytest.raises(TelegramConflictError, match="only one bot instance is running"):
            await first
        telegram.person(7).send_text("hello")
        assert len(await second) == 1

    run(telegram, do)


def test_old_updates_can_be_delivered_again_in_any_order(telegram: FakeTelegram) -> None:
    ann = telegram.person(7)
    ids = [ann.send_text(str(each)) for each in range(8)]

    async def do(bot: Bot) -> None:
        assert [each.update_id for each in await bot.get_updates(offset=ids[0])] == ids
        assert await bot.get_updates(offset=ids[-1] + 1) == []
        telegram.replay(shuffled=Random(1))
        again = [each.update_id for each in await bot.get_updates(offset=ids[-1] + 1)]
        assert sorted(again) == ids != again
        telegram.replay(ids[2:4])
        assert [each.update_id for each in await bot.get_updates(offset=ids[-1] + 1)] == ids[2:4]
        assert await bot.get_updates(offset=ids[-1] + 1) == []

    run(telegram, do)


def test_button_press_is_answered_once(telegram: FakeTelegram, ann: Person) -> None:
    async def do(bot: Bot) -> None:
        await bot.send_message(7, "Choose", reply_markup=keyboard("b:1", "b:2"))
        (shown,) = ann.chat
        assert shown.buttons == [("press b:1", "b:1"), ("press b:2", "b:2")]
        ann.press(shown, "press b:2")
        ann.press_forged("x" * 99)
        pressed, forged = [each.callback_query for each in await bot.get_updates()]
        assert pressed
        assert forged
        assert pressed.message
        assert (pressed.data, pressed.message.message_id, forged.data) == ("b:2", shown.id, "x" * 99)
        await bot.answer_callback_query(pressed.id, "Done", show_alert=True)
        with pytest.raises(TelegramBadRequest, match="query is too old"):
            await bot.answer_callback_query(pressed.id)
        with pytest.raises(TelegramBadRequest, match="MESSAGE_TOO_LONG"):
            await bot.answer_callback_query(forged.id, "x" * 201)

    run(telegram, do)
    assert [(each.person_id, each.data, each.text, each.alert) for each in telegram.answered] == [
        (7, "b:2", "Done", True)
    ]


# ---------------------------------------------------------------- messages


def test_messages_are_sent_edited_and_seen(telegram: FakeTelegram, ann: Person) -> None:
    async def do(bot: Bot) -> None:
        assert (await bot.get_me()).id == bot.id
        assert await bot.delete_webhook()
        assert await bot.set_my_commands([BotCommand(command="start", description="Begin")])
        sent = await bot.send_message(7, "one")
        await bot.edit_message_text("two", chat_id=7, message_id=sent.message_id, reply_markup=keyboard("c"))
        await bot.edit_message_reply_markup(chat_id=7, message_id=sent.message_id)
        with pytest.raises(TelegramBadRequest, match="message is not modified"):
            await bot.edit_message_text("two", chat_id=7, message_id=sent.message_id)
        with pytest.raises(TelegramBadRequest, match="message to edit not found"):
            await bot.edit_message_text("two", chat_id=7, message_id=sent.message_id + 100)

    run(telegram, do)
    (message,) = ann.wait(lambda chat: chat)
    assert (message.text, message.edits, message.buttons) == ("two", ["one", "two"], [])


def test_exceeded_limits_are_rejected_with_telegrams_descriptions(telegram: FakeTelegram, ann: Person) -> None:
    telegram.person(8).spoke = True
    telegram.person(8).block_bot()

    async def do(bot: Bot) -> None:
        for text, said in [
            ("", "message text is empty"),
            (" \n", "message text is empty"),
            ("x" * 4097, "message is too long"),
        ]:
            with pytest.raises(TelegramBadRequest, match=said):
                await bot.send_message(7, text)
        for data in ["", "é" * 33]:
            with pytest.raises(TelegramBadRequest, match="BUTTON_DATA_INVALID"):
                await bot.send_message(7, "x", reply_markup=keyboard(data))
        with pytest.raises(TelegramBadRequest, match="caption is too long"):
            await bot.send_document(7, BufferedInputFile(b"x", "x"), caption="x" * 1025)
        with pytest.raises(TelegramBadRequest, match="file must be non-empty"):
            await bot.send_document(7, BufferedInputFile(b"", "x"))
        with pytest.raises(TelegramBadRequest, match="chat not found"):
            await bot.send_message(9, "x")
        with pytest.raises(TelegramForbiddenError, match="bot was blocked by the user"):
            await bot.send_message(8, "x")
        with pytest.raises(TelegramNotFound):
            await bot(GetChat(chat_id=7))
        await bot.send_message(7, "x" * 4096, reply_markup=keyboard("é" * 32))

    run(telegram, do)
    assert len(ann.chat) == 1


def test_wrong_token_is_unauthorized(telegram: FakeTelegram) -> None:
    async def do(bot: Bot) -> None:
        with pytest.raises(TelegramUnauthorizedError):
            await bot.get_me()

    run(telegram, do, "4242:another-another-another-another")


# ---------------------------------------------------------------- documents


class Chunks(InputFile):
    """A document with this many chunks. With `breaks`, its source fails after them."""

    def __init__(self, chunks: int, *, breaks: bool = False) -> None:
        super().__init__(filename='файл "1".bin')
        self.chunks, self.breaks = chunks, breaks
        self.yielded = 0

    async def read(self, bot: Bot) -> AsyncGenerator[bytes, None]:
        for _ in range(self.chunks):
            self.yielded += 1
            yield b"x" * 65_536
        if self.breaks:
            raise ValueError("the source is gone")


def test_uploaded_document_is_hashed_and_can_be_sent_again_by_its_id(telegram: FakeTelegram, ann: Person) -> None:
    async def do(bot: Bot) -> None:
        sent = await bot.send_document(7, Chunks(5), caption="Here")
        assert sent.document
        assert (sent.document.file_name, sent.document.file_size) == ('файл "1".bin', 5 * 65_536)
        await bot.send_document(7, sent.document.file_id)
        with pytest.raises(TelegramBadRequest, match="wrong file identifier/HTTP URL specified"):
            await bot.send_document(7, "BQACAgUnknown")

    run(telegram, do)
    first, second = (message.document for message in ann.chat)
    assert first
    assert first == second
    whole = b"x" * 5 * 65_536
    assert (first.size, first.sha256, first.md5, first.content) == (
        len(whole),
        hashlib.sha256(whole).hexdigest(),
        hashlib.md5(whole).hexdigest(),
        None,
    )


def test_interrupted_upload_makes_no_message(telegram: FakeTelegram, ann: Person) -> None:
    telegram.cut_upload("sendDocument", after=100_000)

    async def do(bot: Bot) -> None:
        with pytest.raises(TelegramNetworkError):
            await bot.send_document(7, Chunks(8))  # cut by Telegram
        with pytest.raises(TelegramNetworkError):
            await bot.send_document(7, Chunks(3, breaks=True))  # cut by its source
        await asyncio.to_thread(telegram.wait, lambda: len(telegram.requests_for("sendDocument")) == 2)

    run(telegram, do)
    assert telegram.requests_for("sendDocument") == [RecordedRequest("sendDocument", 7, None)] * 2
    assert ann.chat == []


def test_form_is_no_request_until_its_last_chunk_has_arrived(telegram: FakeTelegram, ann: Person) -> None:
    disposition = "\r\nContent-Disposition: form-data; name="
    form = (
        f'--x{disposition}"chat_id"\r\n\r\n7\r\n'
        f'--x{disposition}"document"; filename="f"\r\n\r\nabc\r\n--x--\r\n\r\nan epilogue\r\n'
    ).encode()
    head = (
        f"POST /bot{telegram.token}/sendDocument HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    async def do(bot: Bot) -> None:
        for end in (b"", b"0\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(telegram.url.rpartition(":")[2]))
            writer.write(head.encode() + f"{len(form):x}\r\n".encode() + form + b"\r\n" + end)
            await bot.get_me()  # it arrived later and was answered
            if end:
                assert b"200 OK" in await reader.readline()
            writer.close()
            await writer.wait_closed()
            await asyncio.to_thread(telegram.wait, lambda: telegram.requests_for("sendDocument"))
            assert len(ann.chat) == (1 if end else 0)

    run(telegram, do)
    assert [each.status for each in telegram.requests_for("sendDocument")] == [None, 200]


def test_too_large_document_is_rejected_during_the_upload(telegram: FakeTelegram, ann: Person) -> None:
    async def do(bot: Bot) -> None:
        endless = Chunks(100_000)
        with pytest.raises(TelegramEntityTooLarge):
            await bot.send_document(7, endless)
        assert endless.yielded < 1000

    run(telegram, do)
    assert ann.chat == []


# ---------------------------------------------------------------- faults


def test_faults_occur_in_the_planned_order(telegram: FakeTelegram, ann: Person) -> None:
    telegram.fail("sendMessage", 429, retry_after=3)
    telegram.fail("sendMessage", 502)
    telegram.lose_answer("sendMessage")

    async def do(bot: Bot) -> None:
        with pytest.raises(TelegramRetryAfter) as asked:
            await bot.send_message(7, "one")
        assert asked.value.retry_after == 3
        with pytest.raises(TelegramServerError):
            await bot.send_message(7, "two")
        with pytest.raises(TelegramNetworkError):
            await bot.send_message(7, "three")
        await bot.send_message(7, "four")

    run(telegram, do)
    assert [message.text for message in ann.chat] == ["three", "four"]
    assert [each.status for each in telegram.requests_for("sendMessage")] == [429, 502, None, 200]


def test_gate_holds_the_answer_but_not_the_message(telegram: FakeTelegram, ann: Person) -> None:
    gate = telegram.gate("sendMessage")
    telegram.stall("sendMessage")

    async def do(bot: Bot) -> None:
        sending = asyncio.create_task(bot.send_message(7, "held"))
        assert await asyncio.to_thread(gate.arrived.wait, 10)
        assert ann.chat[0].text == "held"
        assert not sending.done()
        gate.open()
        assert (await sending).text == "held"
        stalled = asyncio.create_task(bot.send_message(7, "stalled"))
        await asyncio.to_thread(telegram.wait, lambda: len(telegram.requests_for("sendMessage")) == 2)
        telegram.down()
        with pytest.raises(TelegramNetworkError):
            await stalled
        telegram.up()
        await bot.send_message(7, "back")

    run(telegram, do)
    assert [message.text for message in ann.chat] == ["held", "back"]
