"""SIGKILL during an operation on many jobs: its batches are stored, and the same operation continues."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from interlock import App
from interlock.operate import bulk, bulk_actions
from tests.crash.bulk_program import BATCH, build, change
from tests.crash.lab import ROOT
from tests.kit import Place

JOBS = 5 * BATCH + 3


@pytest.fixture
def app(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[App[Any]]:
    """An app with jobs that wait, and operations in batches of ten."""
    monkeypatch.setattr(bulk, "BATCH", BATCH)
    monkeypatch.setattr(bulk_actions, "PAYLOADS", BATCH)
    made = build(place.url, place.schema)
    made.migrate()
    made.enqueue_many([made.kinds["mail"].request(number) for number in range(JOBS)])
    yield made
    made.close()


def killed(place: Place, verb: str, point: str) -> None:
    """Run the program until it kills itself."""
    command = [sys.executable, "-m", "tests.crash.bulk_program", place.url, place.schema, verb, point]
    ended = subprocess.run(command, cwd=ROOT, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("verb", ["cancel", "redrive", "delete"])
def test_operation_that_is_killed_after_a_batch_continues(app: App[Any], place: Place, verb: str) -> None:
    """Each job is changed once: the first run keeps its batches, and the second changes the others."""
    if verb != "cancel":
        app.bulk.cancel(kind="mail", by="ann")
    killed(place, verb, "after a batch")
    assert counted(place, verb) == 3 * BATCH
    result = change(app, verb)
    assert (result.changed, result.failed) == (JOBS - 3 * BATCH, 0)
    assert counted(place, verb) == JOBS
    assert place.raw("SELECT count(*) FROM {audit} GROUP BY job_id, event HAVING count(*) > 1") == []
    assert change(app, verb).changed == 0
    assert app.verify().ok


def test_redrive_that_is_killed_in_its_transaction_doubles_no_job(app: App[Any], place: Place) -> None:
    """A new job is stored exactly if the note about it is."""
    app.bulk.cancel(kind="mail", by="ann")
    killed(place, "redrive", "in the transaction")
    assert counted(place, "redrive") == 2 * BATCH
    assert place.raw("SELECT count(*) FROM {jobs} WHERE redrive_of IS NOT NULL") == [(2 * BATCH,)]
    assert change(app, "redrive").changed == JOBS - 2 * BATCH
    assert place.raw("SELECT count(*), count(DISTINCT redrive_of) FROM {jobs} WHERE redrive_of IS NOT NULL") == [
        (JOBS, JOBS)
    ]


def counted(place: Place, verb: str) -> int:
    """Return how many jobs have an entry of this operation in their history."""
    return int(place.raw("SELECT count(DISTINCT job_id) FROM {audit} WHERE event = :verb", verb=verb)[0][0])
