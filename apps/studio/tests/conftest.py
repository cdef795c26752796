"""Fixtures: a studio on SQLite and on PostgreSQL with a fake Images API."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from apps.common.tests.databases import database_url
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.ledger_kit import migrated_engine
from apps.studio.tests.studio_kit import StudioKit, studio_kit
from apps.studio.web.job_watch import RECENT_JOBS
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def images() -> Iterator[FakeImages]:
    with FakeImages() as fake:
        yield fake


@pytest.fixture
def kit(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[StudioKit]:
    with studio_kit(database_url, images, quick_path) as made:
        yield made


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A database with the studio's tables and no users."""
    engine = migrated_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch only the two newest jobs."""
    assert RECENT_JOBS == 100
    monkeypatch.setattr("apps.studio.web.job_watch.RECENT_JOBS", 2)
