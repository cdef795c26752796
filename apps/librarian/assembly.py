"""The librarian put together from its settings."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property

from .client import Qbittorrent, Torrent
from .errors import OutsideDown
from .jobs import Librarian, build
from .settings import Settings
from .source import Source

PATIENCE = 5.0
"""Seconds that a worker's first question may take: it starts all the same if qBittorrent is slow or away."""
_log = logging.getLogger("librarian")


class Lazily:
    """qBittorrent, reached for when it is first needed: whoever only looks at jobs need know no password."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def client(self) -> Qbittorrent:
        return self._made(timeout=20.0)

    def _made(self, timeout: float) -> Qbittorrent:
        given = self.settings
        allow = given.allow_default_credentials
        return Qbittorrent(given.qbittorrent_url, given.username, given.password, allow_default_credentials=allow, timeout=timeout)

    @asynccontextmanager
    async def checked(self) -> AsyncGenerator[None]:
        """A worker logs in at its start, and ends there if its credentials cannot do. A qBittorrent that is away may come back: that is said, and no more."""
        impatient = self._made(timeout=PATIENCE)
        try:
            await asyncio.to_thread(impatient.version)
        except OutsideDown as error:
            _log.warning("%s The worker starts all the same, and goes on when it is back.", error)
        yield

    def add(self, source: Source, save_path: str) -> str:
        return self.client.add(source, save_path)

    def look(self, ids: Sequence[str]) -> Mapping[str, Torrent]:
        return self.client.look(ids)

    def remove(self, id: str) -> None:
        self.client.remove(id)


def assembled(settings: Settings) -> Librarian:
    """The librarian with these settings. It opens nothing yet, and each of its workers logs in when it starts."""
    client = Lazily(settings)
    return build(settings, client, lifespan=client.checked)
