"""Assembles the librarian from its settings."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property

from .clients.qbittorrent import QbittorrentClient, Torrent
from .errors import QbittorrentUnavailable
from .jobs import Librarian, build
from .settings import Settings
from .torrent_source import Source

LOGIN_CHECK_TIMEOUT = 5.0
"""Seconds for the login check of a starting worker. The worker also starts if qBittorrent is slow or unreachable."""
_log = logging.getLogger("librarian")


class LazyQbittorrent:
    """A qBittorrent client that is made at its first call, so that looking at jobs needs no password."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def client(self) -> QbittorrentClient:
        return self._make_client(timeout=20.0)

    def _make_client(self, timeout: float) -> QbittorrentClient:
        settings = self.settings
        return QbittorrentClient(
            settings.qbittorrent_url,
            settings.username,
            settings.password,
            allow_default_credentials=settings.allow_default_credentials,
            timeout=timeout,
        )

    @asynccontextmanager
    async def check_login(self) -> AsyncGenerator[None]:
        """Log in when a worker starts. The worker ends if its credentials are wrong, not if qBittorrent is down."""
        client = self._make_client(timeout=LOGIN_CHECK_TIMEOUT)
        try:
            await asyncio.to_thread(client.version)
        except QbittorrentUnavailable as error:
            _log.warning("%s The worker starts anyway, and continues when qBittorrent is back.", error)
        yield

    def add(self, source: Source, save_path: str) -> str:
        return self.client.add(source, save_path)

    def find_torrents(self, ids: Sequence[str]) -> Mapping[str, Torrent]:
        return self.client.find_torrents(ids)

    def remove(self, id: str) -> None:
        self.client.remove(id)


def assemble(settings: Settings) -> Librarian:
    """The librarian with these settings. It opens no connection; each worker logs in when it starts."""
    client = LazyQbittorrent(settings)
    return build(settings, client, lifespan=client.check_login)
