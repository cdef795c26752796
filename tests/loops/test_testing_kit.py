"""The testing kit: fixtures that a user's own tests take, and what they promise."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from interlock import App, Run, SyncRun, UsageError
from interlock.testing import Crashed, Failpoint, KitClock, fresh
from tests.loops.handler_bench import Bench

SHOP = """
from interlock import App, Run

app = App("sqlite:///never_made.db")
done = []

@app.job(lease=30)
async def greet(run: Run, name: str) -> str:
    done.append(run.attempt)
    return f"hello {name}"

@greet.finish
async def tell(run: Run, value: str) -> None:
    done.append(value)
"""

TESTS = """
import os, pathlib, pytest
import shop
from interlock.testing import Crashed, Failpoint

@pytest.fixture(autouse=True)
def nothing_done():
    shop.done.clear()

def test_each_begins_with_an_empty_database(interlock_app, interlock_worker):
    assert interlock_app is shop.app and interlock_app.jobs() == []
    id = shop.greet.enqueue("ann").id
    assert interlock_worker.run_until_idle() == 1
    assert shop.greet.result(id) == "hello ann"

def test_and_so_does_the_next(interlock_app):
    assert interlock_app.jobs() == []

def test_time_stands_still(interlock_app, interlock_worker, interlock_clock):
    id = shop.greet.using(delay=3600).enqueue("ann").id
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(3599)
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(1)
    assert interlock_worker.run_until_idle() == 1
    assert interlock_app.get(id).finished_at == interlock_clock.now()

def test_a_crash(interlock_app, interlock_worker, interlock_clock, crash_at):
    id = shop.greet.enqueue("ann").id
    crash_at(Failpoint.AFTER_COMMIT)
    with pytest.raises(Crashed):
        interlock_worker.run_until_idle()
    assert shop.done == [1]
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(31)
    assert interlock_worker.run_until_idle() == 1
    assert shop.done == [1, "hello ann"] and interlock_app.get(id).phase == "succeeded"

def test_a_lost_lease(interlock_app, interlock_worker, lose_lease):
    id = shop.greet.enqueue("ann").id
    lose_lease()
    interlock_worker.run_until_idle()
    job = interlock_app.get(id)
    assert (job.phase, job.attempt, job.lease_losses) == ("succeeded", 2, 1)
"""


@pytest.fixture
def project(tmp_path: Path) -> "Project":
    return Project(tmp_path)


class Project:
    """A user's project, whose tests pytest runs in a process of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("shop.py", SHOP)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def pytest(self, **environment: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "PYTEST_"))}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
        done = subprocess.run(
            command, cwd=self.path, env=clean | environment, text=True, capture_output=True, timeout=120, check=False
        )
        return done.stdout + done.stderr


# ---------------------------------------------------------------- the fixtures
def test_the_fixtures_work_on_a_new_file_for_each_test(project: Project) -> None:
    """Named in pytest's configuration; the app's own database is never opened."""
    project.write("pytest.ini", "[pytest]\ninterlock_app = shop:app\n")
    project.write("test_shop.py", TESTS)
    assert "5 passed" in project.pytest()
    assert not (project.path / "never_made.db").exists()


@pytest.fixture
def server(postgres_url: str) -> Iterator[str]:
    """A database of its own on the tests' server."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE testing_kit")
        yield (
            re.sub(r"(?<=/)[^/?]*(?=\?|$)", "testing_kit", postgres_url, count=1)
            if "?" in postgres_url
            else postgres_url.rpartition("/")[0] + "/testing_kit"
        )
        connection.execute("DROP DATABASE testing_kit WITH (FORCE)")


def test_the_fixtures_work_on_a_server_and_leave_nothing_there(project: Project, server: str) -> None:
    """The same tests, with the server's own clock set."""
    project.write("pytest.ini", "[pytest]\ninterlock_app = shop:app\n")
    project.write("test_shop.py", TESTS)
    assert "5 passed" in project.pytest(INTERLOCK_TEST_DATABASE_URL=server)
    with psycopg.connect(server) as connection:
        assert connection.execute("SELECT to_regnamespace('interlock')").fetchone() == (None,)


