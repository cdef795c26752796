"""The pool of migrated schemas: a test never sees data of another test."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.contract.kit import CONTENTS, claimed, stored
from tests.kit import Place, PostgresRaw, postgres_place
from tests.pool import SchemaPool

EMPTIED = (
    "jobs",
    "executions",
    "audit",
    "receipts",
    "archived",
    "workers",
    "schedules",
    "test_clock",
    "limits",
    "key_rates",
    "key_checks",
    "operations",
    "batches",
    "dependencies",
    "flow_checks",
    "unique_windows",
)


@pytest.fixture
def pool(postgres_url: str) -> Iterator[SchemaPool]:
    pool = SchemaPool(postgres_url, "pooled")
    yield pool
    pool.close()


def used(url: str, pool: SchemaPool) -> Place:
    """Return a database that a test has used."""
    place = postgres_place(url, pool)
    store = place.open_with(CONTENTS)
    claimed(store)
    stored(store)
    place.raw(
        "INSERT INTO {batches} (id, name, created_at, created_by) SELECT '00000000-0000-7000-8000-000000000000', 'mine', now(), 'me'"
    )
    return place


def test_reused_schema_is_empty(postgres_url: str, pool: SchemaPool) -> None:
    """It has no rows, no frozen clock and a new database id; the lifecycles and kinds are kept."""
    first = used(postgres_url, pool)
    (instance,) = first.raw("SELECT instance FROM {schema_version}")
    kinds = first.raw("SELECT * FROM {kinds}")
    first.close()
    second = postgres_place(postgres_url, pool)
    second.open_with(CONTENTS, real_time=True)
    assert second.schema == first.schema
    assert [name for name in EMPTIED if second.raw(f"SELECT count(*) FROM {{{name}}}") != [(0,)]] == []
    assert second.raw(f"SELECT abs(extract(epoch FROM {second.schema}.clock() - now())) < 60") == [(True,)]
    assert second.raw("SELECT instance FROM {schema_version}") != [instance]
    assert second.raw("SELECT * FROM {kinds}") == kinds
    second.close()


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER jobs_update ON {jobs}",
        "ALTER TABLE {jobs} DISABLE TRIGGER jobs_update",
        "CREATE INDEX more ON {jobs} (root)",
        "ALTER TABLE {limits} ALTER COLUMN paused_by SET DEFAULT 'me'",
        "UPDATE {kinds} SET tries = 9",
        "CREATE TABLE {more} (n int)",
    ],
)
def test_changed_schema_is_not_reused(postgres_url: str, pool: SchemaPool, change: str) -> None:
    first = used(postgres_url, pool)
    first.raw(change)
    first.close()
    second = used(postgres_url, pool)
    assert second.schema != first.schema
    second.close()


def test_schema_is_not_reused_while_a_connection_is_open(postgres_url: str, pool: SchemaPool) -> None:
    """The old test could still write through it."""
    first = used(postgres_url, pool)
    with psycopg.connect(postgres_url):
        first.close()
        second = used(postgres_url, pool)
    assert second.schema != first.schema
    second.close()


def test_schema_is_reused_only_for_the_same_kinds(postgres_url: str, pool: SchemaPool) -> None:
    first = used(postgres_url, pool)
    first.close()
    second = postgres_place(postgres_url, pool)
    assert second.schema != first.schema
    assert isinstance(second.raw, PostgresRaw)
    assert second.raw("SELECT count(*) FROM {lifecycles}") == [(0,)]
    second.close()
