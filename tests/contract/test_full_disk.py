"""A database that cannot write, for example on a full disk, is `Unavailable` on both stores, and fails no job."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from interlock import App, Job, SyncRun, Unavailable
from interlock.store.sqlite.library import Library
from interlock.telemetry.events import WorkerError
from tests.kit import Place
from tests.loops.handler_bench import Bench

CODES = {
    "disk full": "53100",
    "out of memory": "53200",
    "configuration limit": "53400",
    "I/O error": "58030",
    "read only": "25006",
}


class Disk:
    """Simulates the disk of a test's database: while it is full, no row of jobs, executions or audit can be written."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._sqlite = place.url.startswith("sqlite")
        self._full = False
        self._connections: list[Any] = []

    def add(self, connection: Any) -> Any:
        """Register a SQLite connection; the page limit applies to each connection."""
        self._connections.append(connection)
        if self._full:
            self._limit(connection)
        return connection

    @staticmethod
    def _limit(connection: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill(self, code: str = CODES["disk full"]) -> None:
        self._full = True
        if self._sqlite:
            for connection in self._connections:
                self._limit(connection)
            return
        schema = self._place.schema
        self._place.raw.script(f"""
          CREATE FUNCTION {schema}.full_disk() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{code}'; END $$""")
        for table in ("jobs", "executions", "audit"):
            self._place.raw.script(
                f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {schema}.{table} FOR EACH STATEMENT EXECUTE "
                f"FUNCTION {schema}.full_disk()"
            )

    def free(self) -> None:
        self._full = False
        if self._sqlite:
            for connection in self._connections:
                connection.execute("PRAGMA max_page_count = 1000000")
            return
        self._place.raw.script(f"DROP FUNCTION IF EXISTS {self._place.schema}.full_disk() CASCADE")


@pytest.fixture
def disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, connect = Disk(place), Library.connect

    def remembered(self: Library, path: str, timeout: float, *, create: bool) -> Any:
        return disk.add(connect(self, path, timeout, create=create))

    monkeypatch.setattr(Library, "connect", remembered)
    return disk


@pytest.fixture
def bench(place: Place, disk: Disk) -> Iterator[Bench]:
    bench = Bench(place)
    yield bench
    disk.free()
    bench.close()


@contextmanager
def full(disk: Disk, code: str = CODES["disk full"]) -> Iterator[None]:
    disk.fill(code)
    try:
        yield
    finally:
        disk.free()


def big(app: App[Any]) -> Any:
    """Return a kind whose payloads need new pages."""

    @app.job(tries=1)
    def big(run: SyncRun, text: str = "x" * 20_000) -> None: ...

    return big


# ---------------------------------------------------------------- callers
def test_enqueue_on_a_full_disk_is_unavailable_and_stores_nothing(bench: Bench, disk: Disk) -> None:
    kind = big(bench.app)
    bench.migrate()
    bench.app.jobs()
    with full(disk), pytest.raises(Unavailable, match=r"full|extend"):
        kind.enqueue()
    assert bench.app.jobs() == []
    kind.enqueue()
    assert len(bench.app.jobs()) == 1


@pytest.mark.parametrize("places", ["postgres"], indirect=True)
@pytest.mark.parametrize("code", CODES.values(), ids=CODES.keys())
def test_every_postgresql_error_code_for_a_failed_write_is_unavailable(bench: Bench, disk: Disk, code: str) -> None:
    kind = big(bench.app)
    bench.migrate()
    with full(disk, code), pytest.raises(Unavailable) as caught:
        kind.enqueue()
    said = r"The database cannot write now \(could not extend file.*\); nothing was stored\."
    assert re.match(said, str(caught.value), re.DOTALL)
    with full(disk, code), pytest.raises(Unavailable), bench.app.transaction() as tx:
        kind.using(conn=tx).enqueue()


def test_full_disk_inside_a_transaction_is_unavailable(bench: Bench, disk: Disk, place: Place) -> None:
    """Also in the app's own transaction."""
    kind = big(bench.app)
    bench.migrate()
    bench.app.jobs()
    with full(disk), pytest.raises(Unavailable), bench.app.transaction() as tx:
        kind.using(conn=tx).enqueue()


def test_full_disk_error_of_another_database_is_raised_unchanged(bench: Bench, disk: Disk) -> None:
    """Only an error of the app's own transaction means that its database is full."""
    error = _error_of(disk, bench)
    with pytest.raises(type(error)), bench.app.transaction():
        raise error


def _error_of(disk: Disk, bench: Bench) -> Exception:
    kind = big(bench.app)
    bench.migrate()
    bench.app.jobs()
    with full(disk), pytest.raises(Unavailable) as caught:
        kind.enqueue()
    assert isinstance(caught.value.__cause__, Exception)
    return caught.value.__cause__


# ---------------------------------------------------------------- workers
def until_told(bench: Bench, disk: Disk) -> Callable[[], None]:
    """Free the disk once the worker could not store the end of its job. Its next claim may fail earlier."""

    def free(event: WorkerError) -> None:
        if event.where in ("report", "commit"):
            disk.free()

    return bench.app.events.subscribe(free, WorkerError)


def test_full_disk_at_the_end_of_a_job_costs_it_no_try(bench: Bench, disk: Disk) -> None:
    """The outcome is stored once there is space again."""

    @bench.app.job(tries=1)
    def work(run: SyncRun) -> str:
        disk.fill()
        return "x" * 20_000

    end = until_told(bench, disk)
    job = bench.run_one(work)
    end()
    assert (job.state, job.attempt, bench.statuses(job)) == ("SUCCEEDED", 1, ["DONE"])


def test_full_disk_inside_a_commit_function_costs_no_try(bench: Bench, disk: Disk, place: Place) -> None:
    """The user's own statement failed; the function runs again once there is space."""
    runs: list[int] = []

    @bench.app.job(tries=1)
    def work(run: SyncRun) -> str:
        disk.fill()
        return "done"

    @work.commit
    def write(tx: Any, job: Job, value: str) -> None:
        runs.append(1)
        table = place.raw.table("audit")
        if place.url.startswith("sqlite"):
            tx.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
            tx.execute("INSERT INTO notes VALUES (?)", ("x" * 100_000,))
        else:
            tx.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE false")

    end = until_told(bench, disk)
    job = bench.run_one(work)
    end()
    assert (job.state, job.attempt) == ("SUCCEEDED", 1), job.last_error
    assert len(runs) >= 2
