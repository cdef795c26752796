"""Telegram, through aiogram: what the courier sends, and every way in which that fails as one of our own errors.

A file is uploaded with its last chunk held back. Until that chunk is let go, Telegram has no whole request, so nothing can have been sent; all that can ever
be in doubt is the short while between letting it go and Telegram's answer.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import aiohttp
from aiogram import Bot, exceptions
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.methods import SendDocument
from aiogram.types import InlineKeyboardMarkup, InputFile, Message
from typing_extensions import override

from .errors import Code, Refusal, Trouble, Unsent
from .receipt import Sent
from .settings import Settings
from .words import steers

T = TypeVar("T")
ANSWER = 60.0
"""Seconds within which Telegram answers a request that it has the whole of; to file an upload it may take longer, by `FILING`."""
FILING = 1_000_000
"""Bytes of an upload that Telegram files in a second, at the least."""
LAST_WORD = 20.0
"""Seconds for which an answer is waited for though its task is to end."""
_UNLIMITED = 0  # how aiohttp is told that a request has no deadline; an upload has deadlines of its own


def make_bot(settings: Settings) -> Bot:
    """The bot of these settings. It has no parse mode: what it says is never markup."""
    return Bot(settings.bot_token.get_secret_value(), _Session(api=TelegramAPIServer.from_base(settings.telegram_url)))


class _Session(AiohttpSession):
    """One that is closed as soon as its connections are: aiogram waits on for a while, for the sake of an aiohttp that did not tell."""

    @override
    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class Parcel:
    """A file that Telegram gets if it is handed over."""

    def __init__(self, let_go: "Callable[[], asyncio.Task[Message]]", patience: float) -> None:
        self._let_go = let_go
        self._patience = patience

    async def hand_over(self) -> Sent:
        """Let Telegram have it, and wait for what Telegram says. To be called once.

        `Refusal`, `Unsent` and a `Trouble` with status 429 prove that nothing was sent; any other `Trouble` leaves doubt. A task that is cancelled meanwhile
        waits on for up to `LAST_WORD` seconds, and an answer that comes by then is returned or raised in place of the cancellation.
        """
        request = self._let_go()
        cancelled = await _ended(request, self._patience)
        error = _error(request)
        told = error is None or isinstance(error, Unsent) or 400 <= (error.status_code or 0) < 500
        if cancelled and not told:
            raise asyncio.CancelledError
        if cancelled and (task := asyncio.current_task()):
            # The cancellation ends here, on purpose: Telegram has said what it did, and the engine can keep only what it is told.
            for _ in range(cancelled):
                task.uncancel()
        if error:
            raise error from None
        return _receipt(request.result())


class Telegram:
    """Sends files and texts. Every error is a `CourierError`, and says nothing of tokens, addresses, people or files."""

    def __init__(self, bot: Bot, *, stall: float = 60.0) -> None:
        self._bot = bot
        self._stall = stall

    @property
    def bot_id(self) -> int:
        return self._bot.id

    @asynccontextmanager
    async def parcel(self, chat_id: int, name: str, size: int, body: AsyncGenerator[bytes], *, progress: Callable[[int], None]) -> AsyncGenerator[Parcel]:
        """Upload a file, and hold back its last chunk: inside the block all the others have gone out.

        An error of `body` is raised as it is, and before the block; so are an early answer of Telegram and a broken connection. A chunk that is not taken for
        `stall` seconds is `Trouble`. Leaving the block without handing over breaks the connection off: nothing was sent. `progress` is told how many bytes
        have gone out, and `body` is closed at the end.
        """
        upload = _Upload(plain(name), progress)
        request = _heard(self._bot(SendDocument(chat_id=chat_id, document=upload, disable_content_type_detection=True), request_timeout=_UNLIMITED))
        load = _heard(upload.load(body, self._stall))
        try:
            await asyncio.wait([load, request], return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                load.result()
            if request.done() and (error := _error(request)):
                raise error from None

            def let_go() -> asyncio.Task[Message]:
                if request.done() and (error := _error(request)):
                    # It had no whole request to act on, whatever the status of its answer.
                    raise error if isinstance(error, Refusal) or error.status_code == 429 else Unsent(str(error)) from None
                upload.let_go()
                return request

            yield Parcel(let_go, ANSWER + size / FILING)
        finally:
            request.cancel()
            load.cancel()
            await asyncio.wait([request, load])

    def known(self, chat_id: int, telegram_file_id: str) -> Parcel:
        """A file that Telegram has already, by the name that it gave it: there is nothing to upload."""
        return Parcel(lambda: _heard(self._bot(SendDocument(chat_id=chat_id, document=telegram_file_id), request_timeout=_UNLIMITED)), ANSWER)

    async def say(self, chat_id: int, text: str, keyboard: InlineKeyboardMarkup | None = None) -> int:
        """Send a text. Returns the id of its message."""
        try:
            return (await self._bot.send_message(chat_id, text, reply_markup=keyboard)).message_id
        except (exceptions.AiogramError, OSError) as error:
            raise translate(error) from None

    async def edit(self, chat_id: int, message_id: int, text: str, keyboard: InlineKeyboardMarkup | None = None) -> None:
        """Let a message say this. If it does already, that is as good."""
        try:
            await self._bot.edit_message_text(text, chat_id=chat_id, message_id=message_id, reply_markup=keyboard)
        except (exceptions.AiogramError, OSError) as error:
            if isinstance(error, exceptions.TelegramBadRequest) and "message is not modified" in error.message:
                return
            raise translate(error) from None


def plain(name: str) -> str:
    """A file's name as Telegram is told it: in any script, with nothing in it that steers how it is read or leads out of a folder."""
    kept = "".join(each for each in name if each not in "/\\" and not steers(each)).strip()
    return kept if kept.strip(".") else "file"


