"""Uploads to Telegram: nothing is sent before `send`, and earlier errors are raised at once."""

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import NoReturn, cast

import pytest
from aiogram import Bot
from aiogram.methods import SendDocument
from aiogram.types import Chat, Document, InputFile, Message

from apps.courier.clients.telegram import SendReceipt, Telegram, safe_file_name
from apps.courier.errors import NotSentError, PermanentError, TemporaryError
from apps.courier.tests.fake_telegram import FakeTelegram, Person, RecordedRequest
from apps.courier.tests.upload_helpers import (
    ANN,
    CHUNKS,
    FILE,
    NAME,
    WHOLE,
    assert_fails,
    open_telegram,
    prepare,
    proves_not_sent,
    stream_chunks,
    stream_then_hang,
)


@pytest.fixture
def fake() -> Iterator[FakeTelegram]:
    with FakeTelegram(max_file_size=100 * 2**20) as made:
        yield made


@pytest.fixture
def ann(fake: FakeTelegram) -> Person:
    person = fake.person(ANN)
    person.spoke = True
    return person


# ---------------------------------------------------------------- uploading


def test_file_arrives_complete_with_its_name(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> SendReceipt:
        async with open_telegram(fake.url) as telegram:
            assert telegram.bot_id == 4242
            async with prepare(telegram) as pending:
                return await pending.send()

    sent = asyncio.run(main())
    (message,) = ann.chat
    assert message.document
    assert sent == SendReceipt(message.id, message.document.file_id)
    assert (message.document.name, message.document.size, message.document.sha256) == (
        NAME,
        len(WHOLE),
        hashlib.sha256(WHOLE).hexdigest(),
    )


def test_all_but_the_last_chunk_is_out_and_nothing_is_sent(fake: FakeTelegram, ann: Person) -> None:
    progress: list[int] = []

    async def main() -> None:
        async with open_telegram(fake.url) as telegram, prepare(telegram, progress=progress) as pending:
            assert progress == [65_536 * (each + 1) for each in range(19)]
            assert ann.chat == fake.requests == []
            await pending.send()

    asyncio.run(main())
    assert progress[-1] == len(WHOLE)


def test_last_chunk_waits_until_a_slow_telegram_has_the_others() -> None:
    progress: list[int] = []
    answer = Message(
        message_id=5,
        date=datetime.fromtimestamp(0, UTC),
        chat=Chat(id=ANN, type="private"),
        document=Document(file_id=FILE, file_unique_id="u"),
    )

    async def main() -> SendReceipt:
        resumes = asyncio.Event()

        async def slow(method: SendDocument, request_timeout: int) -> Message:
            """Accept one chunk, then pause."""
            assert request_timeout == 0
            assert isinstance(method.document, InputFile)
            async for _ in method.document.read(cast("Bot", slow)):
                await resumes.wait()
            return answer

        async def body() -> AsyncGenerator[bytes]:
            for chunk in (b"a", b"b", b"c", b"d"):
                yield chunk
            asyncio.get_running_loop().call_later(0.05, resumes.set)

        async with (
            asyncio.timeout(20),
            Telegram(cast("Bot", slow)).prepare_upload(ANN, NAME, 4, body(), progress=progress.append) as pending,
        ):
            assert progress == [1, 2, 3]
            return await pending.send()

    assert asyncio.run(main()) == SendReceipt(5, FILE)


@pytest.mark.parametrize("chunks", [CHUNKS, [b"x"], [b"one", b"two"]], ids=["many", "one byte", "two"])
@pytest.mark.parametrize("way", ["leaves", "raises", "is cancelled"])
def test_leaving_without_send_sends_nothing(fake: FakeTelegram, ann: Person, chunks: list[bytes], way: str) -> None:
    async def carry(telegram: Telegram, inside: asyncio.Event) -> None:
        async with prepare(telegram, chunks):
            inside.set()
            if way == "raises":
                raise ValueError("something else")
            if way == "is cancelled":
                await asyncio.Event().wait()

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            inside = asyncio.Event()
            carrying = asyncio.create_task(carry(telegram, inside))
            await inside.wait()
            if way == "is cancelled":
                carrying.cancel()
            await asyncio.wait([carrying])
            await asyncio.to_thread(fake.wait, lambda: fake.requests_for("sendDocument"))
            assert fake.requests[0].status is None  # the request never completed
            await telegram.send_text(ANN, "and the next one is as good as ever")

    asyncio.run(main())
    assert [message.document for message in ann.chat] == [None]


@pytest.mark.parametrize("chunks", [[b"x"], [b"", b"x", b""], [b"ab", b"", b"cd", b""]])
def test_one_byte_and_empty_chunks_are_sent(fake: FakeTelegram, ann: Person, chunks: list[bytes]) -> None:
    async def main() -> None:
        async with open_telegram(fake.url) as telegram, prepare(telegram, chunks) as pending:
            assert ann.chat == []
            await pending.send()

    asyncio.run(main())
    assert ann.chat[0].document
    assert ann.chat[0].document.content == b"".join(chunks)


def test_memory_does_not_grow_with_the_file(fake: FakeTelegram, ann: Person) -> None:
    async def generated() -> AsyncGenerator[bytes]:
        for _ in range(256):
            yield bytes(262_144)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await telegram.send_text(ANN, "warm")
            tracemalloc.start()
            async with prepare(telegram, [bytes(1)], generated()) as pending:
                await pending.send()

    try:
        asyncio.run(main())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ann.chat[-1].document
    assert ann.chat[-1].document.size == 64 * 2**20
    assert peak < 8 * 2**20


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Отчёт 😀.pdf", "Отчёт 😀.pdf"),
        ('a "b" \\c/d.txt', 'a "b" cd.txt'),
        ("../../etc/passwd", "....etcpasswd"),
        ("Invoice\u202efdp.exe", "Invoicefdp.exe"),
        ("\ufeff\u200f..", "file"),
        ("a\r\nX: y\x00\x7f\x85\u2028b", "aX: yb"),
        ("..", "file"),
        ("/", "file"),
        ("", "file"),
        ("\ud800.txt", ".txt"),
    ],
)
def test_file_name_keeps_its_script_and_loses_control_characters(name: str, told: str) -> None:
    assert safe_file_name(name) == told


