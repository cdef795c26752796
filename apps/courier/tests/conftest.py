"""An office of the courier for every test that needs one, on SQLite and on PostgreSQL, between a Telegram and a Yandex Disk that answer over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from apps.common.database import connect
from apps.common.tests.databases import database_url
from apps.courier import tables
from apps.courier.tests import kit
from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.kit import Office
from apps.courier.tests.yandex import FakeDisk
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Of a database with the courier's own tables."""
    made = connect(database_url)
    tables.migrate(made)
    yield made
    made.dispose()


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
