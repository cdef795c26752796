"""The partition of a month is dropped only after all of it was archived, and only by one function."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from interlock.core.job import AuditEntry
from interlock.operate.verify import verify
from interlock.store import OpenStore
from interlock.store.archive import digest_of
from tests.contract.kit import claimed, finish
from tests.contract.partition_kit import (
    DAY,
    DEFAULT,
    FEBRUARY,
    JANUARY,
    MARCH,
    archived,
    end_all,
    enqueue_at,
    gone,
    months,
    place,
    raw,
    removed,
    set_clock,
    store,
)
from tests.kit import Place, Raw

__all__ = ["place", "raw", "store"]


def test_archived_month_is_dropped(store: OpenStore, place: Place, raw: Raw) -> None:
    """The archive has every entry once, with the same digests, and `verify` finds nothing."""
    old = [enqueue_at(store, 2026, 1, 5), *(enqueue_at(store, 2026, 2, day) for day in (1, 10, 28))]
    end_all(store)
    histories = {id: store.inspect.history(id) for id in old}
    set_clock(place, 2026, 3, 1)
    gone(store, place)
    kept = finish(store, claimed(store)).job.id
    out = archived(store)
    assert out == [entry for id in sorted(old) for entry in histories[id]]
    assert archived(store) == []
    assert [store.inspect.history(id) for id in old] == list(histories.values()), "until the partition is dropped"
    assert verify(store).ok
    removed(store)
    assert months(raw) == [MARCH]
    assert [store.inspect.history(id) for id in old] == [[], [], [], []]
    assert len(store.inspect.history(kept)) == 3
    assert dict(raw("SELECT job_id::text, digest FROM {archived}")) == {
        id: digest_of(history) for id, history in histories.items()
    }
    assert verify(store).ok


def test_entries_in_the_default_partition_are_deleted_when_they_are_archived(
    store: OpenStore, place: Place, raw: Raw
) -> None:
    """As without partitions."""
    enqueue_at(store, 2026, 9, 9)
    gone(store, place)
    assert len(archived(store)) == 3
    assert raw(f"SELECT count(*) FROM {{{DEFAULT}}}") == [(0,)]


@pytest.mark.parametrize("why", ["stored", "forged", "unarchived", "added later", "not ended"])
def test_month_that_is_not_archived_is_not_dropped(store: OpenStore, place: Place, raw: Raw, why: str) -> None:
    """Neither by maintenance nor by the only function that drops a month. A forged mark does not help while the job is
    stored.
    """
    enqueue_at(store, 2026, 2, 1)
    end_all(store)
    last = enqueue_at(store, 2026, 2, 2)
    if why not in ("stored", "forged"):
        end_all(store)
    set_clock(place, *((2026, 2, 27) if why == "not ended" else (2026, 3, 2)))
    place.clock.advance(60)
    store.retention.prune(phase="succeeded", age=0.0, limit=100)
    if why != "unarchived":
        archived(store)
    if why == "forged":
        raw("INSERT INTO {archived} SELECT :id, 1, 'x', now()", id=last)
    if why == "added later":
        raw.copy("audit", "job_id = :id AND version = 2", {"n": "1"}, id=last)
    before = raw.dump()
    removed(store)
    assert (raw.dump(), months(raw)[-2:]) == (before, [FEBRUARY, MARCH])
    with pytest.raises(raw.refusal, match="interlock refuses to drop"):
        raw("SELECT {drop_audit_partition}(:name)", name=FEBRUARY)
    assert months(raw)[-2:] == [FEBRUARY, MARCH]


@pytest.mark.parametrize("name", [DEFAULT, "audit", "jobs", "audit_1999_01"])
def test_only_a_month_is_dropped(store: OpenStore, raw: Raw, name: str) -> None:
    """Not another table, even if it is empty."""
    with pytest.raises(raw.refusal, match="it is not the partition of a month of the audit"):
        raw("SELECT {drop_audit_partition}(:name)", name=name)


def test_young_month_is_not_dropped(store: OpenStore, place: Place, raw: Raw) -> None:
    """It must have ended before the age, even if it is empty."""
    set_clock(place, 2026, 3, 10)
    removed(store, age=10 * DAY)
    assert months(raw) == [FEBRUARY, MARCH]
    removed(store, age=8 * DAY)
    assert months(raw) == [MARCH]


def test_month_in_use_is_dropped_later(store: OpenStore, place: Place, raw: Raw) -> None:
    """A transaction that reads the audit for long, such as a backup, is not disturbed."""
    enqueue_at(store, 2026, 1, 1)
    gone(store, place)
    set_clock(place, 2026, 2, 2)
    archived(store)
    with raw.transaction() as backup:
        backup.execute(f"SELECT count(*) FROM {raw.table('audit')}")
        removed(store)
        assert months(raw) == [JANUARY, FEBRUARY, MARCH]
    removed(store)
    assert months(raw) == [FEBRUARY, MARCH]


def test_archived_history_is_deleted_by_row_if_a_stored_job_prevents_the_drop(
    store: OpenStore, place: Place, raw: Raw
) -> None:
    """A month after it could have been dropped. What is left is dropped after the job's deletion."""
    old = enqueue_at(store, 2026, 1, 5)
    gone(store, place)
    kept = enqueue_at(store, 2026, 1, 6)
    archived(store)
    set_clock(place, 2026, 3, 3)
    removed(store)
    assert len(store.inspect.history(old)) == 3
    set_clock(place, 2026, 3, 5)
    removed(store)
    assert (store.inspect.history(old), len(store.inspect.history(kept))) == ([], 1)
    assert JANUARY in months(raw)
    gone(store, place)
    archived(store)
    removed(store)
    assert JANUARY not in months(raw)


