"""Empty databases for tests of the applications."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

_numbers = itertools.count(1)


@contextmanager
def database(server: str | None, directory: Path, name: str) -> Iterator[str]:
    """The URL of an empty database whose name begins so: a file, or one of the server's own."""
    called = f"{name}_{os.getpid()}_{next(_numbers)}"
    if server is None:
        yield f"sqlite:///{directory / called}.db"
        return
    with psycopg.connect(server, autocommit=True) as connection:
        # Copied as files: the other way is for servers whose write-ahead log matters, and takes four times as long.
        connection.execute(f"CREATE DATABASE {called} STRATEGY FILE_COPY")
        try:
            yield make_url(server).set(database=called).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE {called} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[str]:
    """An empty database, of each sort in turn."""
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with database(server, quick_path, "app") as url:
        yield url
