"""What the tests of `telegram.py` share: a file to send, ways to send it, and what is asked of every error."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from apps.courier.telegram import Parcel, Telegram, make_bot
from interlock import NotApplied

from .bot_api import TOKEN, FakeTelegram

ANN = 70_007
NAME = "Отчёт за год.pdf"
FILE = "BQACknown"
CHUNKS = [bytes([each]) * 65_536 for each in range(20)]
WHOLE = b"".join(CHUNKS)


@asynccontextmanager
async def connected(url: str, *, token: str = TOKEN, stall: float = 20.0) -> AsyncIterator[Telegram]:
    given = {"bot_token": token, "admins": "1", "folder": "/Library", "yandex_token": "y", "telegram_url": url}
    async with make_bot(Settings.model_validate(given)) as bot, asyncio.timeout(30):
        yield Telegram(bot, stall=stall)


async def of(chunks: list[bytes]) -> AsyncGenerator[bytes]:
    for chunk in chunks:
        yield chunk


async def then_never(chunks: list[bytes]) -> AsyncGenerator[bytes]:
    """These chunks, and then neither another nor an end."""
    for chunk in chunks:
        yield chunk
    await asyncio.Event().wait()


def packed(
    telegram: Telegram, chunks: list[bytes] = CHUNKS, body: AsyncGenerator[bytes] | None = None, gone: list[int] | None = None
) -> AbstractAsyncContextManager[Parcel]:
    told: list[int] = [] if gone is None else gone
    return telegram.parcel(ANN, NAME, sum(map(len, chunks)), body or of(chunks), progress=told.append)


def proven(error: CourierError) -> bool:
    """Whether the engine takes it as proof that nothing happened: a status decides if there is one."""
    status = getattr(error, "status_code", None)
    return isinstance(error, NotApplied) if status is None else 400 <= status < 500


def failing(fake: FakeTelegram, doing: Coroutine[object, object, object]) -> CourierError:
    """The error that this ends with. Neither its sentence nor its traceback says whose, where and what."""
    with pytest.raises(CourierError) as raised:
        asyncio.run(doing)
    told = "".join(traceback.format_exception(raised.value))
    for secret in (fake.token.partition(":")[2], fake.url.partition("//")[2], str(ANN), NAME, FILE, "During handling", "direct cause"):
        assert secret not in told
    return raised.value
