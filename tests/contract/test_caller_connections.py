"""Enqueue in the caller's own transaction, for every supported database library."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from interlock.errors import KeyReused, UsageError
from interlock.store import OpenStore
from tests.contract.kit import FACTS, LIFECYCLES, make, stored
from tests.contract.stacks import POSTGRES, SQLITE, Stack, django_connection, sqlite_path
from tests.kit import Place, postgres_place, sqlite_place

STACKS = [pytest.param(stack, id=f"{stack.database}: {stack.name}") for stack in (*SQLITE, *POSTGRES)]


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    made: list[Place] = []

    def of(database: str) -> Place:
        made.append(
            sqlite_place(tmp_path) if database == "sqlite" else postgres_place(request.getfixturevalue("postgres_url"))
        )
        made[-1].open().registry.migrate(list(LIFECYCLES.values()), FACTS)
        return made[-1]

    yield of
    for place in made:
        place.close()


def in_a_transaction(stack: Stack, place: Place, store: OpenStore, *, commit: bool, **fields: Any) -> str:
    """Enqueue one job in a transaction of this library, end the transaction, and return the job's id."""
    job = make(**fields)
    asyncio.run(
        stack.run(
            place.url,
            lambda conn: store.queue.enqueue([job], conn=conn),
            lambda conn: store.queue.aenqueue([job], conn=conn),
            commit,
        )
    )
    return job.id


@pytest.mark.parametrize("stack", STACKS)
def test_job_is_stored_exactly_if_its_callers_transaction_commits(
    stack: Stack, place_of: Callable[[str], Place]
) -> None:
    """After a commit the job and its history are stored; after a rollback neither is."""
    place = place_of(stack.database)
    store = place.open()
    kept = in_a_transaction(stack, place, store, commit=True)
    gone = in_a_transaction(stack, place, store, commit=False)
    assert [job.id for job in store.inspect.jobs()] == [kept]
    assert [entry.event for entry in store.inspect.history(kept)] == ["enqueue"]
    assert store.inspect.history(gone) == []


@pytest.mark.parametrize("stack", STACKS)
def test_keys_apply_inside_a_callers_transaction(stack: Stack, place_of: Callable[[str], Place]) -> None:
    """The call returns the id of the key's job; another payload under the key is refused, and the transaction stays
    open.
    """
    place = place_of(stack.database)
    store = place.open()
    holder = stored(store, idempotency_key="k")
    answers: list[Any] = []

    def enqueue(conn: Any) -> None:
        answers.append(store.queue.enqueue([make(idempotency_key="k")], conn=conn)[0])
        with pytest.raises(KeyReused):
            store.queue.enqueue([make(), make(idempotency_key="k", payload='{"other":1}')], conn=conn)
        answers.append(store.queue.enqueue([make()], conn=conn)[0])

    async def aenqueue(conn: Any) -> None:
        answers.append((await store.queue.aenqueue([make(idempotency_key="k")], conn=conn))[0])
        with pytest.raises(KeyReused):
            await store.queue.aenqueue([make(), make(idempotency_key="k", payload='{"other":1}')], conn=conn)
        answers.append((await store.queue.aenqueue([make()], conn=conn))[0])

    asyncio.run(stack.run(place.url, enqueue, aenqueue, True))
    assert (answers[0].id, answers[0].created, answers[1].created) == (holder.id, False, True)
    assert len(store.inspect.jobs()) == 2


def test_store_transaction_is_accepted_as_conn(store: OpenStore) -> None:
    """If the block raises, its jobs are not stored."""
    with store.transaction() as tx:
        kept = store.queue.enqueue([make()], conn=tx)[0].id
    with pytest.raises(RuntimeError), store.transaction() as tx:
        store.queue.enqueue([make()], conn=tx)
        raise RuntimeError
    assert [job.id for job in store.inspect.jobs()] == [kept]


# ---------------------------------------------------------------- refused connections
def refused(store: OpenStore, conn: Any, *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        store.queue.enqueue([make()], conn=conn)
    assert all(word in str(caught.value) for word in words), caught.value
    assert store.inspect.jobs() == []


def test_object_that_is_not_a_connection_is_refused_with_a_message(store: OpenStore) -> None:
    refused(store, object(), "conn=", "sqlite3, psycopg, SQLAlchemy or Django")


def test_connection_to_another_database_is_refused_with_a_message(
    place_of: Callable[[str], Place], tmp_path: Path
) -> None:
    """Also one that has Interlock's tables: each database has its own id."""
    place, ran_elsewhere = place_of("sqlite"), place_of("sqlite")
    store = place.open()
    for file in (sqlite_path(ran_elsewhere.url), str(tmp_path / "empty.db")):
        with closing(sqlite3.connect(file)) as connection:
            refused(store, connection, "another database")
            connection.rollback()


def test_connection_to_another_kind_of_database_is_refused_with_a_message(
    place_of: Callable[[str], Place], postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        refused(place_of("sqlite").open(), connection, "postgresql", "sqlite")
        with closing(sqlite3.connect(":memory:")) as file:
            refused(place_of("postgresql").open(), file, "sqlite", "postgresql")


def test_connection_to_a_database_without_the_schema_is_refused_with_a_message(
    place_of: Callable[[str], Place], postgres_url: str
) -> None:
    store = place_of("postgresql").open()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE elsewhere")
    with psycopg.connect(postgres_url, dbname="elsewhere") as connection:
        refused(store, connection, "another database")


def test_autocommit_is_refused_with_a_message_that_names_the_alternative(place_of: Callable[[str], Place]) -> None:
    """With autocommit, a rollback by the caller would not remove the job."""
    sqlite, postgres = place_of("sqlite"), place_of("postgresql")
    with closing(sqlite3.connect(sqlite_path(sqlite.url), isolation_level=None)) as file:
        refused(sqlite.open(), file, "BEGIN")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        refused(postgres.open(), connection, "conn.transaction()")
    engine = create_engine(postgres.url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as alchemy:
        refused(postgres.open(), alchemy, "AUTOCOMMIT")
    engine.dispose()
    with closing(django_connection(postgres.url)) as django:
        refused(postgres.open(), django, "atomic()")


def test_second_sqlite_library_on_one_file_is_refused_with_a_message(place_of: Callable[[str], Place]) -> None:
    """Closing a connection of one library would drop the other's locks."""
    import pysqlite3

    place = place_of("sqlite")
    with closing(pysqlite3.connect(sqlite_path(place.url))) as file:
        refused(place.open(), file, "pysqlite3", "sqlite3", "locks")


def test_async_connection_in_a_sync_call_is_refused_with_a_message(place_of: Callable[[str], Place]) -> None:
    place = place_of("postgresql")

    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(place.url) as connection:
            refused(place.open(), connection, "aenqueue")

    asyncio.run(ask())
