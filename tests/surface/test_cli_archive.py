"""The commands that verify the database and archive the audit trail."""

import hashlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from interlock.cli.audit_commands import ArchiveFile
from interlock.core.job import AuditEntry
from tests.kit import EPOCH, Place
from tests.surface.cli_kit import Call, enqueued


# ---------------------------------------------------------------- verify
def test_verify_names_each_violation(call: Call, shop: str, place: Place) -> None:
    """A job that was moved without the triggers is found, and the exit code is 1."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    place.raw.disable("jobs_update")
    place.raw("UPDATE {jobs} SET state = 'RUNNING', phase = 'running'")
    answer = call("verify")
    assert answer.code == 1
    assert any(
        line.startswith(f"projection: job {id}: The job is in RUNNING, but its executions lead to PENDING")
        for line in answer.lines
    )
    assert "violations." in answer.lines[-1]
    told = call("verify", "--json")
    assert told.code == 1
    assert {each["job_id"] for each in told.json["violations"]} == {id}


# ---------------------------------------------------------------- audit archive
@pytest.fixture
def gone(call: Call, shop: str, place: Place) -> list[str]:
    """Three jobs that retention has deleted."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)})) for n in range(3)]
    for id in ids:
        call("cancel", id, "--reason", "é\n")
    assert place.open(real_time=True).retention.prune(phase="failed", age=0, limit=10) == 3
    return ids


def test_archive_moves_history_into_a_file(call: Call, gone: list[str], here: Path, place: Place) -> None:
    """Every entry is a line; the digest is that of the file; the rows are deleted, and `verify` finds no violation."""
    assert call("audit", "archive", "--before", "90", "--to", "a.jsonl").code == 2, "90 has no unit"
    answer = call("audit", "archive", "--before", "0s", "--to", "a.jsonl")
    content = (here / "a.jsonl").read_bytes()
    assert answer.lines == ["3 jobs, 6 entries", f"{hashlib.sha256(content).hexdigest()}  a.jsonl"]
    entries = [json.loads(line) for line in content.decode().splitlines()]
    assert [(entry["job_id"], entry["event"]) for entry in entries] == [
        (id, event) for id in gone for event in ("enqueue", "cancel")
    ]
    assert place.raw("SELECT count(*) FROM {audit}") == [(0,)]
    assert place.raw("SELECT count(*) FROM {archived}") == [(3,)]
    assert call("verify").code == 0


def test_archive_never_overwrites_a_file(call: Call, gone: list[str], here: Path, place: Place) -> None:
    """It creates no file if there is nothing to archive."""
    (here / "a.jsonl").write_text("precious")
    answer = call("audit", "archive", "--before", "0s", "--to", "a.jsonl")
    assert answer.code == 2
    assert "never overwritten" in answer.sentence
    assert (here / "a.jsonl").read_text() == "precious"
    assert place.raw("SELECT count(*) FROM {audit}") == [(6,)]
    assert "Nothing to archive" in call("audit", "archive", "--before", "90d", "--to", "b.jsonl").out
    assert not (here / "b.jsonl").exists()


def test_archive_that_cannot_be_written_deletes_nothing(call: Call, gone: list[str], place: Place) -> None:
    """The rows are deleted only after the file has them."""
    answer = call("audit", "archive", "--before", "0s", "--to", "no/such/folder.jsonl")
    assert answer.code == 1
    assert "still in the database" in answer.sentence
    assert place.raw("SELECT count(*) FROM {audit}") == [(6,)]


def test_batch_is_synced_to_disk_before_its_rows_are_deleted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write` returns after fsync; a batch whose transaction is retried replaces itself."""
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_size), real(number)))
    file, entry = (
        ArchiveFile(here / "a.jsonl"),
        AuditEntry("j", 0, 0, None, "enqueue", None, "PENDING", "app", None, EPOCH),
    )
    file.write([entry])
    size = (here / "a.jsonl").stat().st_size
    assert synced[-1] == size > 0
    file.write([entry])
    file.settle()
    file.write([replace(entry, version=1), replace(entry, version=2)])
    file.settle()
    digest = file.close()
    lines = (here / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [0, 1, 2]
    assert (file.entries, digest) == (3, hashlib.sha256((here / "a.jsonl").read_bytes()).hexdigest())


def test_archive_needs_an_age_if_the_app_sets_no_audit_retention(call: Call, gone: list[str], place: Place) -> None:
    """Nothing is archived without one."""
    answer = call("audit", "archive", "--to", "a.jsonl")
    assert answer.code == 2
    assert "--before" in answer.sentence
    assert place.raw("SELECT count(*) FROM {audit}") == [(6,)]


# ---------------------------------------------------------------- audit partition
def test_partition_says_what_it_did(call: Call, shop: str, place: Place) -> None:
    """On SQLite, it says what happens instead. On PostgreSQL, a second call changes nothing."""
    if place.url.startswith("sqlite"):
        answer = call("audit", "partition")
        assert answer.code == 1
        assert answer.sentence.startswith("SQLite has no partitions")
        return
    place.raw("CREATE VIEW {mine} AS SELECT count(*) FROM {audit}")
    answer = call("audit", "partition")
    assert (answer.code, "mine" in answer.sentence) == (1, True)
    place.raw("DROP VIEW {mine}")
    assert call("audit", "partition").out.startswith("The history is partitioned by month.")
    assert call("audit", "partition").out.startswith("Nothing to change")


def test_archive_drops_the_months_that_are_archived(call: Call, gone: list[str], place: Place) -> None:
    """Also those that an earlier call archived. On SQLite, that call has deleted the rows."""
    store = place.open(real_time=True)
    partitioned = not place.url.startswith("sqlite") and store.retention.partition_audit()
    assert call("audit", "archive", "--before", "0s", "--to", "a.jsonl").lines[0] == "3 jobs, 6 entries"
    assert place.raw("SELECT count(*) FROM {audit}") == [(6 if partitioned else 0,)]
    place.clock.advance((datetime.now(UTC) - place.clock.now()).total_seconds() + 40 * 86_400)
    place.freeze()
    assert "Nothing to archive" in call("audit", "archive", "--before", "0s", "--to", "b.jsonl").out
    assert place.raw("SELECT count(*) FROM {audit}") == [(0,)]
    assert call("verify").code == 0
