"""The librarian's app by name, for `interlock worker -A apps.librarian.app:app` and every other command of Interlock."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property

from .client import Qbittorrent, Torrent
from .jobs import build
from .settings import Settings
from .source import Source


class Lazily:
    """qBittorrent, reached for when it is first needed: whoever only looks at jobs need know no password."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def client(self) -> Qbittorrent:
        given = self.settings
        return Qbittorrent(given.qbittorrent_url, given.username, given.password, allow_default_credentials=given.allow_default_credentials)

    @asynccontextmanager
    async def checked(self) -> AsyncGenerator[None]:
        """A worker whose credentials can never do ends here, at its start, with the reason."""
        _ = self.client
        yield

    def add(self, source: Source, save_path: str) -> str:
        return self.client.add(source, save_path)

    def look(self, ids: Sequence[str]) -> Mapping[str, Torrent]:
        return self.client.look(ids)

    def remove(self, id: str) -> None:
        self.client.remove(id)


_settings = Settings.from_env()
_client = Lazily(_settings)
librarian = build(_settings, _client, lifespan=_client.checked)
app = librarian.app
