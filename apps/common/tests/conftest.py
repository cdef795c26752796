"""Fixtures: an empty database, on SQLite and on PostgreSQL."""

from apps.common.tests.databases import database_url
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]
