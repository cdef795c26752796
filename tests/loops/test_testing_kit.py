"""The testing kit: pytest fixtures for a user's own tests."""

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

def test_database_is_empty_at_first(interlock_app, interlock_worker):
    assert interlock_app is shop.app and interlock_app.jobs() == []
    id = shop.greet.enqueue("ann").id
    assert interlock_worker.run_until_idle() == 1
    assert shop.greet.result(id) == "hello ann"

def test_database_is_empty_in_the_next_test(interlock_app):
    assert interlock_app.jobs() == []

def test_clock_is_frozen(interlock_app, interlock_worker, interlock_clock):
    id = shop.greet.using(delay=3600).enqueue("ann").id
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(3599)
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(1)
    assert interlock_worker.run_until_idle() == 1
    assert interlock_app.get(id).finished_at == interlock_clock.now()

def test_crash(interlock_app, interlock_worker, interlock_clock, crash_at):
    id = shop.greet.enqueue("ann").id
    crash_at(Failpoint.AFTER_COMMIT)
    with pytest.raises(Crashed):
        interlock_worker.run_until_idle()
    assert shop.done == [1]
    assert interlock_worker.run_until_idle() == 0
    interlock_clock.advance(31)
    assert interlock_worker.run_until_idle() == 1
    assert shop.done == [1, "hello ann"] and interlock_app.get(id).phase == "succeeded"

def test_lost_lease(interlock_app, interlock_worker, lose_lease):
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
    """A user's project; pytest runs its tests in a separate process."""

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
def test_fixtures_use_a_new_file_for_each_test(project: Project) -> None:
    """The app is named in pytest's configuration. Its own database is never opened."""
    project.write("pytest.ini", "[pytest]\ninterlock_app = shop:app\n")
    project.write("test_shop.py", TESTS)
    assert "5 passed" in project.pytest()
    assert not (project.path / "never_made.db").exists()


@pytest.fixture
def server(postgres_url: str) -> Iterator[str]:
    """A separate database on the test server."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE testing_kit")
        yield (
            re.sub(r"(?<=/)[^/?]*(?=\?|$)", "testing_kit", postgres_url, count=1)
            if "?" in postgres_url
            else postgres_url.rpartition("/")[0] + "/testing_kit"
        )
        connection.execute("DROP DATABASE testing_kit WITH (FORCE)")


def test_fixtures_work_on_a_server_and_leave_nothing_there(project: Project, server: str) -> None:
    """The same tests run with the clock of the server."""
    project.write("pytest.ini", "[pytest]\ninterlock_app = shop:app\n")
    project.write("test_shop.py", TESTS)
    assert "5 passed" in project.pytest(INTERLOCK_TEST_DATABASE_URL=server)
    with psycopg.connect(server) as connection:
        assert connection.execute("SELECT to_regnamespace('interlock')").fetchone() == (None,)


def test_schema_that_no_test_created_is_never_deleted(server: str, tmp_path: Path) -> None:
    """A user who names the wrong database keeps their jobs."""
    app = App(server)
    app.migrate()
    with (
        pytest.raises(UsageError, match="was not made by a test, and each test would delete it"),
        fresh(app, KitClock(), tmp_path, server),
    ):
        pass
    assert app.jobs() == []
    app.close()


def test_app_may_come_from_a_fixture(project: Project) -> None:
    """This is for apps that cannot be imported by name."""
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
def test_missing_app_is_reported_with_what_to_write(project: Project, configured: str, says: str) -> None:
    """The error names the problem in one sentence."""
    project.write("pytest.ini", f"[pytest]\n{configured}")
    project.write("test_shop.py", "def test_it(interlock_app): ...")
    assert says in project.pytest()


def test_planned_crash_that_never_happened_fails_the_test(project: Project) -> None:
    """Without its crash, such a test proves nothing."""
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


def test_only_the_plugin_needs_pytest() -> None:
    """Neither the engine nor the kit imports pytest."""
    code = "import sys, interlock, interlock.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_app_is_restored_after_the_test(tmp_path: Path) -> None:
    """It has its own database and clock again."""
    app: App[Any] = App("sqlite:///never_made.db")
    before = app.database.clock
    with fresh(app, KitClock(), tmp_path):
        assert app.database.url != "sqlite:///never_made.db"
    assert (app.database.url, app.database.clock) == ("sqlite:///never_made.db", before)


# ---------------------------------------------------------------- the worker
def test_async_test_can_await_the_worker(bench: Bench) -> None:
    """The worker runs in the test's event loop, which continues after a crash."""

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


def test_kind_with_its_own_process_runs_in_the_test_process(bench: Bench) -> None:
    """Functions that a test replaces are therefore replaced in its handler too."""

    @bench.app.job(process=True)
    def heavy(run: SyncRun) -> int:
        return os.getpid()

    assert bench.run_one(heavy).result == os.getpid()


def test_worker_that_never_becomes_idle_is_reported(bench: Bench) -> None:
    """The running job is returned with all its tries."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await asyncio.Event().wait()

    id = bench.add(work)
    with pytest.raises(TimeoutError, match="does a job enqueue itself, or does a handler never end"):
        bench.worker.run_until_idle(timeout=0.1)
    job = bench.app.get(id)
    assert (job.phase, job.tries_left) == ("pending", 3)
