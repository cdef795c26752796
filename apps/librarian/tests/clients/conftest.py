"""Fixtures: a fake qBittorrent of each dialect, and the client for it."""

from collections.abc import Iterator

import pytest

from apps.librarian.clients import qbittorrent as client_module
from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent


@pytest.fixture(params=["4.5", "5.0", "5.2"])
def qbittorrent(request: pytest.FixtureRequest) -> Iterator[FakeQbittorrent]:
    """A fake of each dialect. The client must not change its settings."""
    with FakeQbittorrent(request.param) as fake:
        yield fake
    assert fake.requests_to("app/setPreferences") == []


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> QbittorrentClient:
    return QbittorrentClient(qbittorrent.url, qbittorrent.username, qbittorrent.password)


@pytest.fixture
def no_listing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until a torrent is listed."""
    monkeypatch.setattr(client_module, "LISTING_WAITS", (0.0, 0.0))
