"""One attempt to deliver one file: from the disk to Telegram's door, and in."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, Engine

from interlock import Run, Snooze

from . import tables, words
from .disk import Item
from .errors import Refusal, Trouble, Unsent
from .outside import Outside
from .receipt import Sent
from .settings import Settings

if TYPE_CHECKING:
    from .telegram import Parcel

T = TypeVar("T")
SEND = "send"
AWAY = 60.0
"""Seconds for which nothing is asked of the outside once a side of it could not be reached: its restart is to cost few tries."""


@dataclass(frozen=True)
class Means:
    """What all jobs work with: the database, the outside, and the settings of both."""

    engine: Engine
    outside: Outside
    settings: Settings

    async def asked(self, question: Callable[[Connection], T]) -> T:
        """The answer of one short transaction."""
        return await asyncio.to_thread(self.ask, question)

    def ask(self, question: Callable[[Connection], T]) -> T:
        """`asked`, where nobody minds that it blocks."""
        with self.engine.begin() as tx:
            return question(tx)


@dataclass(frozen=True)
class Delivery:
    """Telegram's receipt: the message that the file is in, and by which name Telegram has the file itself."""

    message_id: int
    telegram_file_id: str
    content: str | None
    """What was sent, by name and bytes; None where an earlier attempt sent it, or nobody can tell."""


class Carriage:
    """One attempt to deliver one file."""

    def __init__(self, run: Run, means: Means, user_id: int, file_id: int) -> None:
        self._run, self._asked, self._outside, self._largest = run, means.asked, means.outside, means.settings.largest
        self._user_id, self._file_id = user_id, file_id
        self._send = run.effect(SEND, on_doubt=self._doubtful)
        self._content: str | None = None
        self._known: str | None = None
        self._parcel: Parcel
        self._handed_over = self._warned = False

    async def carried(self) -> Delivery:
        """Download and send, or find that it was sent. What can be in doubt is the effect alone: Telegram has no whole request before it begins."""
        if pause := self._outside.pauses:
            # One that was told to wait, or reached nobody, speaks for all: a thousand more would fare the same, each at the price of a try.
            raise Snooze("Yandex Disk or Telegram is away or asked for a pause: nothing new is begun before its end", after=pause)
        try:
            async with self._packed() as parcel:
                self._parcel = parcel
                sent = await self._send(self._hand_over)
        except Trouble as error:
            if isinstance(error, Unsent):
                self._outside.pause(AWAY)
            elif error.status_code == 429 and error.retry_after:
                self._outside.pause(error.retry_after)
            raise
        except Refusal as error:
            if error.code != "stale_file" or self._known is None:
                raise
            await self._asked(lambda tx: tables.forget(tx, str(self._content)))
            raise Snooze("Telegram no longer has its copy of the file: it is taken from the disk again", after=0.0) from None
        return Delivery(sent.message_id, sent.telegram_file_id, self._content if self._handed_over else None)

    async def _hand_over(self) -> Sent:
        """Called unless there is a receipt. The receipt may be of an earlier attempt, which had the file as it was then."""
        self._handed_over = True
        return await self._parcel.hand_over()

    @asynccontextmanager
    async def _packed(self) -> AsyncGenerator["Parcel"]:
        """The file at Telegram's door: all of it but the last bytes. Nothing of it has arrived until it is handed over."""
        telegram = self._outside.telegram
        # A look that saves work, and decides nothing: whether it was sent, the effect finds out.
        receipt = await self._asked(lambda tx: tables.receipt(tx, self._run.job_id, SEND))
        if receipt == "applied":
            await self._run.advance("STREAMING")
            yield telegram.known(self._user_id, "")
            return
        if receipt == "asked":
            await self._warn()
        item = await self._found()
        self._content = content = fingerprint(telegram.bot_id, item)
        self._known = known = None if content is None else await self._asked(lambda tx: tables.remembered(tx, content))
        if known is not None:
            await self._run.advance("STREAMING")
            yield telegram.known(self._user_id, known)
            return
        self._check(item)
        link = await self._outside.disk.link(item.path)
        await self._run.advance("STREAMING")

        def progress(done: int) -> None:
            self._run.progress(done, item.size)

        async with telegram.parcel(self._user_id, item.name, item.size, self._outside.disk.body(item, link), progress=progress) as parcel:
            yield parcel

    async def _found(self) -> Item:
        path = await self._asked(lambda tx: tables.path_of(tx, self._file_id))
        if path is None:
            raise Refusal("not_found", "The catalogue has no such file.")
        item = await self._outside.disk.resource(path)
        if item.is_folder:
            raise Refusal("not_found", "There is a folder now where the file was.")
        return item

    def _check(self, item: Item) -> None:
        if item.size > self._largest:
            raise Refusal("too_big", f"The file has {item.size:,} bytes, and Telegram takes {self._largest:,} here.")
        if item.size == 0:
            raise Refusal("empty", "The file is empty, and Telegram takes no empty files.")

    async def _doubtful(self, key: str) -> Sent | None:
        """Nobody knows whether the file arrived, and Telegram cannot be asked. It is sent again, and never silently: its user is told first."""
        del key
        await self._warn()
        return None

    async def _warn(self) -> None:
        """Say, once for each delivery, that its file may come twice."""
        if self._warned:
            return
        # By the first of a chain of redrives, which is what outside calls know a job by.
        first = self._send.key.removesuffix(f":{SEND}")
        await self._asked(lambda tx: tables.doubt(tx, first))
        language, name = await self._asked(lambda tx: (tables.language_of(tx, self._user_id), tables.name_of(tx, self._file_id)))

        async def say() -> int:
            return await self._outside.telegram.say(self._user_id, words.say(language, "doubt", name=name))

        await self._run.effect("doubt", on_doubt="retry")(say)
        self._warned = True


def fingerprint(bot_id: int, item: Item) -> str | None:
    """By what a file that was sent is known again: its name and bytes, and the bot, since Telegram's names for files are each bot's own.

    None where the disk has no checksum for it: nobody could tell it from another.
    """
    if item.md5 is None:
        return None
    return hashlib.sha256(f"{bot_id}\n{item.size}\n{item.md5}\n{item.name}".encode()).hexdigest()
