"""Forks: every job that a process has stored is visible to all other processes, whichever process forked and when."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from interlock import App
from tests.crash.forking_programs import CHILDREN, LIFE
from tests.crash.lab import ROOT
from tests.kit import Place, postgres_place, sqlite_place


class Told(NamedTuple):
    """The output of the processes of a scene."""

    stored: list[str]
    refused: list[str]
    allowed: list[str]
    ended: list[str]
    errors: str


Play = Callable[[str], Told]


@pytest.fixture(params=["sqlite", "sqlite+pysqlite3", "postgres"])
def database(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Place]:
    """An empty database: a file with a rollback journal, a file with a write-ahead log, a server."""
    kind: str = request.param
    if kind == "postgres":
        place = postgres_place(request.getfixturevalue("postgres_url"))
    else:
        place = sqlite_place(quick_path)
        place.url = place.url.replace("sqlite:", f"{kind}:")
    app = App(place.url, schema=place.schema)
    app.migrate()
    # A connection that stays open here would keep the write-ahead log from being removed.
    app.close()
    yield place
    place.close()


@pytest.fixture
def play(database: Place) -> Play:
    """Run a scene.

    Check that this process sees exactly the stored jobs and that `verify` finds no violation.
    """

    def run(scene: str) -> Told:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.crash.forking_programs", database.url, database.schema, scene],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIFE + 30,
            check=False,
        )
        lines = [line.split(" ", 1) for line in ended.stdout.splitlines()]
        told = Told(*([text for word, text in lines if word == name] for name in Told._fields[:-1]), ended.stderr)
        app = App(database.url, schema=database.schema)
        try:
            assert {job.id for job in app.jobs(limit=100_000) if job.kind == "greet"} == set(told.stored), told.errors
            assert app.verify().violations == []
        finally:
            app.close()
        return told

    return run


def all_well(told: Told) -> bool:
    return not told.errors and not told.refused and set(told.ended) <= {"0"}


@pytest.mark.parametrize("scene", ["daemon", "daemon_of_an_open_parent"])
def test_daemon_stores_jobs_that_others_see(play: Play, scene: str) -> None:
    """The parent used the app and exited."""
    told = play(scene)
    assert all_well(told), told
    assert len(told.stored) == 201


def test_preforked_workers_and_their_master_store_jobs_that_others_see(play: Play) -> None:
    told = play("prefork")
    assert all_well(told), told
    assert len(told.stored) == 155


def test_multiprocessing_by_fork_stores_jobs_that_others_see(play: Play) -> None:
    told = play("pool")
    assert all_well(told), told
    assert len(told.stored) == 130


def test_fork_while_threads_write_neither_hangs_nor_loses_a_job(play: Play) -> None:
    told = play("while_threads_write")
    assert all_well(told), told
    assert told.ended == ["0"] * 2 * CHILDREN


def test_threads_that_fork_at_once_neither_hang_nor_lose_a_job(play: Play) -> None:
    told = play("while_threads_fork")
    assert all_well(told), told
    assert told.ended == ["0"] * CHILDREN


def test_handlers_that_fork_in_a_worker_neither_hang_nor_lose_a_job(play: Play) -> None:
    told = play("in_a_worker")
    assert all_well(told), told
    assert (len(told.stored), told.ended) == (3 * CHILDREN, ["0"] * CHILDREN)


# ---------------------------------------------------------------- refused uses
def test_child_forked_inside_a_transaction_leaves_it_to_its_parent(play: Play, database: Place) -> None:
    """On SQLite the child cannot use the file at all. On PostgreSQL it has its own connections."""
    told = play("in_a_transaction")
    assert told.ended == ["1"]
    assert "This transaction belongs to the process that this one was forked from" in told.errors.splitlines()[-1]
    names = [line.partition(":")[0] for line in told.refused]
    assert names[:2] == ["execute", "conn="]
    assert names[2:] == ([] if database.url.startswith("postgres") else ["app", "new app"])
    assert all("was forked while a connection to the file was open" in line for line in told.refused[2:])


def test_child_that_exits_inside_a_transaction_leaves_it_to_its_parent(play: Play) -> None:
    told = play("leaves_a_transaction")
    assert (told.ended, told.errors, len(told.stored)) == (["7"], "", 7)


def test_child_forked_during_a_long_transaction_refuses_with_one_sentence(play: Play, database: Place) -> None:
    """Its parent continues."""
    told = play("beside_a_transaction")
    assert (told.ended, told.errors) == (["0"], "")
    on_server = database.url.startswith("postgres")
    assert [line.partition(":")[0] for line in told.refused] == ([] if on_server else ["app"])


@pytest.mark.parametrize("database", ["sqlite", "sqlite+pysqlite3"], indirect=True)
def test_child_that_inherits_a_connection_of_the_caller_refuses_with_one_sentence(play: Play) -> None:
    """A child works if the caller closed the connection before the fork."""
    told = play("with_a_connection_of_the_caller")
    (sentence,) = told.refused
    assert "close your own connections to the file first" in sentence
    assert (told.ended, told.errors, len(told.stored)) == (["0", "0"], "", 11)


@pytest.mark.parametrize("database", ["sqlite", "sqlite+pysqlite3"], indirect=True)
def test_fork_during_other_uses_of_sqlite_stores_or_refuses_and_never_hangs(play: Play) -> None:
    """Another thread may have held a mutex of the SQLite library that no thread of the child can release."""
    told = play("beside_other_files")
    assert (told.ended, told.errors) == (["0"] * 20, "")
    assert len(told.stored) + len(told.refused) == 21
    assert all("which was forked while another thread was using SQLite" in line for line in told.refused)


def test_fork_by_c_code_is_noticed(play: Play, database: Place) -> None:
    """Such a fork calls no hook of Python."""
    told = play("by_c_code")
    on_server = database.url.startswith("postgres")
    assert [line.partition(":")[0] for line in told.refused] == ([] if on_server else ["app", "new app"])
    assert told.ended == ["0"]
