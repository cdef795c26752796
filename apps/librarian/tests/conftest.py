"""A branch of the library for every test that needs one, on SQLite and on PostgreSQL, with a qBittorrent that answers over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.common.tests.databases import database_url
from apps.librarian.client import Qbittorrent
from apps.librarian.jobs import Client
from apps.librarian.tests import kit
from apps.librarian.tests.kit import Branch
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def qbittorrent() -> Iterator[FakeQbittorrent]:
    with FakeQbittorrent() as fake:
        yield fake


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> Client:
    return Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password)


@pytest.fixture
def branch(database_url: str, client: Client, tmp_path: Path) -> Iterator[Branch]:
    with kit.branch(database_url, client, tmp_path) as made:
        yield made
