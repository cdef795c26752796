"""Telegram's answers: proof that nothing was sent, a receipt, or doubt. A cancelled task loses no answer."""

import asyncio
from collections.abc import Iterator

import pytest
from aiogram.exceptions import AiogramError, ClientDecodeError, TelegramMigrateToChat, TelegramNetworkError
from aiogram.methods import GetMe
from aiogram.types import InlineKeyboardButton, InlineKeyboardMarkup

from apps.courier.clients import telegram as module
from apps.courier.clients.send_receipt import SendReceipt
from apps.courier.clients.telegram import PendingSend
from apps.courier.clients.telegram_errors import translate_error
from apps.courier.errors import PermanentError, TemporaryError
from apps.courier.tests.fake_chats import Document
from apps.courier.tests.fake_telegram import FakeTelegram, Person
from apps.courier.tests.upload_helpers import ANN, FILE, NAME, assert_fails, open_telegram, prepare, proves_not_sent

ROWS = [
    (401, "Unauthorized", "bot_token_rejected"),
    (403, "Forbidden: bot was blocked by the user", "blocked"),
    (403, "Forbidden: user is deactivated", "unreachable"),
    (400, "Bad Request: chat not found", "unreachable"),
    (400, "Bad Request: file must be non-empty", "empty"),
    (400, "Bad Request: wrong file identifier/HTTP URL specified", "stale_file"),
    (400, f"Bad Request: something about {ANN} and http://x/y", "refused"),
    (413, "Request Entity Too Large", "too_big"),
    (404, "Not Found", "refused"),
    (418, "I'm a teapot", "refused"),
]


@pytest.fixture
def fake() -> Iterator[FakeTelegram]:
    with FakeTelegram(max_file_size=100 * 2**20) as made:
        yield made


@pytest.fixture
def ann(fake: FakeTelegram) -> Person:
    person = fake.person(ANN)
    person.spoke = True
    return person


