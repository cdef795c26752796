"""Helpers for the tests of the Telegram client: a file, ways to send it, and checks of every error."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from apps.courier.clients.telegram import PendingSend, Telegram, make_bot
from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from interlock import NotApplied

from .fake_telegram import TOKEN, FakeTelegram

ANN = 70_007
NAME = "Отчёт за год.pdf"
FILE = "BQACknown"
CHUNKS = [bytes([each]) * 65_536 for each in range(20)]
WHOLE = b"".join(CHUNKS)


@asynccontextmanager
async def open_telegram(url: str, *, token: str = TOKEN, stall: float = 20.0) -> AsyncIterator[Telegram]:
    given = {"bot_token": token, "admins": "1", "folder": "/Library", "yandex_token": "y", "telegram_url": url}
    async with make_bot(Settings.model_validate(given)) as bot, asyncio.timeout(30):
        yield Telegram(bot, stall=stall)


async def stream_chunks(chunks: list[bytes]) -> AsyncGenerator[bytes]:
    for chunk in chunks:
        yield chunk


async def stream_then_hang(chunks: list[bytes]) -> AsyncGenerator[bytes]:
    """Yield these chunks and then hang."""
    for chunk in chunks:
        yield chunk
    await asyncio.Event().wait()


def prepare(
    telegram: Telegram,
    chunks: list[bytes] = CHUNKS,
    body: AsyncGenerator[bytes] | None = None,
    progress: list[int] | None = None,
) -> AbstractAsyncContextManager[PendingSend]:
    text: list[int] = [] if progress is None else progress
    return telegram.prepare_upload(
        ANN, NAME, sum(map(len, chunks)), body or stream_chunks(chunks), progress=text.append
    )


def proves_not_sent(error: CourierError) -> bool:
    """Return whether the engine takes this error as proof that nothing happened. A status decides if there is one."""
    status = getattr(error, "status_code", None)
    return isinstance(error, NotApplied) if status is None else 400 <= status < 500


def assert_fails(fake: FakeTelegram, call: Coroutine[object, object, object]) -> CourierError:
    """Run this, and return its error. Neither the error nor its traceback may contain a token, an address, a user or a
    file."""
    with pytest.raises(CourierError) as raised:
        asyncio.run(call)
    text = "".join(traceback.format_exception(raised.value))
    for secret in (
        fake.token.partition(":")[2],
        fake.url.partition("//")[2],
        str(ANN),
        NAME,
        FILE,
        "During handling",
        "direct cause",
    ):
        assert secret not in text
    return raised.value
