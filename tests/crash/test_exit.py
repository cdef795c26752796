"""A program that has not closed its app exits at once and prints nothing."""

import subprocess
import sys

import pytest

from tests.crash.lab import ROOT
from tests.kit import Place

PROGRAM = """
import atexit, os, sys
from interlock import App, SyncRun

app = App(sys.argv[1], schema=sys.argv[2])

@app.job()
def greet(run: SyncRun, name: str) -> None: ...

# Registered before the app opens anything, so that it runs after the app's own exit handlers.
atexit.register(lambda: greet.enqueue("at exit"))
app.migrate()
greet.enqueue("first")
if sys.argv[3] == "forked" and os.fork() == 0:
    # The child exits in the same way and does not touch its parent's connections.
    sys.exit(0)
if sys.argv[3] == "forked":
    os.wait()
    greet.enqueue("after the child")
"""


@pytest.mark.parametrize(("how", "stored"), [("plainly", 2), ("forked", 4)])
def test_program_that_did_not_close_its_app_exits_at_once(place: Place, how: str, stored: int) -> None:
    """A pool whose threads cannot be joined would write to stderr; on Python 3.13 it waited 5 s for each thread."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, place.url, place.schema, how]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert place.raw("SELECT count(*) FROM {jobs}") == [(stored,)]
