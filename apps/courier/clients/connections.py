"""The clients of Yandex Disk and Telegram that one event loop uses."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import httpx
from sqlalchemy import Engine

from apps.common.tls import tls_context

from ..redact import add_secrets, protect_logs, set_alias_key
from ..settings import Settings
from .yandex_disk import Disk
from .yandex_tokens import Tokens

if TYPE_CHECKING:
    from aiogram import Bot

    from .telegram import Telegram

TIMEOUT = 30.0
"""Seconds of silence after which a connection fails."""


@dataclass
class _OpenClients:
    disk: Disk
    tokens: Tokens
    bot: "Bot"
    telegram: "Telegram"
    resume_at: float = 0.0


class Clients:
    """Connections to both systems. Each event loop has its own: a worker, its child process and the bot."""

    def __init__(self, settings: Settings, engine: Engine, *, timeout: float = TIMEOUT) -> None:
        self._settings, self._engine, self._timeout = settings, engine, timeout
        # Set the key here, so that user aliases in logs are the same before and after `open`.
        set_alias_key(settings.bot_token.get_secret_value())
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenClients] = WeakKeyDictionary()

    @asynccontextmanager
    async def open(self, *, dry_run: bool = False) -> AsyncGenerator[None]:
        """Open the clients for the block, without a request. In a `dry_run`, the settings' secrets replace no stored
        ones.

        Waits at the end for a running renewal of the token.
        """
        # The import takes seconds. Commands that only read the database do not need it.
        from .telegram import Telegram, make_bot

        settings, loop = self._settings, asyncio.get_running_loop()
        protect_logs()
        add_secrets(settings.secrets)
        async with httpx.AsyncClient(timeout=self._timeout, verify=tls_context()) as http, make_bot(settings) as bot:
            tokens = Tokens(self._engine, http, settings, dry_run=dry_run)
            disk = Disk(http, settings.yandex_url, tokens, stall=self._timeout)
            self._opened[loop] = _OpenClients(disk, tokens, bot, Telegram(bot, stall=self._timeout))
            try:
                yield
            finally:
                del self._opened[loop]
                await tokens.wait_for_renewals()

    def pause(self, seconds: float) -> None:
        """Start no new request for this many seconds."""
        self._current.resume_at = max(self._current.resume_at, asyncio.get_running_loop().time() + seconds)

    @property
    def pause_left(self) -> float:
        """Seconds until new requests may start."""
        return max(self._current.resume_at - asyncio.get_running_loop().time(), 0.0)

    @property
    def _current(self) -> _OpenClients:
        return self._opened[asyncio.get_running_loop()]

    @property
    def disk(self) -> Disk:
        return self._current.disk

    @property
    def tokens(self) -> Tokens:
        return self._current.tokens

    @property
    def bot(self) -> "Bot":
        return self._current.bot

    @property
    def telegram(self) -> "Telegram":
        return self._current.telegram
