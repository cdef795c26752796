"""Telegram's answers: each proves that nothing was sent, or tells what was, or leaves doubt; and none gets lost because its task is to end."""

import asyncio
from collections.abc import Iterator

import pytest
from aiogram.exceptions import AiogramError, ClientDecodeError, TelegramMigrateToChat, TelegramNetworkError
from aiogram.methods import GetMe
from aiogram.types import InlineKeyboardButton, InlineKeyboardMarkup

from apps.courier import telegram as module
from apps.courier.errors import Refusal, Trouble
from apps.courier.telegram import Parcel, Sent, translate
from apps.courier.tests.bot_api import FakeTelegram, Person
from apps.courier.tests.people import Document
from apps.courier.tests.sending import ANN, FILE, NAME, connected, failing, packed, proven

ROWS = [
    (401, "Unauthorized", "bot_refused"),
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
    with FakeTelegram(largest=100 * 2**20) as made:
        yield made


@pytest.fixture
def ann(fake: FakeTelegram) -> Person:
    person = fake.person(ANN)
    person.spoke = True
    return person


@pytest.mark.parametrize("way", ["parcel", "known"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_what_telegram_refuses_was_surely_not_sent(fake: FakeTelegram, ann: Person, row: tuple[int, str, str], way: str) -> None:
    status, description, code = row
    fake.fail("sendDocument", status, description=description)
    error = failing(fake, handing_over(fake, way))
    assert isinstance(error, Refusal)
    assert error.code == code
    assert proven(error)


def test_telegrams_own_words_are_repeated_where_they_are_only_words(fake: FakeTelegram, ann: Person) -> None:
    fake.fail("sendDocument", 400, description="Bad Request: BUTTON_DATA_INVALID")
    assert str(failing(fake, handing_over(fake, "parcel"))) == "Telegram refused the request: Bad Request: BUTTON_DATA_INVALID."


@pytest.mark.parametrize("way", ["parcel", "known"])
def test_a_rate_limit_says_when_to_come_back_and_that_nothing_was_sent(fake: FakeTelegram, ann: Person, way: str) -> None:
    fake.fail("sendDocument", 429, retry_after=31)
    error = failing(fake, handing_over(fake, way))
    assert isinstance(error, Trouble)
    assert (error.status_code, error.retry_after) == (429, 31.0)
    assert proven(error)


@pytest.mark.parametrize("way", ["parcel", "known"])
@pytest.mark.parametrize("fault", ["500", "502", "lost answer", "no answer"])
def test_what_may_have_been_sent_is_trouble_that_proves_nothing(fake: FakeTelegram, ann: Person, fault: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "lost answer":
        fake.lose("sendDocument")
    elif fault == "no answer":
        fake.stall("sendDocument")
        monkeypatch.setattr(module, "ANSWER", 0.3)
    else:
        fake.fail("sendDocument", int(fault))
    error = failing(fake, handing_over(fake, way))
    assert isinstance(error, Trouble)
    assert not proven(error)


async def handing_over(fake: FakeTelegram, way: str) -> None:
    async with connected(fake.url) as telegram:
        if way == "parcel":
            async with packed(telegram) as parcel:
                await parcel.hand_over()
        else:
            await telegram.known(ANN, known_to(fake)).hand_over()


def known_to(fake: FakeTelegram) -> str:
    """A file that Telegram has."""
    fake.documents[FILE] = Document(NAME, 3, "", "", FILE)
    return FILE


def test_a_file_that_telegram_has_is_sent_by_its_name_there(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> list[Sent]:
        async with connected(fake.url) as telegram:
            async with packed(telegram) as parcel:
                first = await parcel.hand_over()
            return [first, await telegram.known(ANN, first.telegram_file_id).hand_over()]

    first, second = asyncio.run(main())
    assert first.telegram_file_id == second.telegram_file_id
    assert [message.id for message in ann.chat] == [first.message_id, second.message_id]
    assert ann.chat[0].document == ann.chat[1].document


@pytest.mark.parametrize("name", ["BQACunknown", ""])
def test_a_name_that_telegram_no_longer_knows_is_stale(fake: FakeTelegram, ann: Person, name: str) -> None:
    async def main() -> None:
        async with connected(fake.url) as telegram:
            await telegram.known(ANN, name).hand_over()

    error = failing(fake, main())
    assert isinstance(error, Refusal)
    assert (error.code, ann.chat) == ("stale_file", [])


# ---------------------------------------------------------------- cancelled while Telegram has it


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("way", ["parcel", "known"])
def test_an_answer_that_comes_soon_is_heard_though_the_task_was_cancelled(fake: FakeTelegram, ann: Person, times: int, way: str) -> None:
    gate = fake.gate("sendDocument")

    async def carry(parcel: Parcel) -> tuple[Sent, int]:
        sent = await parcel.hand_over()
        await asyncio.to_thread(int)  # what follows runs undisturbed
        task = asyncio.current_task()
        return sent, task.cancelling() if task else -1

    async def cancelled(parcel: Parcel) -> tuple[Sent, int]:
        carrying = asyncio.create_task(carry(parcel))
        assert await asyncio.to_thread(gate.arrived.wait, 10)
        for _ in range(times):
            carrying.cancel()
            await asyncio.wait([carrying], timeout=0)
        gate.open()
        return await carrying

    async def main() -> tuple[Sent, int]:
        async with connected(fake.url) as telegram:
            if way == "known":
                return await cancelled(telegram.known(ANN, known_to(fake)))
            async with packed(telegram) as parcel:
                return await cancelled(parcel)

    sent, cancelling = asyncio.run(main())
    assert ([message.id for message in ann.chat], cancelling) == ([sent.message_id], 0)


def test_an_answer_that_does_not_come_soon_leaves_the_cancellation(fake: FakeTelegram, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_WORD", 0.2)
    gate = fake.gate("sendDocument")

    async def main() -> None:
        async with connected(fake.url) as telegram, packed(telegram) as parcel:
            carrying = asyncio.create_task(parcel.hand_over())
            assert await asyncio.to_thread(gate.arrived.wait, 10)
            carrying.cancel()
            ended, _ = await asyncio.wait([carrying], timeout=10)
            assert ended
            assert carrying.cancelled()

    asyncio.run(main())
    assert len(ann.chat) == 1


@pytest.mark.parametrize(("status", "heard"), [(403, Refusal), (429, Trouble), (500, asyncio.CancelledError)])
def test_a_refusal_is_heard_by_a_cancelled_task_and_doubt_is_not(
    fake: FakeTelegram, ann: Person, status: int, heard: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail("sendDocument", status, retry_after=3 if status == 429 else None)

    async def main() -> None:
        async with connected(fake.url) as telegram, packed(telegram) as parcel:
            carrying = asyncio.create_task(parcel.hand_over())
            await asyncio.wait([carrying], timeout=0)  # it has begun
            carrying.cancel()
            with pytest.raises(heard):
                await carrying

    asyncio.run(main())
    assert ann.chat == []

    assert caplog.text == ""  # nor was anything logged as never heard


# ---------------------------------------------------------------- texts


def test_a_text_is_said_and_edited_and_never_markup(fake: FakeTelegram, ann: Person) -> None:
    keyboard = InlineKeyboardMarkup(inline_keyboard=[[InlineKeyboardButton(text="Cancel", callback_data="c:1")]])

    async def main() -> int:
        async with connected(fake.url) as telegram:
            message_id = await telegram.say(ANN, "<b>*one*</b>", keyboard)
            await telegram.edit(ANN, message_id, "two", keyboard)
            await telegram.edit(ANN, message_id, "two", keyboard)  # says so already
            return message_id

    message_id = asyncio.run(main())
    (message,) = ann.chat
    assert (message.id, message.text, message.edits, message.buttons) == (message_id, "two", ["<b>*one*</b>"], [("Cancel", "c:1")])


@pytest.mark.parametrize("what", ["say", "edit"])
def test_what_cannot_be_said_is_told_in_our_errors(fake: FakeTelegram, ann: Person, what: str) -> None:
    fake.fail("sendMessage", 502)

    async def main() -> None:
        async with connected(fake.url) as telegram:
            await (telegram.say(ANN, "x") if what == "say" else telegram.edit(ANN, 1, "x"))

    error = failing(fake, main())
    assert isinstance(error, Trouble if what == "say" else Refusal)
    assert proven(error) is (what == "edit")


# ---------------------------------------------------------------- what the fake does not do


@pytest.mark.parametrize(
    ("error", "told", "proof"),
    [
        (ClientDecodeError("Failed to decode object", ValueError("x"), "<html>http://x</html>"), "cannot be read", False),
        (TelegramMigrateToChat(GetMe(), "Bad Request", ANN), "Telegram refused the request.", True),
        (TelegramNetworkError(GetMe(), f"ClientOSError: http://x/{ANN}"), "broke off", False),
        (TimeoutError(), "in time", False),
        (ConnectionResetError("http://x"), "broke off", False),
        (ConnectionRefusedError("http://x"), "cannot be reached", True),
    ],
)
def test_every_other_error_is_a_sentence_too(error: AiogramError | OSError, told: str, proof: bool) -> None:
    found = translate(error)
    assert told in str(found)
    assert proven(found) is proof
    assert not any(secret in str(found) for secret in ("http", str(ANN)))