# ---------------------------------------------------------------- uploading
class _Upload(InputFile):
    """The document of a request: aiogram takes from it what `load` puts into it. Never more than a few chunks are in memory."""

    def __init__(self, name: str, progress: Callable[[int], None]) -> None:
        super().__init__(filename=name)
        self._progress = progress
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=2)
        self._wanted = asyncio.Event()
        self._last = b""

    async def read(self, bot: Bot) -> AsyncGenerator[bytes, None]:
        del bot
        gone = 0
        self._wanted.set()
        while (chunk := await self._chunks.get()) is not None:
            yield chunk
            # Asked for more: this one was taken.
            self._chunks.task_done()
            gone += len(chunk)
            self._progress(gone)

    async def load(self, body: AsyncGenerator[bytes], stall: float) -> None:
        """Pass on all chunks but the last, and wait until they have been taken. That the last one is the last is known only as `body` ends."""
        async with aclosing(body):
            async for chunk in body:
                if chunk and self._last:
                    await _within(stall, self._chunks.put(self._last))
                self._last = chunk or self._last
        if not self._last:
            raise Refusal("empty", "The file is empty, and Telegram takes no empty files.")
        await _within(stall, self._wanted.wait())
        await _within(stall, self._chunks.join())

    def let_go(self) -> None:
        self._chunks.put_nowait(self._last)
        self._chunks.put_nowait(None)


async def _within(stall: float, taking: Coroutine[object, object, object]) -> None:
    try:
        async with asyncio.timeout(stall):
            await taking
    except TimeoutError:
        raise Trouble(f"Telegram took nothing of the upload for {stall:g} seconds. It is to be tried again.") from None