@pytest.mark.parametrize("method", ["upload", "known file"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_rejection_proves_that_nothing_was_sent(
    fake: FakeTelegram, ann: Person, row: tuple[int, str, str], method: str
) -> None:
    status, description, code = row
    fake.fail("sendDocument", status, description=description)
    error = assert_fails(fake, send_one(fake, method))
    assert isinstance(error, PermanentError)
    assert error.code == code
    assert proves_not_sent(error)


def test_telegrams_description_is_repeated_only_if_it_is_plain_words(fake: FakeTelegram, ann: Person) -> None:
    fake.fail("sendDocument", 400, description="Bad Request: BUTTON_DATA_INVALID")
    assert (
        str(assert_fails(fake, send_one(fake, "upload")))
        == "Telegram rejects the request: Bad Request: BUTTON_DATA_INVALID."
    )


@pytest.mark.parametrize("method", ["upload", "known file"])
def test_rate_limit_has_a_retry_time_and_proves_that_nothing_was_sent(
    fake: FakeTelegram, ann: Person, method: str
) -> None:
    fake.fail("sendDocument", 429, retry_after=31)
    error = assert_fails(fake, send_one(fake, method))
    assert isinstance(error, TemporaryError)
    assert (error.status_code, error.retry_after) == (429, 31.0)
    assert proves_not_sent(error)


@pytest.mark.parametrize("method", ["upload", "known file"])
@pytest.mark.parametrize("fault", ["500", "502", "lost answer", "no answer"])
def test_lost_answer_is_temporary_and_proves_nothing(
    fake: FakeTelegram, ann: Person, fault: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "lost answer":
        fake.lose_answer("sendDocument")
    elif fault == "no answer":
        fake.stall("sendDocument")
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.3)
    else:
        fake.fail("sendDocument", int(fault))
    error = assert_fails(fake, send_one(fake, method))
    assert isinstance(error, TemporaryError)
    assert not proves_not_sent(error)


async def send_one(fake: FakeTelegram, method: str) -> None:
    async with open_telegram(fake.url) as telegram:
        if method == "upload":
            async with prepare(telegram) as pending:
                await pending.send()
        else:
            await telegram.prepare_known_file(ANN, known_to(fake)).send()


def known_to(fake: FakeTelegram) -> str:
    """Upload a file. Return its file ID."""
    fake.documents[FILE] = Document(NAME, 3, "", "", FILE)
    return FILE


def test_known_file_is_sent_by_its_file_id(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> list[SendReceipt]:
        async with open_telegram(fake.url) as telegram:
            async with prepare(telegram) as pending:
                first = await pending.send()
            return [first, await telegram.prepare_known_file(ANN, first.telegram_file_id).send()]

    first, second = asyncio.run(main())
    assert first.telegram_file_id == second.telegram_file_id
    assert [message.id for message in ann.chat] == [first.message_id, second.message_id]
    assert ann.chat[0].document == ann.chat[1].document


@pytest.mark.parametrize("name", ["BQACunknown", ""])
def test_unknown_file_id_is_stale(fake: FakeTelegram, ann: Person, name: str) -> None:
    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await telegram.prepare_known_file(ANN, name).send()

    error = assert_fails(fake, main())
    assert isinstance(error, PermanentError)
    assert (error.code, ann.chat) == ("stale_file", [])


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("method", ["upload", "known file"])
def test_early_answer_is_returned_despite_a_cancellation(
    fake: FakeTelegram, ann: Person, times: int, method: str
) -> None:
    gate = fake.gate("sendDocument")

    async def send_then_count(pending: PendingSend) -> tuple[SendReceipt, int]:
        sent = await pending.send()
        await asyncio.to_thread(int)  # later awaits are not cancelled
        task = asyncio.current_task()
        return sent, task.cancelling() if task else -1

    async def cancelled(pending: PendingSend) -> tuple[SendReceipt, int]:
        sending = asyncio.create_task(send_then_count(pending))
        assert await asyncio.to_thread(gate.arrived.wait, 10)
        for _ in range(times):
            sending.cancel()
            await asyncio.wait([sending], timeout=0)
        gate.open()
        return await sending

    async def main() -> tuple[SendReceipt, int]:
        async with open_telegram(fake.url) as telegram:
            if method == "known file":
                return await cancelled(telegram.prepare_known_file(ANN, known_to(fake)))
            async with prepare(telegram) as pending:
                return await cancelled(pending)

    sent, cancelling = asyncio.run(main())
    assert ([message.id for message in ann.chat], cancelling) == ([sent.message_id], 0)


def test_late_answer_leaves_the_cancellation(fake: FakeTelegram, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_GRACE", 0.2)
    gate = fake.gate("sendDocument")

    async def main() -> None:
        async with open_telegram(fake.url) as telegram, prepare(telegram) as pending:
            sending = asyncio.create_task(pending.send())
            assert await asyncio.to_thread(gate.arrived.wait, 10)
            sending.cancel()
            ended, _ = await asyncio.wait([sending], timeout=10)
            assert ended
            assert sending.cancelled()

    asyncio.run(main())
    assert len(ann.chat) == 1


@pytest.mark.parametrize(
    ("status", "heard"), [(403, PermanentError), (429, TemporaryError), (500, asyncio.CancelledError)]
)
def test_cancelled_task_gets_a_rejection_but_not_a_doubt(
    fake: FakeTelegram, ann: Person, status: int, heard: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail("sendDocument", status, retry_after=3 if status == 429 else None)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram, prepare(telegram) as pending:
            sending = asyncio.create_task(pending.send())
            await asyncio.wait([sending], timeout=0)  # the request has started
            sending.cancel()
            with pytest.raises(heard):
                await sending

    asyncio.run(main())
    assert ann.chat == []

    assert caplog.text == ""  # no unretrieved error was logged


# ---------------------------------------------------------------- texts


def test_text_is_sent_and_edited_without_markup(fake: FakeTelegram, ann: Person) -> None:
    keyboard = InlineKeyboardMarkup(inline_keyboard=[[InlineKeyboardButton(text="Cancel", callback_data="c:1")]])

    async def main() -> int:
        async with open_telegram(fake.url) as telegram:
            message_id = await telegram.send_text(ANN, "<b>*one*</b>", keyboard)
            await telegram.edit_text(ANN, message_id, "two", keyboard)
            await telegram.edit_text(ANN, message_id, "two", keyboard)  # unchanged text
            return message_id

    message_id = asyncio.run(main())
    (message,) = ann.chat
    assert (message.id, message.text, message.edits, message.buttons) == (
        message_id,
        "two",
        ["<b>*one*</b>"],
        [("Cancel", "c:1")],
    )


@pytest.mark.parametrize("what", ["say", "edit"])
def test_failed_text_raises_the_couriers_errors(fake: FakeTelegram, ann: Person, what: str) -> None:
    fake.fail("sendMessage", 502)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await (telegram.send_text(ANN, "x") if what == "say" else telegram.edit_text(ANN, 1, "x"))

    error = assert_fails(fake, main())
    assert isinstance(error, TemporaryError if what == "say" else PermanentError)
    assert proves_not_sent(error) is (what == "edit")


# ---------------------------------------------------------------- errors that the fake does not produce


@pytest.mark.parametrize(
    ("error", "expected", "proof"),
    [
        (
            ClientDecodeError("Failed to decode object", ValueError("x"), "<html>http://x</html>"),
            "not readable",
            False,
        ),
        (TelegramMigrateToChat(GetMe(), "Bad Request", ANN), "Telegram rejects the request.", True),
        (TelegramNetworkError(GetMe(), f"ClientOSError: http://x/{ANN}"), "broke", False),
        (TimeoutError(), "in time", False),
        (ConnectionResetError("http://x"), "broke", False),
        (ConnectionRefusedError("http://x"), "unreachable", True),
    ],
)
def test_every_other_error_is_translated(error: AiogramError | OSError, expected: str, proof: bool) -> None:
    found = translate_error(error)
    assert expected in str(found)
    assert proves_not_sent(found) is proof
    assert not any(secret in str(found) for secret in ("http", str(ANN)))
