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
_shared: dict[tuple[str, str], str] = {}
"""By server and name, the databases that the tests of this process use in turn."""


@contextmanager
def temporary_database(server: str | None, directory: Path, name: str) -> Iterator[str]:
    """The URL of an empty database whose name begins with `name`: a file, or one on the server."""
    unique = f"{name}_{os.getpid()}_{next(_numbers)}"
    if server is None:
        yield f"sqlite:///{directory / unique}.db"
        return
    with psycopg.connect(server, autocommit=True) as connection:
        # FILE_COPY takes a quarter of the time of the default strategy.
        connection.execute(f"CREATE DATABASE {unique} STRATEGY FILE_COPY")
        try:
            yield make_url(server).set(database=unique).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE {unique} WITH (FORCE)")


def _shared_database(server: str, session: pytest.Session, name: str) -> str:
    if (server, name) not in _shared:
        shared = temporary_database(server, Path(), name)
        _shared[server, name] = shared.__enter__()
        session.addfinalizer(lambda: (_shared.pop((server, name)), shared.__exit__(None, None, None))[1])
    return _shared[server, name]


def _empty_database(server: str, session: pytest.Session) -> str:
    """A shared database, emptied. That takes a tenth of the time of creating and dropping one."""
    url = _shared_database(server, session, "app")
    with psycopg.connect(url, autocommit=True) as connection:
        end_other_sessions(connection)
        drop_everything(connection)
    return url


def end_other_sessions(connection: psycopg.Connection) -> None:
    """End the sessions that an earlier test left open in this database."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")


def drop_everything(connection: psycopg.Connection) -> None:
    """Drop the tables of Interlock and of the application."""
    connection.execute("DROP SCHEMA IF EXISTS interlock CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[str]:
    """An empty database: SQLite, then PostgreSQL."""
    if request.param == "sqlite":
        with temporary_database(None, quick_path, "app") as url:
            yield url
        return
    server = request.getfixturevalue("postgres_url")
    if "kit" in request.fixturenames:  # a kit empties its database by itself, and keeps its tables
        yield _shared_database(server, request.session, "kit")
    else:
        yield _empty_database(server, request.session)
