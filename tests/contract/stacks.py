"""The database libraries whose connections `conn=` accepts. Each runs an enqueue in a transaction and then commits or
rolls back.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

Enqueue = Callable[[Any], Any]
AEnqueue = Callable[[Any], Awaitable[Any]]


@dataclass
class Stack:
    """A library with its connection: `run` opens a transaction, calls `enqueue(conn)`, and commits or rolls back."""

    name: str
    database: str
    run: Callable[[str, Enqueue, AEnqueue, bool], Awaitable[None]]


def sqlite_path(url: str) -> str:
    return url.partition(":///")[2]


async def _sqlite3(url: str, enqueue: Enqueue, _: AEnqueue, commit: bool) -> None:
    connection = sqlite3.connect(sqlite_path(url))
    enqueue(connection)
    connection.commit() if commit else connection.rollback()
    connection.close()


async def _psycopg(url: str, enqueue: Enqueue, _: AEnqueue, commit: bool) -> None:
    connection = psycopg.connect(url)
    enqueue(connection)
    connection.commit() if commit else connection.rollback()
    connection.close()


async def _psycopg_async(url: str, _: Enqueue, aenqueue: AEnqueue, commit: bool) -> None:
    connection = await psycopg.AsyncConnection.connect(url)
    await aenqueue(connection)
    await (connection.commit() if commit else connection.rollback())
    await connection.close()


def _sqlalchemy(session: bool) -> Callable[..., Awaitable[None]]:
    async def run(url: str, enqueue: Enqueue, _: AEnqueue, commit: bool) -> None:
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
        with Session(engine) if session else engine.connect() as connection:
            enqueue(connection)
            connection.commit() if commit else connection.rollback()
        engine.dispose()

    return run


def _sqlalchemy_async(driver: str, session: bool) -> Callable[..., Awaitable[None]]:
    async def run(url: str, _: Enqueue, aenqueue: AEnqueue, commit: bool) -> None:
        scheme, rest = url.split("://", 1)
        engine = create_async_engine(f"{scheme}+{driver}://{rest}", poolclass=NullPool)
        async with AsyncSession(engine) if session else engine.connect() as connection:
            await aenqueue(connection)
            await (connection.commit() if commit else connection.rollback())
        await engine.dispose()

    return run


async def _django(url: str, enqueue: Enqueue, _: AEnqueue, commit: bool) -> None:
    import asyncio

    await asyncio.to_thread(_django_in_a_thread, url, enqueue, commit)


def _django_in_a_thread(url: str, enqueue: Enqueue, commit: bool) -> None:
    """Django refuses its sync connection in a thread with a running loop, so it gets its own thread, as in a view."""
    from django.db import transaction

    connection = django_connection(url)
    try:
        with transaction.atomic(using=connection.alias):
            enqueue(connection)
            if not commit:
                transaction.set_rollback(True, using=connection.alias)
    finally:
        connection.close()


def django_connection(url: str) -> Any:
    """Return Django's connection to this database, under its own alias."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={"default": {}}, USE_TZ=True)
        django.setup()
    alias = f"at_{abs(hash(url))}"
    if url.startswith("sqlite"):
        database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": sqlite_path(url)}
    else:
        info = psycopg.conninfo.conninfo_to_dict(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": info.get("dbname"),
            "USER": info.get("user"),
            "HOST": info.get("host"),
            "PORT": info.get("port", ""),
            "PASSWORD": info.get("password", ""),
        }
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: database})[alias]
    return connections[alias]


SQLITE = [
    Stack("sqlite3", "sqlite", _sqlite3),
    Stack("SQLAlchemy Connection", "sqlite", _sqlalchemy(False)),
    Stack("SQLAlchemy Session", "sqlite", _sqlalchemy(True)),
    Stack("SQLAlchemy AsyncConnection (aiosqlite)", "sqlite", _sqlalchemy_async("aiosqlite", False)),
    Stack("SQLAlchemy AsyncSession (aiosqlite)", "sqlite", _sqlalchemy_async("aiosqlite", True)),
    Stack("Django", "sqlite", _django),
]
POSTGRES = [
    Stack("psycopg", "postgresql", _psycopg),
    Stack("psycopg async", "postgresql", _psycopg_async),
    Stack("SQLAlchemy Connection", "postgresql", _sqlalchemy(False)),
    Stack("SQLAlchemy Session", "postgresql", _sqlalchemy(True)),
    Stack("SQLAlchemy AsyncConnection (psycopg)", "postgresql", _sqlalchemy_async("psycopg", False)),
    Stack("SQLAlchemy AsyncSession (asyncpg)", "postgresql", _sqlalchemy_async("asyncpg", True)),
    Stack("Django", "postgresql", _django),
]
