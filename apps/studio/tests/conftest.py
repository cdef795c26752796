"""An atelier for every test that needs one, on SQLite and on PostgreSQL, before an Images API that answers over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.common.tests.databases import database_url
from apps.studio.tests import kit
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.kit import Atelier
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def images() -> Iterator[FakeImages]:
    with FakeImages() as fake:
        yield fake


@pytest.fixture
def atelier(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[Atelier]:
    with kit.atelier(database_url, images, quick_path) as made:
        yield made
