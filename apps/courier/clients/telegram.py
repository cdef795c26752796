"""The Telegram client, built on aiogram. It sends files and texts, and raises only the courier's errors.

The client uploads a file but holds back its last chunk. Until it releases that chunk, Telegram has no complete request,
so nothing can have been sent. A send is in doubt only between the release and Telegram's answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from aiogram import Bot, exceptions
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.methods import SendDocument
from aiogram.types import InlineKeyboardMarkup, InputFile, Message
from typing_extensions import override

from ..errors import NotSentError, PermanentError, TemporaryError
from ..formatting import is_control_character
from ..settings import Settings
from .send_receipt import SendReceipt
from .telegram_errors import translate_error

T = TypeVar("T")
ANSWER_TIMEOUT = 60.0
"""Seconds for Telegram to answer a complete request. An upload gets more time, by `PROCESSING_RATE`."""
PROCESSING_RATE = 1_000_000
"""Bytes of an upload that Telegram processes per second, at least."""
CANCEL_GRACE = 20.0
"""Seconds for which a cancelled task still waits for Telegram's answer."""
_NO_TIMEOUT = 0  # aiohttp's value for a request without a deadline; uploads have their own timeouts


def make_bot(settings: Settings) -> Bot:
    """Create the aiogram bot. It has no parse mode, so its texts are never markup."""
    return Bot(settings.bot_token.get_secret_value(), _Session(api=TelegramAPIServer.from_base(settings.telegram_url)))


class _Session(AiohttpSession):
    """A session that closes at once. aiogram's own waits a while for old versions of aiohttp."""

    @override
    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class PendingSend:
    """A file that is ready to be sent."""

    def __init__(self, start_send: "Callable[[], asyncio.Task[Message]]", timeout: float) -> None:
        self._start_send = start_send
        self._timeout = timeout

    async def send(self) -> SendReceipt:
        """Complete the request and wait for Telegram's answer. Call it once.

        `PermanentError`, `NotSentError` and a `TemporaryError` with status 429 prove that nothing was sent; any other
        `TemporaryError` leaves doubt. A cancelled task waits up to `CANCEL_GRACE` seconds more. If the answer arrives
        by then, it is returned or raised instead of the cancellation.
        """
        request = self._start_send()
        cancelled = await _wait_for_answer(request, self._timeout)
        error = _request_error(request)
        is_certain = error is None or isinstance(error, NotSentError) or 400 <= (error.status_code or 0) < 500
        if cancelled and not is_certain:
            raise asyncio.CancelledError
        if cancelled and (task := asyncio.current_task()):
            # Swallow the cancellation on purpose: Telegram has answered, and the engine has to store the answer.
            for _ in range(cancelled):
                task.uncancel()
        if error:
            raise error from None
        return _read_receipt(request.result())


