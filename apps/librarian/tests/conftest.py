"""Fixtures: a librarian on SQLite and on PostgreSQL, with a fake qBittorrent that answers over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.common.tests.databases import database_url
from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.jobs import TorrentClient
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, open_kit
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def qbittorrent() -> Iterator[FakeQbittorrent]:
    with FakeQbittorrent() as fake:
        yield fake


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> TorrentClient:
    return QbittorrentClient(qbittorrent.url, qbittorrent.username, qbittorrent.password)


@pytest.fixture
def kit(database_url: str, client: TorrentClient, tmp_path: Path) -> Iterator[LibrarianKit]:
    with open_kit(database_url, client, tmp_path) as kit:
        yield kit
