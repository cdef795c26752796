"""The outside: Yandex Disk and Telegram, as one event loop holds them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import httpx
from sqlalchemy import Engine

from apps.common.tls import trusted

from .disk import Disk
from .redact import hide, key, quiet
from .settings import Settings
from .tokens import Tokens

if TYPE_CHECKING:
    from aiogram import Bot

    from .telegram import Telegram

PATIENCE = 30.0
"""Seconds for which either side may be silent."""


@dataclass
class _Opened:
    disk: Disk
    tokens: Tokens
    bot: "Bot"
    telegram: "Telegram"
    resumes: float = 0.0


class Outside:
    """Connections to both sides. They belong to the event loop that opened them: a worker, its child and the bot each have their own."""

    def __init__(self, settings: Settings, engine: Engine, *, patience: float = PATIENCE) -> None:
        self._settings, self._engine, self._patience = settings, engine, patience
        # Here already, so that nobody's name in the logs changes when the outside is opened.
        key(settings.bot_token.get_secret_value())
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()

    @asynccontextmanager
    async def open(self, *, trial: bool = False) -> AsyncGenerator[None]:
        """Reach for both while the block runs; nothing is asked of them yet. In a `trial` the settings' secrets replace nobody's.

        A renewal of the token that is at work at its end is waited for.
        """
        # Seconds pass until it is imported, for which nobody waits who only looks at the database.
        from .telegram import Telegram, make_bot

        given, loop = self._settings, asyncio.get_running_loop()
        quiet()
        hide(given.secrets)
        async with httpx.AsyncClient(timeout=self._patience, verify=trusted()) as http, make_bot(given) as bot:
            tokens = Tokens(self._engine, http, given, trial=trial)
            disk = Disk(http, given.yandex_url, tokens, stall=self._patience)
            self._opened[loop] = _Opened(disk, tokens, bot, Telegram(bot, stall=self._patience))
            try:
                yield
            finally:
                del self._opened[loop]
                await tokens.finish()

    def pause(self, seconds: float) -> None:
        """Either side asked to be left alone for so long."""
        self._here.resumes = max(self._here.resumes, asyncio.get_running_loop().time() + seconds)

    @property
    def pauses(self) -> float:
        """Seconds for which nothing new should be asked of either side."""
        return max(self._here.resumes - asyncio.get_running_loop().time(), 0.0)

    @property
    def _here(self) -> _Opened:
        return self._opened[asyncio.get_running_loop()]

    @property
    def disk(self) -> Disk:
        return self._here.disk

    @property
    def tokens(self) -> Tokens:
        return self._here.tokens

    @property
    def bot(self) -> "Bot":
        return self._here.bot

    @property
    def telegram(self) -> "Telegram":
        return self._here.telegram
