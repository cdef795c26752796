"""Counting waiting and running jobs by the indexes of claims and leases: together they have every such job."""

import re
from itertools import product

from interlock.core.job_filter import JobFilter
from interlock.store.contract import Store
from interlock.store.selection import Selection
from tests.kit import EPOCH, Raw, SqliteRaw

_JOB = """
INSERT INTO {jobs} (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, attempt, tries, tries_left,
  lease_losses, due_at, expires_at, held_at, blocked_at, concurrency_key, created_at, updated_at, payload)
SELECT %(id)s, 'mail', 'default', 0, 'standard', 1, '%(state)s', '%(phase)s', %(attempt)s, 3, 3,
  %(losses)s, %(now)s, %(expires)s, %(held)s, %(blocked)s, %(key)s, %(now)s, %(now)s, '[]' FROM %(numbers)s"""
_EXECUTION = """
INSERT INTO {executions} (job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at,
  state, external_id, started_at, committed_at)
SELECT %(id)s, 1, 1, '%(status)s', 'mail', 'ann', %(now)s, %(now)s, %(now)s, 'RUNNING', %(external)s, %(started)s,
  %(committed)s FROM %(numbers)s"""


def test_every_waiting_and_running_job_is_counted_once(store: Store, raw: Raw) -> None:
    """Whatever it waits for, and whoever runs it."""
    now = raw.time(EPOCH)
    given = {"numbers": raw.numbers(1), "now": now}
    waiting = list(product((0, 1), ("NULL", now), ("NULL", now), ("NULL", now), ("NULL", "'a'")))
    running = list(product(("LEASED", "IN_PROGRESS", "COMMITTED"), ("NULL", "'render-7'")))
    with raw.unchecked():
        for number, (losses, expires, held, blocked, key) in enumerate(waiting, start=1):
            job = {"losses": losses, "expires": expires, "held": held, "state": "PENDING", "phase": "pending"}
            job |= {"blocked": blocked, "key": key}
            raw.run(raw.words(_JOB) % {**given, **job, "attempt": 0, "id": raw.numbered(number)}, {})
        for number, (status, external) in enumerate(running, start=100):
            job = {"losses": 0, "expires": "NULL", "held": "NULL", "state": "RUNNING", "phase": "running"}
            job |= {"blocked": "NULL", "key": "NULL"}
            raw.run(raw.words(_JOB) % {**given, **job, "attempt": 1, "id": raw.numbered(number)}, {})
            execution = {
                "id": raw.numbered(number),
                "status": status,
                "external": external,
                "started": "NULL" if status == "LEASED" else now,
                "committed": now if status == "COMMITTED" else "NULL",
            }
            raw.run(raw.words(_EXECUTION) % {**given, **execution}, {})
    counted = store.bulk.count(Selection(JobFilter(kind="mail"), ("pending", "running")))
    assert {count.state: count.jobs for count in counted.counts} == {"PENDING": len(waiting), "RUNNING": len(running)}


def test_indexes_of_waiting_jobs_differ_only_in_known_columns(store: Store, raw: Raw) -> None:
    """If an index of claims leaves out jobs because of another column, the query `count_live` must find those jobs in
    another way, and the test above must have them. A job has a cancel request only if it runs or is blocked.
    """
    pending = "LIKE '%phase%=%''pending''%'"
    if isinstance(raw, SqliteRaw):
        rows = raw(f"SELECT sql FROM sqlite_master WHERE type = 'index' AND sql {pending}")
    else:
        rows = raw(f"SELECT indexdef FROM pg_indexes WHERE indexdef {pending}")
    assert len(rows) >= 4
    named = {word for (sql,) in rows for word in re.findall(r"\w+", sql.partition("WHERE")[2])}
    used = named & set(raw.columns("jobs"))
    known = {"phase", "expires_at", "held_at", "cancel_requested_at", "lease_losses", "unique_key"}
    assert used <= known | {"blocked_at", "concurrency_key"}
