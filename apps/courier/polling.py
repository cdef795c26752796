"""Receives updates from Telegram, each at least once. A batch is confirmed only after all of it was handled."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Literal

from aiogram import Dispatcher
from aiogram.exceptions import AiogramError
from aiogram.methods import TelegramMethod
from aiogram.types import Update
from pydantic import ValidationError

from .clients.connections import Clients
from .clients.telegram_errors import translate_error
from .errors import CourierError, PermanentError, TemporaryError, format_error
from .redact import user_alias

POLL_SECONDS = 25
"""Seconds for which Telegram holds a request open while there is no update."""
POLL_GRACE = 15
"""Further seconds for the answer."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Seconds to wait after the first failure, and at most."""
UPDATE_TYPES = ["message", "callback_query"]
log = logging.getLogger(__name__)


class GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """The method getUpdates with unparsed updates, so that one unreadable update does not hide the others."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None
    timeout: int
    limit: int = 100
    allowed_updates: list[str] = UPDATE_TYPES


class UpdatePoller:
    """Receives updates. Users are answered concurrently, and each user in order."""

    def __init__(self, dispatcher: Dispatcher, clients: Clients) -> None:
        self._dispatcher, self._clients = dispatcher, clients
        self._offset: int | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Receive updates until `stop`, then confirm the handled ones.

        Raises `PermanentError` if Telegram rejects the bot token. All other errors are retried.
        """
        pause_seconds = FIRST_PAUSE
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                try:
                    await self._poll_unless_stopped(stopped)
                    pause_seconds = FIRST_PAUSE
                except CourierError as error:
                    if isinstance(error, PermanentError) and error.code == "bot_token_rejected":
                        raise
                    pause = max(pause_seconds, (error.retry_after or 0.0) if isinstance(error, TemporaryError) else 0.0)
                    log.warning("Updates could not be received; retrying in %.0f s: %s", pause, error)
                    await asyncio.wait({stopped}, timeout=pause)
                    pause_seconds = min(2 * pause_seconds, MAX_PAUSE)
            await self._confirm()
        finally:
            stopped.cancel()

    async def poll_once(self, wait: int = POLL_SECONDS) -> int:
        """Receive and handle one batch. Return its size. The next call confirms it."""
        batch = await self._fetch(wait)
        await self._handle(batch)
        return len(batch)

    async def _poll_unless_stopped(self, stopped: "asyncio.Future[Literal[True]]") -> None:
        """Receive and handle one batch, unless `stop` comes first. A batch that has started is finished."""
        fetching = asyncio.ensure_future(self._fetch(POLL_SECONDS))
        either: set[asyncio.Future[Any]] = {fetching, stopped}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                await self._handle(fetching.result())
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def _fetch(self, wait: int, limit: int = 100) -> list[dict[str, Any]]:
        try:
            return await self._clients.bot(
                GetRawUpdates(offset=self._offset, timeout=wait, limit=limit), request_timeout=wait + POLL_GRACE
            )
        except (AiogramError, OSError) as error:
            raise translate_error(error) from None

    async def _handle(self, batch: list[dict[str, Any]]) -> None:
        queues: dict[int, list[Update]] = {}
        for update in self._parse(batch):
            event = update.message or update.callback_query
            if event is not None and event.from_user is not None:
                queues.setdefault(event.from_user.id, []).append(update)
        await asyncio.gather(*(self._handle_in_order(user_id, updates) for user_id, updates in queues.items()))
        # An empty batch means that all is confirmed. Forget the offset: after a quiet week Telegram continues
        # with a random ID.
        self._offset = max(int(each["update_id"]) for each in batch) + 1 if batch else None

    def _parse(self, batch: list[dict[str, Any]]) -> Iterable[Update]:
        for each in batch:
            try:
                yield Update.model_validate(each, context={"bot": self._clients.bot})
            except ValidationError:
                log.error("Skipped an unreadable update.")  # noqa: TRY400 - a traceback would print the user's text

    async def _handle_in_order(self, user_id: int, updates: list[Update]) -> None:
        for update in updates:
            try:
                await self._dispatcher.feed_update(self._clients.bot, update)
            except Exception as error:  # noqa: BLE001 - one update must not block the others
                log.error(  # noqa: TRY400 - a traceback would print values
                    "An update of %s could not be handled: %s", user_alias(user_id), format_error(error)
                )

    async def _confirm(self) -> None:
        if self._offset is None:
            return
        try:
            await self._fetch(0, limit=1)
        except CourierError as error:
            log.warning(
                "Handled updates could not be confirmed; they will be handled again after the next start: %s", error
            )
