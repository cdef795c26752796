"""A SQLite file that is deleted, moved or replaced while a program uses it: a job that others cannot see is refused."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock import App, SyncRun
from interlock.errors import InterlockError, Unavailable
from tests.crash.conftest import Labs
from tests.crash.lab import until
from tests.crash.worker_command import start
from tests.kit import Place, sqlite_place

SAID = "was deleted, moved or replaced while this process had it open"
PARTS = ("", "-wal", "-shm", "-journal")


@pytest.fixture(params=["sqlite", "sqlite+pysqlite3"])
def place(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Place]:
    """A file with a rollback journal, then one with a write-ahead log."""
    place = sqlite_place(quick_path)
    place.url = place.url.replace("sqlite:", f"{request.param}:")
    yield place
    place.close()


@pytest.fixture
def file(place: Place) -> Path:
    return Path(place.url.partition(":///")[2])


@pytest.fixture
def app(place: Place) -> Iterator[App]:
    """An app that has stored one job."""
    app = App(place.url)

    @app.job()
    def greet(run: SyncRun, name: str) -> None: ...

    greet.enqueue("first")
    yield app
    app.close()


def move(source: Path, target: Path) -> None:
    """Move the file and the files that belong to it."""
    for part in PARTS:
        if Path(f"{source}{part}").exists():
            Path(f"{source}{part}").rename(f"{target}{part}")


def refuses(app: App) -> None:
    """Check that the app neither stores nor reads, in this thread and in a new one."""
    found: list[BaseException] = []

    def store() -> None:
        try:
            app.kinds["greet"].enqueue("lost")
        except InterlockError as error:
            found.append(error)

    store()
    thread = threading.Thread(target=store)
    thread.start()
    thread.join()
    assert [type(error) for error in found] == [Unavailable, Unavailable]
    assert all(SAID in str(error) for error in found)
    with pytest.raises(Unavailable, match=SAID):
        app.jobs()


def names(app: App) -> list[str]:
    return [str(job.payload["name"]) for job in app.jobs()]


def test_deleted_file_refuses_jobs_and_is_not_created_again(app: App, file: Path) -> None:
    for part in PARTS:
        Path(f"{file}{part}").unlink(missing_ok=True)
    refuses(app)
    assert not file.exists()


def test_moved_file_is_used_again_when_it_is_back(app: App, file: Path) -> None:
    move(file, file.with_name("away.db"))
    refuses(app)
    move(file.with_name("away.db"), file)
    app.kinds["greet"].enqueue("second")
    assert sorted(names(app)) == ["first", "second"]


def test_replaced_file_is_used_after_the_app_was_closed(app: App, file: Path, place: Place) -> None:
    """Until then the app does not write to the write-ahead log, which belongs to the new file."""
    other = App(place.url.replace(file.name, "other.db"))
    other.migrate()
    other.close()
    for part in PARTS[1:]:
        Path(f"{file}{part}").unlink(missing_ok=True)
    file.with_name("other.db").replace(file)
    refuses(app)
    app.close()
    app.migrate()
    app.kinds["greet"].enqueue("second")
    assert names(app) == ["second"]


def test_transaction_fails_if_the_file_is_replaced_inside_it(app: App, file: Path) -> None:
    with pytest.raises(Unavailable, match=SAID), app.transaction() as tx:
        app.kinds["greet"].using(conn=tx).enqueue("lost")
        shutil.copy(file, file.with_name("copy.db"))
        file.with_name("copy.db").replace(file)
    refuses(app)


def test_job_in_a_transaction_is_refused_if_the_file_was_moved(app: App, file: Path) -> None:
    with pytest.raises(Unavailable, match=SAID), app.transaction() as tx:
        move(file, file.with_name("away.db"))
        app.kinds["greet"].using(conn=tx).enqueue("lost")
    move(file.with_name("away.db"), file)
    assert names(app) == ["first"]


@pytest.mark.parametrize("place", ["sqlite+pysqlite3"], indirect=True)
def test_deleted_write_ahead_log_refuses_jobs(app: App, file: Path) -> None:
    log = Path(f"{file}-wal")
    log.unlink()
    with pytest.raises(Unavailable, match=f"{log.name} {SAID}"):
        app.kinds["greet"].enqueue("lost")
    assert not log.exists()


def test_worker_reports_a_moved_file_and_continues_when_it_is_back(labs: Labs, file: Path) -> None:
    lab = labs()
    worker = start(lab, "worker")
    worker.ready()
    move(file, file.with_name("away.db"))
    until(lambda: SAID in worker.log or not worker.alive, "the worker reports the moved file")
    assert worker.alive, worker.log
    assert not file.exists()
    move(file.with_name("away.db"), file)
    lab.enqueue("fast", "after")
    assert [job.phase for job in lab.until_ended()] == ["succeeded"]
    lab.check()
