"""An office of the courier for every test that needs one, on SQLite and on PostgreSQL, between a Telegram and a Yandex Disk that answer over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.courier.tests import kit
from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.kit import Office
from apps.courier.tests.yandex import FakeDisk
from tests.conftest import postgres_url, quick_path

__all__ = ["postgres_url", "quick_path"]


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[str]:
    """An empty database, of each sort in turn."""
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with kit.database(server, quick_path) as url:
        yield url


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as fake:
        yield fake


@pytest.fixture
def yandex() -> Iterator[FakeDisk]:
    with FakeDisk() as fake:
        yield fake


@pytest.fixture
def office(database_url: str, telegram: FakeTelegram, yandex: FakeDisk, tmp_path: Path) -> Iterator[Office]:
    with kit.office(database_url, telegram, yandex, tmp_path) as made:
        yield made
