"""Helpers of the tests of a partitioned audit, which exists on PostgreSQL only."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from interlock.core.ids import Ids
from interlock.core.job import AuditEntry
from interlock.store import OpenStore
from tests.contract.kit import CONTENTS, claim, finish, make
from tests.kit import Place, Raw, postgres_place
from tests.pool import SchemaPool

JANUARY, FEBRUARY, MARCH, APRIL = "audit_to_2026_01", "audit_2026_02", "audit_2026_03", "audit_2026_04"
DEFAULT = "audit_default"
DAY = 86_400.0


@pytest.fixture
def place(postgres_url: str, schema_pool: SchemaPool) -> Iterator[Place]:
    """An empty PostgreSQL database."""
    place = postgres_place(postgres_url, schema_pool)
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> OpenStore:
    """A store whose audit was partitioned in January 2026."""
    store = place.open_with(CONTENTS)
    assert store.retention.partition_audit()
    return store


@pytest.fixture
def raw(place: Place) -> Raw:
    return place.raw


def id_at(*date: int) -> str:
    """Return the id of a job that is created on this day."""
    return Ids(clock=lambda: int(datetime(*date, tzinfo=UTC).timestamp()) * 1_000_000_000).uuid7()  # type: ignore[arg-type]


def enqueue_at(store: OpenStore, *date: int) -> str:
    id = id_at(*date)
    store.queue.enqueue([replace(make(), id=id)])
    return id


def set_clock(place: Place, *date: int) -> None:
    place.clock.advance((datetime(*date, tzinfo=UTC) - place.clock.now()).total_seconds())  # type: ignore[arg-type]


def end_all(store: OpenStore) -> None:
    """Claim and finish every job that is due."""
    for lease in claim(store):
        finish(store, lease)


def gone(store: OpenStore, place: Place) -> None:
    """Finish every job, let a day pass, and delete them all."""
    end_all(store)
    place.clock.advance(DAY)
    store.retention.prune(phase="succeeded", age=0.0, limit=1000)


def archived(store: OpenStore, age: float = 0.0) -> list[AuditEntry]:
    """Archive all history of this age, and return it."""
    out: list[AuditEntry] = []
    while store.retention.archive(age=age, write=out.extend, limit=100):
        pass
    return out


def removed(store: OpenStore, age: float = 0.0) -> None:
    """Remove what was archived, as often as there is something."""
    while store.retention.remove_archived(age=age, limit=100):
        pass


def months(raw: Raw) -> list[str]:
    return [row[0] for row in raw("SELECT name FROM {audit_partitions} ORDER BY first_id")]


def partition_of(raw: Raw, id: str) -> set[str]:
    """Return the partitions that contain entries of a job."""
    found = raw(
        "SELECT DISTINCT c.relname FROM {audit} a JOIN pg_class c ON c.oid = a.tableoid WHERE a.job_id = :id", id=id
    )
    return {row[0] for row in found}