def test_a_schema_that_no_test_made_is_never_deleted(server: str, tmp_path: Path) -> None:
    """Whoever names the wrong database keeps their jobs."""
    app = App(server)
    app.migrate()
    with (
        pytest.raises(UsageError, match="was not made by a test, and each test would delete it"),
        fresh(app, KitClock(), tmp_path, server),
    ):
        pass
    assert app.jobs() == []
    app.close()


def test_the_app_may_come_from_a_fixture(project: Project) -> None:
    """Where a name does not do."""
    project.write(
        "conftest.py",
        """
import pytest, shop
@pytest.fixture
def interlock_app_target():
    return shop.app
""",
    )
    project.write("test_shop.py", TESTS)
    assert "5 passed" in project.pytest()


@pytest.mark.parametrize(
    ("configured", "says"),
    [
        ("", "interlock.testing does not know your app: write interlock_app = module:app in pytest's configuration"),
        ("interlock_app = shop:done\n", "is a list, not an interlock.App"),
        ("interlock_app = shop:nothing\n", "shop has no nothing"),
    ],
)
def test_an_app_that_cannot_be_found_is_one_sentence(project: Project, configured: str, says: str) -> None:
    """Which says what to write."""
    project.write("pytest.ini", f"[pytest]\n{configured}")
    project.write("test_shop.py", "def test_it(interlock_app): ...")
    assert says in project.pytest()


def test_what_was_planned_and_never_came_fails_the_test(project: Project) -> None:
    """A test that meant to crash, and did not, proves nothing."""
    project.write("pytest.ini", "[pytest]\ninterlock_app = shop:app\n")
    project.write(
        "test_shop.py",
        """
from interlock.testing import Failpoint
def test_it(interlock_worker, crash_at):
    crash_at(Failpoint.IN_COMMIT)
    interlock_worker.run_until_idle()
""",
    )
    assert "crash_at(Failpoint.IN_COMMIT) never happened" in project.pytest()


def test_nothing_but_the_plugin_needs_pytest() -> None:
    """It is no dependency of the engine, nor of the kit."""
    code = "import sys, interlock, interlock.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_app_is_as_it_was_when_the_test_is_over(tmp_path: Path) -> None:
    """Its database and its clock."""
    app: App[Any] = App("sqlite:///never_made.db")
    before = app.database.clock
    with fresh(app, KitClock(), tmp_path):
        assert app.database.url != "sqlite:///never_made.db"
    assert (app.database.url, app.database.clock) == ("sqlite:///never_made.db", before)


# ---------------------------------------------------------------- the worker
def test_an_async_test_awaits_the_worker(bench: Bench) -> None:
    """In its own event loop, which goes on after a crash."""

    @bench.app.job()
    async def work(run: Run) -> None: ...

    async def test() -> int:
        bench.add(work)
        bench.worker.crash_at(Failpoint.AFTER_CLAIM)
        mine = asyncio.ensure_future(asyncio.Event().wait())
        with pytest.raises(Crashed):
            await bench.worker.arun_until_idle()
        bench.clock.advance(31)
        done = await bench.worker.arun_until_idle()
        assert not mine.done()
        mine.cancel()
        return done

    assert asyncio.run(test()) == 1


def test_a_kind_with_a_process_of_its_own_runs_in_the_tests(bench: Bench) -> None:
    """So that what a test replaces is replaced for it."""

    @bench.app.job(process=True)
    def heavy(run: SyncRun) -> int:
        return os.getpid()

    assert bench.run_one(heavy).result == os.getpid()


def test_worker_that_never_becomes_idle_is_reported(bench: Bench) -> None:
    """What ran is given back."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await asyncio.Event().wait()

    id = bench.add(work)
    with pytest.raises(TimeoutError, match="does a job enqueue itself, or does a handler never end"):
        bench.worker.run_until_idle(timeout=0.1)
    job = bench.app.get(id)
    assert (job.phase, job.tries_left) == ("pending", 3)