# ---------------------------------------------------------------- errors before the send


async def entering(telegram: Telegram, body: AsyncGenerator[bytes] | None = None) -> NoReturn:
    async with prepare(telegram, body=body):
        raise AssertionError("it was let in")


@pytest.mark.parametrize("after", [0, 1, 19], ids=["at once", "after the first chunk", "in place of its end"])
def test_error_of_the_body_is_raised_and_nothing_is_sent(fake: FakeTelegram, ann: Person, after: int) -> None:
    fault, closed = TemporaryError("The disk is unreachable.", status_code=503), []

    async def broken() -> AsyncGenerator[bytes]:
        try:
            for chunk in CHUNKS[:after]:
                yield chunk
            raise fault
        finally:
            closed.append(True)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            with pytest.raises(TemporaryError) as raised:
                await entering(telegram, broken())
            assert raised.value is fault
            assert closed == [True]
            await telegram.send_text(ANN, "still here")

    asyncio.run(main())
    assert [message.document for message in ann.chat] == [None]
    assert all(asked.status is None for asked in fake.requests_for("sendDocument"))


def test_empty_body_is_rejected(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await entering(telegram, stream_chunks([]))

    error = assert_fails(fake, main())
    assert isinstance(error, PermanentError)
    assert (error.code, ann.chat) == ("empty", [])


def test_interrupted_upload_is_temporary_and_sends_nothing(fake: FakeTelegram, ann: Person) -> None:
    fake.cut_upload("sendDocument", after=200_000)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await entering(telegram, stream_then_hang(CHUNKS))

    error = assert_fails(fake, main())
    assert isinstance(error, TemporaryError)
    assert (fake.requests, ann.chat) == ([RecordedRequest("sendDocument", ANN, None)], [])


def test_early_answer_is_raised_before_the_body_ends(fake: FakeTelegram, ann: Person) -> None:
    fake.fail("sendDocument", 429, retry_after=7, early=True)
    fake.fail("sendDocument", 403, description="Forbidden: bot was blocked by the user", early=True)

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            with pytest.raises(TemporaryError) as asked:
                await entering(telegram, stream_then_hang(CHUNKS[:3]))
            assert (asked.value.status_code, asked.value.retry_after) == (429, 7.0)
            await entering(telegram, stream_then_hang(CHUNKS[:3]))

    error = assert_fails(fake, main())
    assert isinstance(error, PermanentError)
    assert (error.code, ann.chat) == ("blocked", [])


def test_too_large_file_is_rejected_during_the_upload(fake: FakeTelegram, ann: Person) -> None:
    # Far less than the upload: a form parser keeps the last piece until it has seen the next one.
    fake.max_file_size = 200_000

    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await entering(telegram, stream_then_hang(CHUNKS))

    error = assert_fails(fake, main())
    assert isinstance(error, PermanentError)
    assert (error.code, error.status_code, ann.chat) == ("too_big", 413, [])


def test_stalled_upload_is_temporary(fake: FakeTelegram) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield bytes(262_144)

    async def main() -> None:
        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)

        held: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
        try:
            async with open_telegram(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", stall=0.3) as telegram:
                await entering(telegram, endless())
        finally:
            server.close()
            for writer in held:
                writer.transport.abort()

    error = assert_fails(fake, main())
    assert "took no data" in str(error)


@pytest.mark.parametrize("what", ["upload", "upload of one byte", "known", "say", "edit"])
def test_error_of_an_unreachable_telegram_proves_that_nothing_was_sent(fake: FakeTelegram, what: str) -> None:
    async def main() -> None:
        fake.down()
        async with open_telegram(fake.url) as telegram:
            match what:
                case "upload":
                    await entering(telegram)
                case "upload of one byte":
                    await entering(telegram, stream_chunks([b"x"]))
                case "known":
                    await telegram.prepare_known_file(ANN, FILE).send()
                case "say":
                    await telegram.send_text(ANN, "x")
                case _:
                    await telegram.edit_text(ANN, 1, "x")

    error = assert_fails(fake, main())
    assert isinstance(error, NotSentError)
    assert proves_not_sent(error)


def test_telegram_that_stops_before_the_send_has_sent_nothing(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> None:
        async with open_telegram(fake.url) as telegram:
            await telegram.send_text(
                ANN, "hello"
            )  # on the connection that the upload uses; an unaccepted connection could not be cut
            async with prepare(telegram) as pending:
                fake.down()
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=10)  # type: ignore[arg-type]
                await pending.send()

    error = assert_fails(fake, main())
    assert isinstance(error, NotSentError)
    assert proves_not_sent(error)
    assert [message.document for message in ann.chat] == [None]
