"""The measured process of `against`: it runs the store of the revision on its path, whenever it is told to.

`python against_program.py URL SCHEMA` reads lines "BATCH JOBS" and answers each with JSON: the CPU microseconds that
one claimed and finished job, and one enqueued job, cost in the database and in Python.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench
from interlock.core.clock import SystemClock
from interlock.store import open_store


def database_cpu(url: str, schema: str) -> float:
    """CPU seconds of the server processes that serve this process. SQLite has none."""
    if not url.startswith("postgres"):
        return 0.0
    import psycopg

    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()", (schema,)
        ).fetchall()
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in rows) / 1e9


def main(url: str, schema: str) -> None:
    named = f"{url}{'&' if '?' in url else '?'}application_name={schema}" if url.startswith("postgres") else url
    bench = Bench(schema, open_store(named, schema, SystemClock()), lambda: 0.0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        batch, jobs = map(int, line.split())
        before, python = database_cpu(url, schema), time.process_time()
        if batch == 1:
            bench.enqueue_singly(jobs)
        else:
            bench.enqueue_in_bulk(jobs)
        middle, half = database_cpu(url, schema), time.process_time()
        assert bench.drain(batch) == jobs
        after, end = database_cpu(url, schema), time.process_time()
        result = {
            "enqueue": (middle - before + half - python) / jobs * 1e6,
            "enqueue_database": (middle - before) / jobs * 1e6,
            "claim_and_finish": (after - middle + end - half) / jobs * 1e6,
            "claim_and_finish_database": (after - middle) / jobs * 1e6,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