def test_other_months_are_dropped_if_one_cannot_be(store: OpenStore, place: Place, raw: Raw) -> None:
    """A user's view refers to it. Other history is removed first; then the error names the month, at every run."""
    old = [enqueue_at(store, 2026, 1, 5), enqueue_at(store, 2026, 2, 5)]
    gone(store, place)
    enqueue_at(store, 2026, 2, 6)
    archived(store)
    set_clock(place, 2026, 4, 10)
    raw(f"CREATE VIEW {{mine}} AS SELECT * FROM {{{JANUARY}}}")
    for _ in range(2):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match=JANUARY):
            removed(store)
        assert months(raw) == [JANUARY, FEBRUARY]
        assert [len(store.inspect.history(id)) for id in old] == [3, 0]
    raw("DROP VIEW {mine}")
    removed(store)
    assert months(raw) == [FEBRUARY]


# ---------------------------------------------------------------- crashes
_PROGRAM = """
import os, signal, sys
from interlock.core.clock import SystemClock
from interlock.store import open_store
from interlock.store.archive import line
url, schema, file, where = sys.argv[1:]
store = open_store(url, schema, SystemClock())
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def write(entries):
    with open(file, "a") as out:
        out.writelines(line(entry) + "\\n" for entry in entries)
store.retention.archive(age=0.0, write=write, limit=2)
if where == "archive":
    die()
store.retention.archive(age=0.0, write=write, limit=2)
if where == "drop":
    from interlock.store.postgres import pool
    pool._commit = die
store.retention.remove_archived(age=0.0, limit=2)
"""


@pytest.mark.parametrize("where", ["archive", "drop"])
def test_next_run_completes_what_a_killed_run_left(
    store: OpenStore, place: Place, raw: Raw, tmp_path: Any, where: str
) -> None:
    """Killed after it archived a part of a month, or before it committed the drop: each entry is archived once."""
    ids = [enqueue_at(store, 2026, 1, day) for day in (1, 2, 3)]
    end_all(store)
    histories = [entry for id in ids for entry in store.inspect.history(id)]
    gone(store, place)
    set_clock(place, 2026, 2, 2)
    file = tmp_path / "archive.jsonl"
    command = [sys.executable, "-c", _PROGRAM, place.url, place.schema, str(file), where]
    killed = subprocess.run(command, check=False, env=os.environ, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert months(raw) == [JANUARY, FEBRUARY, MARCH]
    assert verify(store).ok
    rest: list[AuditEntry] = archived(store)
    written = [json.loads(each) for each in file.read_text().splitlines()]
    assert [(each["job_id"], each["version"]) for each in written] + [(each.job_id, each.version) for each in rest] == [
        (each.job_id, each.version) for each in histories
    ]
    removed(store)
    assert months(raw) == [FEBRUARY, MARCH]
    assert raw("SELECT count(*) FROM {archived}") == [(3,)]
    assert verify(store).ok