def _heard(request: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Carry it out in a task whose error is never logged as unheard: it would print addresses."""

    async def carried_out() -> T:
        return await request

    task = asyncio.create_task(carried_out())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _ended(request: asyncio.Task[Message], patience: float) -> int:
    """Wait for its end, for so many seconds, and then make it end. Returns how often our own task was cancelled meanwhile."""
    loop, cancelled = asyncio.get_running_loop(), 0
    deadline = loop.time() + patience
    while not request.done():
        left = deadline - loop.time()
        if left <= 0:
            request.cancel()
        try:
            await asyncio.wait([request], timeout=left if left > 0 else None)
        except asyncio.CancelledError:
            cancelled += 1
            deadline = min(deadline, loop.time() + LAST_WORD)
    return cancelled


def _receipt(message: Message) -> Sent:
    # What looks like a picture that moves, a sticker, music or a film may come back as one.
    found = message.document or message.animation or message.sticker or message.audio or message.video or message.voice
    return Sent(message.message_id, found.file_id if found else "")


# ---------------------------------------------------------------- what went wrong
_AWAY = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ConnectionRefusedError)
_WORDS: list[tuple[str, Code, str]] = [
    ("chat not found|user not found|deactivated|PEER_ID_INVALID|initiate conversation", "unreachable", "Telegram knows no such chat with the bot."),
    ("file identifier|FILE_REFERENCE|no document in the request", "stale_file", "Telegram no longer knows the file by the name that it gave it."),
    ("must be non-empty", "empty", "The file is empty, and Telegram takes no empty files."),
    ("file is too big", "too_big", "The file is larger than Telegram takes here."),
]
_REFUSALS: dict[type[exceptions.TelegramAPIError], tuple[Code, str]] = {
    exceptions.TelegramEntityTooLarge: ("too_big", "The file is larger than Telegram takes here."),
    exceptions.TelegramUnauthorizedError: ("bot_refused", "Telegram refused the bot's token: write the one that @BotFather gave you into COURIER_BOT_TOKEN."),
    exceptions.TelegramForbiddenError: ("blocked", "The user has blocked the bot."),
}


def translate(error: exceptions.AiogramError | OSError) -> Refusal | Trouble:
    """One of our errors for one of aiogram's or of the network. Raise it `from None`, since what it was made of may print addresses."""
    match error:
        case exceptions.TelegramRetryAfter():
            sentence = f"Telegram asks to wait for {error.retry_after} seconds before the next request."
            return Trouble(sentence, status_code=429, retry_after=float(error.retry_after))
        case exceptions.TelegramServerError():
            return Trouble("Telegram has a fault of its own (5xx). Try again later.", status_code=500)
        case exceptions.TelegramConflictError():
            return Trouble("Another bot is running with this token: end it, for only one may ask Telegram for updates.", status_code=409)
        case exceptions.TelegramAPIError() if type(error) is not exceptions.TelegramNetworkError:
            return _refused(error)
        case exceptions.TelegramAPIError() | OSError():
            return _network(error.__cause__ if isinstance(error, exceptions.TelegramAPIError) else error)
        case _:
            return Trouble("Telegram's answer cannot be read: perhaps a proxy answered in its place. Try again later.")


def _network(cause: BaseException | None) -> Trouble:
    if isinstance(cause, _AWAY):
        return Unsent("Telegram cannot be reached: nothing was sent. Try again later.")
    if isinstance(cause, TimeoutError):
        return Trouble("Telegram did not answer in time. Try again later.")
    return Trouble("The connection to Telegram broke off before it answered. Try again later.")


def _refused(error: exceptions.TelegramAPIError) -> Refusal | Trouble:
    said = error.message
    if said.startswith("Too Many Requests"):
        return Trouble("Telegram asks to wait before the next request.", status_code=429)
    for pattern, code, sentence in _WORDS:
        if re.search(pattern, said, re.IGNORECASE):
            return Refusal(code, sentence)
    # Telegram's words are repeated only if they are words: no digit and no dot, so no id, address or file.
    words = f": {said}" if re.fullmatch(r"[A-Za-z' ,:_-]{1,120}", said) else ""
    return Refusal(*_REFUSALS.get(type(error), ("refused", f"Telegram refused the request{words}.")))


def _error(request: asyncio.Task[Message]) -> Refusal | Trouble | None:
    """What a request that has ended came to, as an error of ours. An error that is neither Telegram's nor the network's is raised as it is."""
    if request.cancelled():
        return Trouble("Telegram did not answer in time. Whether it has sent the file is not known.")
    match request.exception():
        case None:
            return None
        case exceptions.AiogramError() | OSError() as error:
            return translate(error)
        case error:
            raise error
