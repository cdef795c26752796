"""Reading or writing the history of a job touches only the partition of its month."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock.store import OpenStore
from interlock.store.codec import array
from interlock.store.postgres.store import PostgresStore
from interlock.store.queryfile import to_positional
from tests.contract.kit import finish
from tests.contract.partition_kit import FEBRUARY, claim, enqueue_at, place, store
from tests.kit import Place

__all__ = ["place", "store"]


@pytest.fixture
def job_id(store: OpenStore) -> str:
    id = enqueue_at(store, 2026, 2, 2)
    (lease,) = claim(store)
    finish(store, lease)
    return id


@pytest.mark.parametrize("query", ["history", "page_history", "find.pruned", "add_note"])
def test_only_the_partition_of_the_job_is_read(store: OpenStore, place: Place, job_id: str, query: str) -> None:
    """With the generic plan, which does not know the id."""
    assert isinstance(store, PostgresStore)
    given: dict[str, Any] = {"first": job_id, "last": job_id, "limit": 1, "job_id": job_id, "event": "x", "actor": "x"}
    given["id"] = array([job_id]) if "history" in query else job_id
    text, names = to_positional(store.session.queries[query])
    with psycopg.connect(place.url, autocommit=True) as conn, conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        conn.execute(f"PREPARE asked AS {text}".encode())
        values = ", ".join(psycopg.sql.Literal(given.get(name)).as_string(conn) for name in names)
        (found,) = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked ({values})".encode()).fetchone() or ()
    read = {
        node["Relation Name"]
        for node in _nodes(found[0]["Plan"])
        if "Scan" in node["Node Type"] and node.get("Relation Name", "").startswith("audit") and node["Actual Loops"]
    }
    assert read == {FEBRUARY}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
