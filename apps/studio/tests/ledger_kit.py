"""Helpers for the tests of the ledger: a migrated database, users and job IDs."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError

from apps.common.database import make_engine
from apps.studio import ledger, tables
from apps.studio.errors import Refusal
from apps.studio.tables import entries, users
from interlock import App


def migrated_engine(url: str) -> Engine:
    app = App(url)
    app.migrate()
    app.close()
    engine = make_engine(url)
    tables.migrate(engine)
    return engine


def user(tx: Connection, name: str = "ada", credits: int = 0) -> int:
    id = tx.execute(users.insert().values(name=name, key_hash=name)).inserted_primary_key[0]
    if credits:
        ledger.grant(tx, id, credits, "to begin with")
    return id


def job() -> str:
    return str(uuid4())


def refused(engine: Engine, write: Callable[[Connection], object]) -> None:
    """Assert that the database refuses the statement and nothing changes."""
    with engine.begin() as tx:
        before = tx.execute(select(entries).order_by(entries.c.id)).all()
    with pytest.raises(DBAPIError), engine.begin() as tx:
        write(tx)
    with engine.begin() as tx:
        assert tx.execute(select(entries).order_by(entries.c.id)).all() == before


def together(count: int, act: Callable[[int], object]) -> list[object]:
    """Run this in many threads at the same moment and return each result."""
    gate = threading.Barrier(count)

    def one(number: int) -> object:
        gate.wait(60)
        try:
            return act(number)
        except Refusal as refusal:
            return refusal.code

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
