"""Files to Telegram: nothing is sent before it is handed over, and what goes wrong until then is told at once."""

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

from apps.courier.errors import Refusal, Trouble, Unsent
from apps.courier.telegram import Sent, Telegram, plain
from apps.courier.tests.bot_api import Asked, FakeTelegram, Person
from apps.courier.tests.sending import ANN, CHUNKS, FILE, NAME, WHOLE, connected, failing, of, packed, proven, then_never


@pytest.fixture
def fake() -> Iterator[FakeTelegram]:
    with FakeTelegram(largest=100 * 2**20) as made:
        yield made


@pytest.fixture
def ann(fake: FakeTelegram) -> Person:
    person = fake.person(ANN)
    person.spoke = True
    return person


# ---------------------------------------------------------------- uploading


def test_a_file_arrives_whole_under_its_name(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> Sent:
        async with connected(fake.url) as telegram:
            assert telegram.bot_id == 4242
            async with packed(telegram) as parcel:
                return await parcel.hand_over()

    sent = asyncio.run(main())
    (message,) = ann.chat
    assert message.document
    assert sent == Sent(message.id, message.document.file_id)
    assert (message.document.name, message.document.size, message.document.sha256) == (NAME, len(WHOLE), hashlib.sha256(WHOLE).hexdigest())


def test_inside_the_block_all_but_the_last_chunk_has_gone_out_and_nothing_is_sent(fake: FakeTelegram, ann: Person) -> None:
    gone: list[int] = []

    async def main() -> None:
        async with connected(fake.url) as telegram, packed(telegram, gone=gone) as parcel:
            assert gone == [65_536 * (each + 1) for each in range(19)]
            assert ann.chat == fake.requests == []
            await parcel.hand_over()

    asyncio.run(main())
    assert gone[-1] == len(WHOLE)


def test_the_last_chunk_waits_until_a_slow_telegram_has_taken_all_others() -> None:
    gone: list[int] = []
    answer = Message(
        message_id=5, date=datetime.fromtimestamp(0, UTC), chat=Chat(id=ANN, type="private"), document=Document(file_id=FILE, file_unique_id="u"))

    async def main() -> Sent:
        resumes = asyncio.Event()

        async def slow(method: SendDocument, request_timeout: int) -> Message:
            """Takes one chunk, and no other for a while."""
            assert request_timeout == 0
            assert isinstance(method.document, InputFile)
            async for _ in method.document.read(cast("Bot", slow)):
                await resumes.wait()
            return answer

        async def body() -> AsyncGenerator[bytes]:
            for chunk in (b"a", b"b", b"c", b"d"):
                yield chunk
            asyncio.get_running_loop().call_later(0.05, resumes.set)

        async with asyncio.timeout(20), Telegram(cast("Bot", slow)).parcel(ANN, NAME, 4, body(), progress=gone.append) as parcel:
            assert gone == [1, 2, 3]
            return await parcel.hand_over()

    assert asyncio.run(main()) == Sent(5, FILE)


@pytest.mark.parametrize("chunks", [CHUNKS, [b"x"], [b"one", b"two"]], ids=["many", "one byte", "two"])
@pytest.mark.parametrize("way", ["leaves", "raises", "is cancelled"])
def test_leaving_without_handing_over_sends_nothing(fake: FakeTelegram, ann: Person, chunks: list[bytes], way: str) -> None:
    async def carry(telegram: Telegram, inside: asyncio.Event) -> None:
        async with packed(telegram, chunks):
            inside.set()
            if way == "raises":
                raise ValueError("something else")
            if way == "is cancelled":
                await asyncio.Event().wait()

    async def main() -> None:
        async with connected(fake.url) as telegram:
            inside = asyncio.Event()
            carrying = asyncio.create_task(carry(telegram, inside))
            await inside.wait()
            if way == "is cancelled":
                carrying.cancel()
            await asyncio.wait([carrying])
            await asyncio.to_thread(fake.wait, lambda: fake.asked("sendDocument"))
            assert fake.requests[0].status is None  # the request never came to its end
            await telegram.say(ANN, "and the next one is as good as ever")

    asyncio.run(main())
    assert [message.document for message in ann.chat] == [None]


@pytest.mark.parametrize("chunks", [[b"x"], [b"", b"x", b""], [b"ab", b"", b"cd", b""]])
def test_a_file_of_one_byte_and_empty_chunks_are_as_good(fake: FakeTelegram, ann: Person, chunks: list[bytes]) -> None:
    async def main() -> None:
        async with connected(fake.url) as telegram, packed(telegram, chunks) as parcel:
            assert ann.chat == []
            await parcel.hand_over()

    asyncio.run(main())
    assert ann.chat[0].document
    assert ann.chat[0].document.content == b"".join(chunks)


def test_memory_does_not_grow_with_the_file(fake: FakeTelegram, ann: Person) -> None:
    async def generated() -> AsyncGenerator[bytes]:
        for _ in range(256):
            yield bytes(262_144)

    async def main() -> None:
        async with connected(fake.url) as telegram:
            await telegram.say(ANN, "warm")
            tracemalloc.start()
            async with packed(telegram, [bytes(1)], generated()) as parcel:
                await parcel.hand_over()

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
        ("Отчёт 😀.pdf", "Отчёт 😀.pdf"), ('a "b" \\c/d.txt', 'a "b" cd.txt'), ("../../etc/passwd", "....etcpasswd"),
        ("Invoice\u202efdp.exe", "Invoicefdp.exe"), ("\ufeff\u200f..", "file"),
        ("a\r\nX: y\x00\x7f\x85\u2028b", "aX: yb"), ("..", "file"), ("/", "file"), ("", "file"), ("\ud800.txt", ".txt"),
    ],
)  # fmt: skip
def test_a_name_keeps_its_script_and_loses_what_steers(name: str, told: str) -> None:
    assert plain(name) == told


