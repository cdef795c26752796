"""`interlock worker` as a process: its first lines, its work, and its end."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock import App
from interlock.cli import worker_process
from interlock.worker.stop_signals import SAME_SIGNAL
from tests.kit import Place
from tests.surface.cli_kit import Call, enqueued
from tests.surface.worker_kit import READY, SHOP, Start, job, start, waiter

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["start", "waiter"]


# ---------------------------------------------------------------- start and end
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_runs_until_a_signal(start: Start, call: Call, waiter: str, number: int) -> None:
    """It runs jobs, exits with 0, and removes its row."""
    worker = start()
    worker.until(READY)
    id = enqueued(call, "greet", '{"name": "ann"}')
    worker.until("hello ann")
    assert [one["pid"] for one in call("workers", "--json").json] != []
    assert worker.end(number) == 0, worker.said
    assert any("the worker has ended" in line and "attempts=1" in line for line in worker.said)
    assert job(call, id)["state"] == "SUCCEEDED"
    assert call("workers", "--json").json == []


def test_first_line_describes_the_worker(start: Start, waiter: str, place: Place) -> None:
    """Name, database, kinds, queues and slots."""
    worker = start("--name", "ann", "--slots", "7", "--queues", "mail,default", "--kinds", "greet,wait")
    first = worker.until("the worker starts")
    assert worker.said == [first]
    assert all(each in first for each in (" name=ann ", "kinds=greet,wait", "queues=mail,default", "slots=7"))
    assert f"database={place.url.partition('://')[0]}" in first
    worker.until(READY)
    assert worker.end(signal.SIGTERM) == 0


def test_two_workers_may_have_the_same_name(start: Start, waiter: str) -> None:
    """Each start has its own id."""
    both = [start("--name", "ann"), start("--name", "ann")]
    names = {found[0] for each in both if (found := re.search(r"ann#\w+", each.until(READY)))}
    assert len(names) == 2
    assert [each.end(signal.SIGTERM) for each in both] == [0, 0]


def test_second_signal_ends_the_worker_at_once(start: Start, call: Call, waiter: str) -> None:
    """The exit code is 128 plus the signal's number; running jobs stay leased and are recovered later."""
    worker = start()
    id = enqueued(call, "wait")
    worker.until("waiting")
    worker.signal(signal.SIGTERM)
    assert "after 25 s it returns the rest" in worker.until("SIGTERM: the worker claims no more")
    assert worker.end(signal.SIGINT) == 128 + signal.SIGINT
    assert job(call, id)["phase"] == "running"