class Telegram:
    """Sends files and texts. Every error is a `CourierError` without tokens, addresses, people or file names."""

    def __init__(self, bot: Bot, *, stall: float = 60.0) -> None:
        self._bot = bot
        self._stall = stall

    @property
    def bot_id(self) -> int:
        return self._bot.id

    @asynccontextmanager
    async def prepare_upload(
        self, chat_id: int, name: str, size: int, body: AsyncGenerator[bytes], *, progress: Callable[[int], None]
    ) -> AsyncGenerator[PendingSend]:
        """Upload a file except for its last chunk. All other chunks are out when the block begins.

        An error of `body`, an early answer of Telegram and a broken connection are raised before the block begins. If
        Telegram takes no chunk for `stall` seconds, `TemporaryError` is raised. Leaving the block without `send` aborts
        the request, and nothing is sent. `progress` gets the number of bytes sent. `body` is closed at the end.
        """
        upload = _Upload(safe_file_name(name), progress)
        document = SendDocument(chat_id=chat_id, document=upload, disable_content_type_detection=True)
        request = _start_task(self._bot(document, request_timeout=_NO_TIMEOUT))
        load = _start_task(upload.load_chunks(body, self._stall))
        try:
            await asyncio.wait([load, request], return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                load.result()
            if request.done() and (error := _request_error(request)):
                raise error from None

            def start_send() -> asyncio.Task[Message]:
                if request.done() and (error := _request_error(request)):
                    # The request was not complete, so nothing was sent, regardless of the answer's status.
                    proven = isinstance(error, PermanentError) or error.status_code == 429
                    raise (error if proven else NotSentError(str(error))) from None
                upload.release_last_chunk()
                return request

            yield PendingSend(start_send, ANSWER_TIMEOUT + size / PROCESSING_RATE)
        finally:
            request.cancel()
            load.cancel()
            await asyncio.wait([request, load])

    def prepare_known_file(self, chat_id: int, telegram_file_id: str) -> PendingSend:
        """Prepare to send a file that Telegram already has, by its Telegram file ID. Nothing is uploaded."""
        document = SendDocument(chat_id=chat_id, document=telegram_file_id)
        return PendingSend(
            lambda: _start_task(self._bot(document, request_timeout=_NO_TIMEOUT)),
            ANSWER_TIMEOUT,
        )

    async def send_text(self, chat_id: int, text: str, keyboard: InlineKeyboardMarkup | None = None) -> int:
        """Send a text. Return the ID of its message."""
        try:
            return (await self._bot.send_message(chat_id, text, reply_markup=keyboard)).message_id
        except (exceptions.AiogramError, OSError) as error:
            raise translate_error(error) from None

    async def edit_text(
        self, chat_id: int, message_id: int, text: str, keyboard: InlineKeyboardMarkup | None = None
    ) -> None:
        """Change the text of a message. Succeeds if the message already has this text."""
        try:
            await self._bot.edit_message_text(text, chat_id=chat_id, message_id=message_id, reply_markup=keyboard)
        except (exceptions.AiogramError, OSError) as error:
            if isinstance(error, exceptions.TelegramBadRequest) and "message is not modified" in error.message:
                return
            raise translate_error(error) from None


def safe_file_name(name: str) -> str:
    """Return a file name without control characters, direction marks and path separators, in any script."""
    kept = "".join(each for each in name if each not in "/\\" and not is_control_character(each)).strip()
    return kept if kept.strip(".") else "file"


# ---------------------------------------------------------------- uploading
class _Upload(InputFile):
    """The document of a request. aiogram reads the chunks that `load_chunks` adds; only a few are in memory."""

    def __init__(self, name: str, progress: Callable[[int], None]) -> None:
        super().__init__(filename=name)
        self._progress = progress
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=2)
        self._wanted = asyncio.Event()
        self._last = b""

    async def read(self, bot: Bot) -> AsyncGenerator[bytes, None]:
        del bot
        sent = 0
        self._wanted.set()
        while (chunk := await self._chunks.get()) is not None:
            yield chunk
            # aiogram asks for more, so it has taken this chunk.
            self._chunks.task_done()
            sent += len(chunk)
            self._progress(sent)

    async def load_chunks(self, body: AsyncGenerator[bytes], stall: float) -> None:
        """Pass on all chunks but the last, and wait until they are taken."""
        async with aclosing(body):
            async for chunk in body:
                if chunk and self._last:
                    await _with_timeout(stall, self._chunks.put(self._last))
                self._last = chunk or self._last
        if not self._last:
            raise PermanentError("empty", "The file is empty, and Telegram does not accept empty files.")
        await _with_timeout(stall, self._wanted.wait())
        await _with_timeout(stall, self._chunks.join())

    def release_last_chunk(self) -> None:
        self._chunks.put_nowait(self._last)
        self._chunks.put_nowait(None)


async def _with_timeout(stall: float, awaitable: Coroutine[object, object, object]) -> None:
    try:
        async with asyncio.timeout(stall):
            await awaitable
    except TimeoutError:
        raise TemporaryError(f"Telegram took no data of the upload for {stall:g} seconds. Try again later.") from None


def _start_task(request: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a task whose error asyncio never logs, because the error would print addresses."""

    async def run() -> T:
        return await request

    task = asyncio.create_task(run())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _wait_for_answer(request: asyncio.Task[Message], seconds: float) -> int:
    """Wait up to `seconds` for the request, then cancel it. Return how often our own task was cancelled meanwhile."""
    loop, cancelled = asyncio.get_running_loop(), 0
    deadline = loop.time() + seconds
    while not request.done():
        left = deadline - loop.time()
        if left <= 0:
            request.cancel()
        try:
            await asyncio.wait([request], timeout=left if left > 0 else None)
        except asyncio.CancelledError:
            cancelled += 1
            deadline = min(deadline, loop.time() + CANCEL_GRACE)
    return cancelled


def _read_receipt(message: Message) -> SendReceipt:
    # Telegram may turn a document into an animation, a sticker, audio, video or voice.
    found = message.document or message.animation or message.sticker or message.audio or message.video or message.voice
    return SendReceipt(message.message_id, found.file_id if found else "")


def _request_error(request: asyncio.Task[Message]) -> PermanentError | TemporaryError | None:
    """Return the error of an ended request as one of ours. Errors of neither Telegram nor the network are raised."""
    if request.cancelled():
        return TemporaryError("Telegram did not answer in time. The file may have been sent.")
    match request.exception():
        case None:
            return None
        case exceptions.AiogramError() | OSError() as error:
            return translate_error(error)
        case error:
            raise error
