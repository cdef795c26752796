"""Flows and limits under kill -9: a worker dies at every statement, and the next one completes the flow once."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Places
from tests.crash.flow_program import PARTS, build, store_flow
from tests.surface.launcher import ENGINE, launcher

ROOT = Path(__file__).parents[2]
MOST = 90
"""More statements than a run of the flow needs."""


@pytest.fixture(scope="module")
def programs() -> Iterator[str]:
    """The path of Python programs that start quickly, because there are many of them."""
    with launcher(*ENGINE, "tests.crash.flow_program") as made:
        yield made.path


def run_worker(programs: str, url: str, schema: str, number: int) -> int:
    """Run a worker that dies at the nth statement. Returns its exit code."""
    command = [
        str(Path(programs.split(os.pathsep, maxsplit=1)[0]) / "python"),
        "-m",
        "tests.crash.flow_program",
        url,
        schema,
    ]
    given = os.environ | {"PATH": programs}
    return subprocess.run(
        [*command, str(number)], cwd=ROOT, check=False, capture_output=True, timeout=60, env=given
    ).returncode


@pytest.mark.parametrize("bad", [0, 1])
def test_final_job_runs_once_wherever_a_worker_dies(empty_places: Places, programs: str, bad: int) -> None:
    """With a failed part, each policy decides once, too."""
    died = 0
    place = empty_places()
    app = build(place.url, place.schema, lease=0.1)
    app.migrate()
    for number in range(1, MOST):
        ids = store_flow(app, bad=bad)
        killed = run_worker(programs, place.url, place.schema, number) == -9
        died += killed
        app.run_until_idle()
        while any(not app.get(id).ended for id in ids.values()):
            app.run_until_idle()
        rows = dict(place.raw("SELECT job, value FROM ran"))
        counts = dict(place.raw("SELECT job, count(*) FROM ran GROUP BY job"))
        wanted = {ids["run"]: PARTS - bad, ids["after"]: 0} | ({} if bad else {ids["cancel"]: PARTS})
        assert {id: rows[id] for id in ids.values() if id in rows} == wanted
        assert {counts[id] for id in wanted} == {1}
        assert app.get(ids["cancel"]).state == ("CANCELLED" if bad else "SUCCEEDED")
        if not killed:
            break
    # The last worker lived, so every statement of the others was a death.
    assert died > 10
    assert not killed
    assert app.verify().violations == []
    app.close()