# ---------------------------------------------------------------- what can go wrong before it is handed over


async def entering(telegram: Telegram, body: AsyncGenerator[bytes] | None = None) -> NoReturn:
    async with packed(telegram, body=body):
        raise AssertionError("it was let in")


@pytest.mark.parametrize("after", [0, 1, 19], ids=["at once", "after the first chunk", "in place of its end"])
def test_an_error_of_the_body_is_raised_as_it_is_and_nothing_is_sent(fake: FakeTelegram, ann: Person, after: int) -> None:
    fault, closed = Trouble("The disk is away.", status_code=503), []

    async def broken() -> AsyncGenerator[bytes]:
        try:
            for chunk in CHUNKS[:after]:
                yield chunk
            raise fault
        finally:
            closed.append(True)

    async def main() -> None:
        async with connected(fake.url) as telegram:
            with pytest.raises(Trouble) as raised:
                await entering(telegram, broken())
            assert raised.value is fault
            assert closed == [True]
            await telegram.say(ANN, "still here")

    asyncio.run(main())
    assert [message.document for message in ann.chat] == [None]
    assert all(asked.status is None for asked in fake.asked("sendDocument"))


def test_an_empty_body_is_refused(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> None:
        async with connected(fake.url) as telegram:
            await entering(telegram, of([]))

    error = failing(fake, main())
    assert isinstance(error, Refusal)
    assert (error.code, ann.chat) == ("empty", [])


def test_a_connection_that_is_cut_in_the_middle_is_trouble_and_sends_nothing(fake: FakeTelegram, ann: Person) -> None:
    fake.cut("sendDocument", after=200_000)

    async def main() -> None:
        async with connected(fake.url) as telegram:
            await entering(telegram, then_never(CHUNKS))

    error = failing(fake, main())
    assert isinstance(error, Trouble)
    assert (fake.requests, ann.chat) == ([Asked("sendDocument", ANN, None)], [])


def test_an_early_answer_is_raised_while_the_body_is_still_awaited(fake: FakeTelegram, ann: Person) -> None:
    fake.fail("sendDocument", 429, retry_after=7, early=True)
    fake.fail("sendDocument", 403, description="Forbidden: bot was blocked by the user", early=True)

    async def main() -> None:
        async with connected(fake.url) as telegram:
            with pytest.raises(Trouble) as asked:
                await entering(telegram, then_never(CHUNKS[:3]))
            assert (asked.value.status_code, asked.value.retry_after) == (429, 7.0)
            await entering(telegram, then_never(CHUNKS[:3]))

    error = failing(fake, main())
    assert isinstance(error, Refusal)
    assert (error.code, ann.chat) == ("blocked", [])


def test_a_file_that_is_too_large_is_refused_while_it_still_comes(fake: FakeTelegram, ann: Person) -> None:
    # Far less than what comes: whoever parses a form keeps the last piece that it has read until it has seen the next.
    fake.largest = 200_000

    async def main() -> None:
        async with connected(fake.url) as telegram:
            await entering(telegram, then_never(CHUNKS))

    error = failing(fake, main())
    assert isinstance(error, Refusal)
    assert (error.code, error.status_code, ann.chat) == ("too_big", 413, [])


def test_an_upload_of_which_nothing_is_taken_is_trouble(fake: FakeTelegram) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield bytes(262_144)

    async def main() -> None:
        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)

        held: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
        try:
            async with connected(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", stall=0.3) as telegram:
                await entering(telegram, endless())
        finally:
            server.close()
            for writer in held:
                writer.transport.abort()

    error = failing(fake, main())
    assert "took nothing" in str(error)


@pytest.mark.parametrize("what", ["parcel", "parcel of one byte", "known", "say", "edit"])
def test_where_nobody_listens_nothing_was_sent(fake: FakeTelegram, what: str) -> None:
    async def main() -> None:
        fake.down()
        async with connected(fake.url) as telegram:
            match what:
                case "parcel":
                    await entering(telegram)
                case "parcel of one byte":
                    await entering(telegram, of([b"x"]))
                case "known":
                    await telegram.known(ANN, FILE).hand_over()
                case "say":
                    await telegram.say(ANN, "x")
                case _:
                    await telegram.edit(ANN, 1, "x")

    error = failing(fake, main())
    assert isinstance(error, Unsent)
    assert proven(error)


def test_telegram_that_goes_away_before_it_is_handed_the_file_has_sent_nothing(fake: FakeTelegram, ann: Person) -> None:
    async def main() -> None:
        async with connected(fake.url) as telegram:
            await telegram.say(ANN, "hello")  # over a connection that the upload uses too: one that nobody has accepted yet could not be cut
            async with packed(telegram) as parcel:
                fake.down()
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=10)  # type: ignore[arg-type]
                await parcel.hand_over()

    error = failing(fake, main())
    assert isinstance(error, Unsent)
    assert proven(error)
    assert [message.document for message in ann.chat] == [None]
