"""A process that is killed while it stores an answer loses nothing: the answer is stored once, or can be given again."""

import signal
import subprocess
import sys

import pytest

from tests.crash.answering import POINTS, Blog
from tests.crash.lab import ROOT
from tests.kit import Place


@pytest.mark.parametrize("point", POINTS)
def test_killed_answer_is_stored_once_or_can_be_given_again(place: Place, point: str) -> None:
    """Before the COMMIT, the next answer counts. After it, the job has its result, and the next answer is refused."""
    table = place.raw.words("{answers}")
    blog = Blog(place.url, place.schema, table)
    place.clock = blog.clock  # type: ignore[assignment] - a settable clock, too
    blog.app.migrate()
    place.freeze()
    place.raw(f"CREATE TABLE {table} (job text, value text)")
    job = blog.publish.enqueue()
    blog.app.run_until_idle()
    command = [sys.executable, "-m", "tests.crash.answering", place.url, place.schema, table, blog.tokens[0], point]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, "")
    stored = point == "after the commit"
    blog.clock.advance(5)
    assert blog.publish.answer(blog.tokens[0], False) is not stored
    assert (job.result(), place.raw(f"SELECT value FROM {table}")) == (stored, [(str(stored),)])
    assert blog.app.verify().ok
    blog.app.close()
