"""The disk space that a finished job takes on PostgreSQL, with its executions and full history."""

import psycopg

from interlock.core.outcome import Returned
from tests.contract.kit import FACTS, LIFECYCLES, claim, decided, many
from tests.kit import postgres_place

JOBS = 5_000
MOST = 900
"""Bytes per job, with all indexes, after VACUUM FULL."""


def test_finished_job_with_its_history_takes_at_most_900_bytes(postgres_url: str) -> None:
    """A plain job that succeeds in its first attempt: its row, an execution and three audit entries."""
    place = postgres_place(postgres_url)
    store = place.open()
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    for _ in range(JOBS // 1000):
        store.queue.enqueue(many(1000))
        leases = claim(store, by="host-123#0a1b2c3d", limit=1000)
        assert store.transitions.move([decided(lease, Returned("12345", boundary=False)) for lease in leases]) == []
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        for table in ("jobs", "executions", "audit"):
            conn.execute(f"VACUUM FULL {place.raw.table(table)}".encode())
        # The first page of an index in which no job is costs nothing per job.
        sizes = conn.execute(
            "SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relnamespace = %s::regnamespace "
            "AND relkind IN ('r', 'i') AND pg_relation_size(oid) > 5 * 8192",
            [place.schema],
        ).fetchall()
    place.close()
    assert sum(size for _, size in sizes) / JOBS <= MOST, sizes
