"""The faults for comparing job systems, on the side of the database.

S3: the database is unreachable for a while. S4: many callers enqueue the same job.
"""

import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import Labs
from tests.crash.lab import ROOT, Lab
from tests.crash.postgres_server import server
from tests.crash.scenario_kit import audited, equipped, until_begun
from tests.crash.worker_command import start
from tests.kit import postgres_place, sqlite_place

_log = logging.getLogger(__name__)
CALLERS = 32


@pytest.fixture
def shop(labs: Labs) -> Lab:
    """A laboratory with leases of one second."""
    return equipped(labs())


# ---------------------------------------------------------------- an unreachable database
Away = Callable[[float], None]


@pytest.fixture(params=["sqlite", "postgres"])
def outage(request: pytest.FixtureRequest, quick_path: Path, tmp_path: Path) -> Iterator[tuple[Lab, Away]]:
    """A laboratory whose database can be made unreachable: a stopped server, or a file that another process locks."""
    if request.param == "sqlite":
        place = sqlite_place(quick_path)
        lab = equipped(Lab(place, tmp_path, lease=2.0))

        def away(seconds: float) -> None:
            file = sqlite3.connect(place.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
            file.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            file.execute("ROLLBACK")
            file.close()

        yield lab, away
        lab.close()
        place.close()
        return
    with server() as own:
        place = postgres_place(own.url)
        lab = equipped(Lab(place, tmp_path, lease=2.0))

        def stopped(seconds: float) -> None:
            own.stop()
            time.sleep(seconds)
            own.start()
            place.raw.close()
            place._raw = None

        yield lab, stopped
        lab.close()
        place.close()


def test_s3_database_outage_loses_and_duplicates_nothing(outage: tuple[Lab, Away]) -> None:
    """The database is unreachable for two leases while jobs run, end and wait. The worker survives, no job is lost,
    duplicated or failed, and jobs that ended during the outage do not run again.
    """
    lab, away = outage
    tags = {f"{seconds:g}-{n}": seconds for seconds in (0.1, 0.5, 6.0) for n in range(20)}
    for tag, seconds in tags.items():
        lab.enqueue("slow", tag, seconds=seconds)
    worker = start(lab, "worker", slots=40)
    until_begun(lab, "0.5-0", "6-0")
    away(2 * lab.setting.lease)
    back = time.monotonic()
    jobs = lab.until_ended(within=60)
    _log.info(
        "S3: all done %.1f s after it came back; attempts %s",
        time.monotonic() - back,
        sorted(job.attempt for job in jobs)[-3:],
    )
    assert worker.alive
    assert {job.phase for job in jobs} == {"succeeded"}
    assert lab.effects() == dict.fromkeys(tags, 1)
    assert max(job.attempt for job in jobs) <= 2
    assert {tag: lab.happened("prepare")[tag] for tag, seconds in tags.items() if seconds < 1} == {
        tag: 1 for tag, seconds in tags.items() if seconds < 1
    }
    audited(lab)


# ---------------------------------------------------------------- one idempotency key
CALLER = """
import json, sys, threading
from tests.crash.crash_app import app

def call(found, barrier):
    barrier.wait()
    try:
        made = app.kinds["plain"].using(idempotency_key="one").enqueue(tag="one")
        found.append([made.id, made.created])
    except BaseException as error:
        found.append([repr(error), None])

app.jobs()
print("ready", flush=True)
for line in sys.stdin:
    found, barrier = [], threading.Barrier(8)
    threads = [threading.Thread(target=call, args=(found, barrier)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps(found), flush=True)
"""


@pytest.fixture
def callers(shop: Lab) -> Iterator[Callable[[], list[tuple[str, bool]]]]:
    """32 callers in four processes that enqueue one job at once; the fixture returns what each of them got."""
    environment = os.environ | shop.setting.environment()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CALLER],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    pipes = [(process.stdin, process.stdout) for process in processes if process.stdin and process.stdout]
    assert [out.readline() for _, out in pipes] == ["ready\n"] * 4

    def ask() -> list[tuple[str, bool]]:
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        return [(id, created) for _, out in pipes for id, created in json.loads(out.readline())]

    yield ask
    for process in processes:
        process.communicate(timeout=20)


def test_s4_callers_with_one_key_get_one_job(shop: Lab, callers: Callable[[], list[tuple[str, bool]]]) -> None:
    """All callers get the same id and no error, also after the job has ended."""
    answers = callers()
    (id,) = {id for id, _ in answers}
    assert [created for _, created in answers].count(True) == 1
    start(shop, "worker")
    assert shop.until_ended(id)[0].phase == "succeeded"
    assert callers() == [(id, False)] * CALLERS
    assert [job.id for job in shop.app.jobs()] == [id]
    assert shop.effects() == {"one": 1}
    audited(shop)
