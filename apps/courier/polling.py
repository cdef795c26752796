"""Takes updates from Telegram, each at least once: a batch is confirmed only when all of it was handled."""

import asyncio
import logging
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from aiogram import Dispatcher
from aiogram.exceptions import AiogramError
from aiogram.methods import TelegramMethod
from aiogram.types import Update
from pydantic import ValidationError

from .errors import CourierError, Refusal, Trouble
from .outside import Outside
from .redact import who
from .telegram import translate

WAIT = 25
"""Seconds for which Telegram holds a request back while there is nothing to tell."""
GRACE = 15
"""Seconds that its answer may take beyond that."""
FIRST, LONGEST = 1.0, 30.0
"""Seconds of rest after the first failure, and at most."""
KINDS = ["message", "callback_query"]
log = logging.getLogger(__name__)


class RawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """getUpdates, taken as it comes: one update that cannot be read must not hide the others."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None
    timeout: int
    limit: int = 100
    allowed_updates: list[str] = KINDS


class Polling:
    """The bot's ear. Users are answered side by side, and each user in the order in which they spoke."""

    def __init__(self, dispatcher: Dispatcher, outside: Outside) -> None:
        self._dispatcher, self._outside = dispatcher, outside
        self._offset: int | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until told to stop; what was handled by then is confirmed. `Refusal` if Telegram does not accept the bot's token; all else may pass."""
        rest = FIRST
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                try:
                    await self._turn_unless(stopped)
                    rest = FIRST
                except CourierError as error:
                    if isinstance(error, Refusal) and error.code == "bot_refused":
                        raise
                    pause = max(rest, (error.retry_after or 0.0) if isinstance(error, Trouble) else 0.0)
                    log.warning("No updates could be taken; the next attempt is in %.0f s: %s", pause, error)
                    await asyncio.wait({stopped}, timeout=pause)
                    rest = min(2 * rest, LONGEST)
            await self._confirm()
        finally:
            stopped.cancel()

    async def turn(self, wait: int = WAIT) -> int:
        """One batch: taken, and handled. Returns how many updates it had. The next turn confirms it."""
        batch = await self._taken(wait)
        await self._handled(batch)
        return len(batch)

    async def _turn_unless(self, stopped: "asyncio.Future[Literal[True]]") -> None:
        """A turn, unless it is told to stop while it still waits. What it has begun to handle, it handles to the end."""
        taking = asyncio.ensure_future(self._taken(WAIT))
        either: set[asyncio.Future[Any]] = {taking, stopped}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                await self._handled(taking.result())
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _taken(self, wait: int, limit: int = 100) -> list[dict[str, Any]]:
        try:
            return await self._outside.bot(RawUpdates(offset=self._offset, timeout=wait, limit=limit), request_timeout=wait + GRACE)
        except (AiogramError, OSError) as error:
            raise translate(error) from None

    async def _handled(self, batch: list[dict[str, Any]]) -> None:
        queues: dict[int, list[Update]] = {}
        for update in self._read(batch):
            event = update.message or update.callback_query
            if event is not None and event.from_user is not None:
                queues.setdefault(event.from_user.id, []).append(update)
        await asyncio.gather(*(self._in_order(user_id, updates) for user_id, updates in queues.items()))
        # An empty batch says that all is confirmed. What it was confirmed by is then forgotten: after a quiet week Telegram counts from anywhere.
        self._offset = max(int(each["update_id"]) for each in batch) + 1 if batch else None

    def _read(self, batch: list[dict[str, Any]]) -> Iterable[Update]:
        for each in batch:
            try:
                yield Update.model_validate(each, context={"bot": self._outside.bot})
            except ValidationError:
                log.error("An update cannot be read and is left out.")  # noqa: TRY400 - the error would print what somebody wrote

    async def _in_order(self, user_id: int, updates: list[Update]) -> None:
        for update in updates:
            try:
                await self._dispatcher.feed_update(self._outside.bot, update)
            except Exception as error:  # noqa: BLE001 - one update must not keep all others from being answered
                log.error("An update of %s could not be handled: %s", who(user_id), told(error))  # noqa: TRY400 - see `told`

    async def _confirm(self) -> None:
        if self._offset is None:
            return
        try:
            await self._taken(0, limit=1)
        except CourierError as error:
            log.warning("What was handled could not be confirmed, and will be handled once more at the next start: %s", error)


def told(error: BaseException) -> str:
    """An error for the log: its sort and where it was raised. Its words only if they are ours, since others print what they were given."""
    frames = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}{f': {error}' if isinstance(error, CourierError) else ''} (at {', '.join(frames)})"
