"""Handlers that try to end their worker, in a real process: the worker continues, other jobs are not affected, and
SIGTERM ends it with exit code 0.
"""

import pytest

from tests.crash import hostile_app
from tests.crash.lab import Lab
from tests.crash.scenario_kit import audited
from tests.crash.worker_command import start

PROGRAM = "tests.crash.hostile_app:app"
INNOCENTS = [f"innocent-{n}" for n in range(6)]


def run_beside_the_innocent(lab: Lab, *kinds: str, fails: bool) -> None:
    """Run jobs of these kinds between good jobs, in one worker that then stops cleanly."""
    app = hostile_app.build(lab.setting)
    app.migrate()
    ids = {tag: app.kinds["innocent"].enqueue(tag).id for tag in INNOCENTS[:3]}
    ids |= {kind: app.kinds[kind].enqueue(kind).id for kind in kinds}
    worker = start(lab, "worker", program=PROGRAM).ready()
    jobs = dict(zip(ids, lab.until_ended(*ids.values()), strict=True))
    late = {tag: app.kinds["innocent"].enqueue(tag).id for tag in INNOCENTS[3:]}
    jobs |= dict(zip(late, lab.until_ended(*late.values()), strict=True))
    assert worker.alive, worker.log
    assert {tag: (jobs[tag].phase, jobs[tag].attempt) for tag in INNOCENTS} == dict.fromkeys(
        INNOCENTS, ("succeeded", 1)
    ), worker.log
    expected = ("FAILED", 2) if fails else ("SUCCEEDED", 1)
    assert {kind: (jobs[kind].state, jobs[kind].attempt) for kind in kinds} == dict.fromkeys(kinds, expected)
    app.close()
    worker.terminate()
    assert worker.exit_code() == 0, worker.log
    assert "the worker has ended" in worker.log
    audited(lab)


@pytest.mark.parametrize("kind", hostile_app.SUCCEEDING)
@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_handler_that_closes_streams_or_stops_the_loop_does_not_end_the_worker(lab: Lab, kind: str) -> None:
    """It also replaces signal handlers. One store is enough, because the store plays no role here."""
    run_beside_the_innocent(lab, kind, fails=False)


@pytest.mark.parametrize("kind", hostile_app.FAILING)
@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_handler_that_raises_system_exit_fails_by_its_error_policy(lab: Lab, kind: str) -> None:
    run_beside_the_innocent(lab, kind, fails=True)


def test_all_hostile_handlers_at_once_do_not_end_the_worker(lab: Lab) -> None:
    """All failing handlers run in one worker, except the one that cancels all tasks. None of them blocks its thread."""
    run_beside_the_innocent(lab, *(kind for kind in hostile_app.FAILING if kind != "loop cancels all"), fails=True)
