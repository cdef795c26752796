"""One attempt to deliver one file from Yandex Disk to Telegram."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, Engine

from interlock import Run, Snooze

from . import formatting, tables
from .clients.connections import Clients
from .clients.send_receipt import SendReceipt
from .clients.yandex_disk import Item
from .errors import NotSentError, PermanentError, TemporaryError
from .settings import Settings

if TYPE_CHECKING:
    from .clients.telegram import PendingSend

T = TypeVar("T")
SEND = "send"
UNREACHABLE_PAUSE = 60.0
"""Seconds for which a worker starts no delivery after an external system was unreachable, so that its restart costs few
tries."""


@dataclass(frozen=True)
class JobContext:
    """The dependencies of all jobs: the database, the clients and the settings."""

    engine: Engine
    clients: Clients
    settings: Settings

    async def transact(self, work: Callable[[Connection], T]) -> T:
        """Run a function in one short transaction, in a thread."""
        return await asyncio.to_thread(self.transact_sync, work)

    def transact_sync(self, work: Callable[[Connection], T]) -> T:
        """Like `transact`, but blocking."""
        with self.engine.begin() as tx:
            return work(tx)


@dataclass(frozen=True)
class Delivery:
    """Telegram's receipt: the message that contains the file, and Telegram's ID of the file."""

    message_id: int
    telegram_file_id: str
    content: str | None
    """Key of the name and bytes that were sent. None if an earlier attempt sent the file, or the disk has no checksum.
    """


class DeliveryAttempt:
    """One attempt to deliver one file."""

    def __init__(self, run: Run, context: JobContext, user_id: int, file_id: int) -> None:
        self._run, self._transact, self._clients, self._max_file_size = (
            run,
            context.transact,
            context.clients,
            context.settings.max_file_size,
        )
        self._user_id, self._file_id = user_id, file_id
        self._send_effect = run.effect(SEND, on_doubt=self._on_doubt)
        self._content: str | None = None
        self._telegram_file_id: str | None = None
        self._pending: PendingSend
        self._sent_now = self._warned = False

    async def run(self) -> Delivery:
        """Download and send the file, or find that it was sent.

        Only the send effect can be in doubt: before it begins, Telegram has no complete request.
        """
        if pause := self._clients.pause_left:
            # After a rate limit or a failed connection, every other delivery would fail the same way and lose a try.
            raise Snooze(
                "Yandex Disk or Telegram is unreachable or rate-limited: no delivery starts until the pause ends",
                after=pause,
            )
        try:
            async with self._prepare() as pending:
                self._pending = pending
                sent = await self._send_effect(self._send_file)
        except TemporaryError as error:
            if isinstance(error, NotSentError):
                self._clients.pause(UNREACHABLE_PAUSE)
            elif error.status_code == 429 and error.retry_after:
                self._clients.pause(error.retry_after)
            raise
        except PermanentError as error:
            if error.code != "stale_file" or self._telegram_file_id is None:
                raise
            await self._transact(lambda tx: tables.delete_sent_file(tx, str(self._content)))
            raise Snooze("Telegram no longer has its copy of the file: it is downloaded again", after=0.0) from None
        return Delivery(sent.message_id, sent.telegram_file_id, self._content if self._sent_now else None)

    async def _send_file(self) -> SendReceipt:
        """Send the file. The effect calls this only if no attempt has a receipt."""
        self._sent_now = True
        return await self._pending.send()

    @asynccontextmanager
    async def _prepare(self) -> AsyncGenerator["PendingSend"]:
        """Upload the file except for its last chunk. Nothing is sent until `PendingSend.send`."""
        telegram = self._clients.telegram
        # This check only saves work. The effect itself decides whether the file was sent.
        receipt = await self._transact(lambda tx: tables.receipt_state(tx, self._run.job_id, SEND))
        if receipt == "applied":
            await self._run.advance("STREAMING")
            yield telegram.prepare_known_file(self._user_id, "")
            return
        if receipt == "asked":
            await self._warn()
        item = await self._find_file()
        self._content = content = content_key(telegram.bot_id, item)
        self._telegram_file_id = known_id = (
            None if content is None else await self._transact(lambda tx: tables.find_sent_file(tx, content))
        )
        if known_id is not None:
            await self._run.advance("STREAMING")
            yield telegram.prepare_known_file(self._user_id, known_id)
            return
        self._check_size(item)
        link = await self._clients.disk.download_link(item.path)
        await self._run.advance("STREAMING")

        def progress(done: int) -> None:
            self._run.progress(done, item.size)

        async with telegram.prepare_upload(
            self._user_id, item.name, item.size, self._clients.disk.read_content(item, link), progress=progress
        ) as pending:
            yield pending

    async def _find_file(self) -> Item:
        path = await self._transact(lambda tx: tables.path_of(tx, self._file_id))
        if path is None:
            raise PermanentError("not_found", "The file is no longer in the catalogue.")
        item = await self._clients.disk.get_item(path)
        if item.is_folder:
            raise PermanentError("not_found", "A folder has replaced the file.")
        return item

    def _check_size(self, item: Item) -> None:
        if item.size > self._max_file_size:
            raise PermanentError("too_big", f"The file has {item.size:,} bytes; the limit is {self._max_file_size:,}.")
        if item.size == 0:
            raise PermanentError("empty", "The file is empty, and Telegram does not accept empty files.")

    async def _on_doubt(self, key: str) -> SendReceipt | None:
        """Handle a send in doubt: Telegram cannot be asked, so the file is sent again after the user is warned."""
        del key
        await self._warn()
        return None

    async def _warn(self) -> None:
        """Warn the user, once per delivery, that the file may arrive twice."""
        if self._warned:
            return
        # The first job of a chain of redrives, whose ID is part of every effect key.
        first = self._send_effect.key.removesuffix(f":{SEND}")
        await self._transact(lambda tx: tables.record_doubt(tx, first))
        language, name = await self._transact(
            lambda tx: (tables.language_of(tx, self._user_id), tables.name_of(tx, self._file_id))
        )

        async def send_warning() -> int:
            return await self._clients.telegram.send_text(
                self._user_id, formatting.render(language, "doubt", name=name)
            )

        await self._run.effect("doubt", on_doubt="retry")(send_warning)
        self._warned = True


def content_key(bot_id: int, item: Item) -> str | None:
    """Return the key by which a sent file is found again: the bot, because file IDs differ per bot, and its name and
    bytes.

    Return None if the disk has no checksum for the file.
    """
    if item.md5 is None:
        return None
    return hashlib.sha256(f"{bot_id}\n{item.size}\n{item.md5}\n{item.name}".encode()).hexdigest()
