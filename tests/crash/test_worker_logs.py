"""The log of `interlock worker` in a real process: lines of handlers with their job, and reasons of failures."""

import re

import pytest

from tests.crash import logging_app
from tests.crash.lab import Lab
from tests.crash.worker_command import start

PROGRAM = "tests.crash.logging_app:app"


@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_worker_log_has_the_lines_of_handlers_and_the_reasons_of_failures(lab: Lab) -> None:
    """Handlers log from the event loop, from threads and from child processes, each line with its job id."""
    app = logging_app.build(lab.setting)
    app.migrate()
    ids = {name: kind.enqueue(name).id for name, kind in app.kinds.items()}
    worker = start(lab, "worker", program=PROGRAM).ready()
    lab.until_ended(*ids.values())
    app.close()
    worker.terminate()
    assert worker.exit_code() == 0, worker.log
    for name in ("loop", "thread", "child", "async_child"):
        (line,) = [line for line in worker.log.splitlines() if "hello from" in line and ids[name] in line]
        assert re.search(rf"\[info +\] hello from .*\[shop\] attempt=1 job_id={ids[name]} kind={name}$", line), line
    pids = re.findall(r"hello from pid (\d+)", worker.log)
    assert len({*pids, str(worker.pid)}) == 2
    # `around_attempt` is entered in the child, too.
    around = {
        job: pid for pid, job in re.findall(r"around from pid (\d+) .*job_id=(\S+) kind=\w+$", worker.log, re.MULTILINE)
    }
    assert {name for name in ids if around[ids[name]] != str(worker.pid)} == {"child", "async_child", "failing_child"}
    # Each attempt has one line, and the last attempt of each job has a traceback.
    assert worker.log.count("attempt ended") == 4
    assert worker.log.count("in fails") == 2