def test_same_signal_twice_at_once_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` signals a process and then its group: the worker still drains. A later signal ends it."""
    now, exits = [100.0], list[int]()
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(worker_process, "os", SimpleNamespace(_exit=exits.append, getpid=lambda: 1))
    process = worker_process.Process(App("sqlite:///nowhere.db").plan(), "sqlite", cast(Any, None))
    process.signalled(signal.SIGTERM)
    process.signalled(signal.SIGTERM)
    assert exits == []
    now[0] += SAME_SIGNAL
    process.signalled(signal.SIGTERM)
    assert exits == [128 + signal.SIGTERM]


def test_handler_that_cannot_be_stopped_does_not_block_the_exit(start: Start, call: Call, waiter: str) -> None:
    """Threads cannot be stopped: the process ends without them, and says so."""
    worker = start("--drain", "0.1")
    enqueued(call, "block")
    worker.until("blocking")
    assert worker.end(signal.SIGTERM) == 0
    assert any("1 handlers cannot be stopped" in line for line in worker.said)


def test_hung_worker_prints_its_stacks_and_exits_with_70(here: Path) -> None:
    """A supervisor restarts it because of the exit code."""
    program = "from interlock.cli.worker_process import exit_hung\ndef stuck():\n    exit_hung(61.0)\nstuck()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.startswith("interlock: the event loop has not responded for 61 s. The worker exits with 70")
    assert "in stuck" in done.stderr


# ---------------------------------------------------------------- kinds of other workers
def test_worker_leaves_unknown_and_excluded_kinds_alone(
    start: Start, call: Call, waiter: str, here: Path, place: Place
) -> None:
    """Kinds of another app, and kinds that `--kinds` leaves out; `status` names both."""
    (here / "other.py").write_text(
        f"from interlock import App\napp = App({place.url!r}, schema={place.schema!r})\n@app.job()\ndef fly(run): ..."
    )
    assert call("migrate", "-A", "other:app").code == 0
    worker = start("--kinds", "greet")
    worker.until(READY)
    foreign, left = enqueued(call, "-A", "other:app", "fly"), enqueued(call, "block")
    enqueued(call, "greet", '{"name": "ann"}')
    worker.until("hello ann")
    assert {job(call, id)["state"] for id in (foreign, left)} == {"PENDING"}
    answer = call("status")
    assert answer.code == 1
    assert [line for line in answer.lines if line.startswith("No live worker serves ")] == [
        f"No live worker serves {kind}, which has 1 waiting or running: start a worker for it."
        for kind in ("block", "fly")
    ]
    assert worker.end(signal.SIGTERM) == 0


# ---------------------------------------------------------------- the database
def test_worker_exits_if_the_database_is_not_migrated(start: Start, here: Path, place: Place) -> None:
    """With exit code 1 and the command that helps."""
    place.raw.script("CREATE TABLE theirs (id integer)")
    (here / "waiter.py").write_text(SHOP.format(url=place.url, schema=place.schema))
    worker = start("-A", "waiter:app")
    assert worker.end() == 1
    assert worker.said[-1].startswith("interlock: ")
    assert "interlock migrate" in worker.said[-1]
    assert not any("Traceback" in line for line in worker.said)


def test_worker_exits_if_its_lifespan_raises(start: Start, here: Path, place: Place) -> None:
    """The message says why; the traceback is shown only at `--log-level debug`."""
    (here / "unready.py").write_text(
        "from contextlib import asynccontextmanager\nfrom interlock import App, "
        "SyncRun\n\n@asynccontextmanager\nasync def life():\n"
        "    raise ValueError('the oven is cold: light it')\n    yield\n\n"
        f"app = App({place.url!r}, schema={place.schema!r}, lifespan=life)\n\n@app.job()\ndef bake(run: SyncRun) -> "
        "None: ...\n"
    )
    worker = start("-A", "unready:app")
    assert worker.end() == 1
    assert (
        "The app's lifespan raised ValueError; the worker did not start: the oven is cold: light it" in worker.said[-1]
    )
    assert not any("Traceback" in line for line in worker.said)


def test_worker_waits_for_an_unreachable_database(start: Start, here: Path, call: Call) -> None:
    """It logs the problem, and works as soon as it can connect."""
    (here / "waiter.py").write_text(SHOP.format(url=f"sqlite:///{here / 'later' / 'jobs.db'}", schema="interlock"))
    worker = start("-A", "waiter:app")
    worker.until("the worker cannot work now; it retries every")
    worker.until("target=Connecting why='the wait ended'")
    (here / "later").mkdir()
    worker.until(READY)
    assert worker.end(signal.SIGTERM) == 0


def test_worker_waits_for_an_unreachable_server_and_hides_its_password(start: Start, here: Path) -> None:
    """It can be stopped while it waits."""
    (here / "waiter.py").write_text(
        SHOP.format(url="postgresql://nobody:hunter2@127.0.0.1:1/x?password=hunter3", schema="interlock")
    )
    worker = start("-A", "waiter:app")
    assert "database=postgresql://127.0.0.1:1/x " in worker.until("the worker starts")
    for _ in range(2):
        worker.until("target=Connecting why='the wait ended'")
    assert worker.end(signal.SIGTERM) == 0
    assert not any("hunter" in line for line in worker.said)


# ---------------------------------------------------------------- logs and metrics
def test_logs_can_be_json(start: Start, waiter: str) -> None:
    """One line per event, with its fields."""
    worker = start("--log-json", "--log-level", "debug")
    worker.until(READY)
    assert worker.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in worker.said]
    assert (lines[0]["event"], lines[0]["level"], lines[0]["slots"]) == ("the worker starts", "info", 100)
    assert "debug" in {line["level"] for line in lines}


def test_worker_serves_metrics(start: Start, call: Call, waiter: str) -> None:
    """At the address in the first line, with counts from the database."""
    worker = start("--metrics-port", "0", "--kinds", "greet")
    found = re.search(r"metrics=(\S+)", worker.until("the worker starts"))
    assert found is not None
    worker.until(READY)
    enqueued(call, "block")
    with urllib.request.urlopen(found[1]) as answer:
        text = answer.read().decode()
    assert "interlock_database_up 1.0" in text
    assert 'interlock_queue_jobs{kind="block",queue="default",state="due"} 1.0' in text
    assert worker.end(signal.SIGTERM) == 0


# ---------------------------------------------------------------- wrong usage
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-A", "nowhere:app"), "There is no module nowhere here"),
        (("-A", "waiter:nothing"), "waiter has no nothing"),
        (("-A", "waiter:Run"), "is a "),
        (("--kinds", "greet,fly"), "--kinds names fly, which this app does not have. It has block, greet, wait"),
        (("--kinds", ","), "--kinds ',' is empty"),
        (("--queues", ""), "--queues '' is empty"),
        (("--log-level", "loud"), "There is no log level 'loud'"),
        (("--slots", "0"), "--slots"),
    ],
)
def test_worker_with_wrong_options_does_not_start(
    call: Call, waiter: str, arguments: tuple[str, ...], says: str
) -> None:
    """With one message and exit code 2."""
    answer = call("worker", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            "from interlock import App\napp = App('mysql://root:hunter2@localhost/x')",
            "The database URL starts with 'mysql'",
        ),
        ("from interlock import App\napp = App()", "This app has no kinds"),
    ],
)
def test_worker_with_an_unusable_app_does_not_start(call: Call, here: Path, module: str, says: str) -> None:
    """It does not wait for a database or kind that will never exist."""
    (here / "never.py").write_text(module)
    answer = call("worker", "-A", "never:app")
    assert answer.code == 1
    assert says in answer.sentence
    assert "hunter2" not in answer.err
