"""Databases for every test that stores something: each of them runs on SQLite and on PostgreSQL."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from interlock.store import OpenStore
from tests.contract.kit import CONTENTS
from tests.kit import Place, Raw, SettableClock, postgres_place, sqlite_place
from tests.pool import FilePool, SchemaPool

Places = Callable[[], Place]
MEMORY = Path("/dev/shm")
"""A directory in memory, where the machine has one: no test here cuts the power, so none need wait for a disk."""
ROOM = 4 << 30
"""Bytes that there must be for a server with all the databases of a session."""

# A suite that a shell runs in the background ignores Ctrl-C, and so would every program that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _memory() -> Path | None:
    """The directory in memory, if it has room for all the databases of a session."""
    return MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM else None


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server: the one that INTERLOCK_TEST_POSTGRES_URL names, or one of our own that ends with the
    session.
    """
    if url := os.environ.get("INTERLOCK_TEST_POSTGRES_URL"):
        yield url
        return
    from tests.postgres_start import start_server

    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir=_memory()) as directory:
        server = start_server(Path(directory), cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                # The server lives no longer than the session, so nothing of it need outlive a power cut.
                for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                # Tables live for seconds, so a vacuum only takes time from the tests; tests of plans analyze by themselves.
                connection.execute("ALTER SYSTEM SET autovacuum = off")
                connection.execute("ALTER SYSTEM SET max_wal_size = '1GB'")
                connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1d'")
                connection.execute("ALTER SYSTEM SET max_connections = 200")
            server.stop()
            server.start()
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory if there is one."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def schema_pool(postgres_url: str) -> Iterator[SchemaPool]:
    """Migrated schemas of this process, emptied between tests."""
    pool = SchemaPool(postgres_url, f"p{os.getpid()}")
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def file_pool() -> Iterator[FilePool]:
    """Migrated SQLite files of this process, to copy."""
    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir=_memory()) as directory:
        yield FilePool(Path(directory))


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Places]:
    """Makes databases whose schema is there, without any lifecycle or kind, unless it is opened with some."""
    get = request.getfixturevalue
    yield from _made(
        lambda: (
            sqlite_place(quick_path, get("file_pool"))
            if request.param == "sqlite"
            else postgres_place(get("postgres_url"), get("schema_pool"))
        )
    )


@pytest.fixture(params=["sqlite", "postgres"])
def empty_places(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Places]:
    """Makes databases without anything in them: for tests of the migration."""
    yield from make_empty_places(request, quick_path)


def make_empty_places(request: pytest.FixtureRequest, directory: Path) -> Iterator[Places]:
    """Makes databases without anything in them, of the store that is the fixture's parameter."""
    get = request.getfixturevalue
    yield from _made(
        lambda: sqlite_place(directory) if request.param == "sqlite" else postgres_place(get("postgres_url"))
    )


def _made(make: Places) -> Iterator[Places]:
    made: list[Place] = []

    def another() -> Place:
        made.append(make())
        return made[-1]

    yield another
    for place in made:
        place.close()


@pytest.fixture
def place(places: Places) -> Place:
    """An empty database."""
    return places()


@pytest.fixture
def store(place: Place) -> OpenStore:
    """A store whose time stands still, with the kinds and lifecycles of the kit."""
    return place.open_with(CONTENTS)


@pytest.fixture
def live(place: Place) -> OpenStore:
    """The same with real time, for races between threads and processes."""
    return place.open_with(CONTENTS, real_time=True)


@pytest.fixture
def other(store: OpenStore, place: Place) -> OpenStore:
    """A second store on the same database: another process's view."""
    return place.open()


@pytest.fixture
def clock(store: OpenStore, place: Place) -> SettableClock:
    """The time of `store`; it stands until a test advances it."""
    return place.clock


@pytest.fixture
def raw(place: Place) -> Raw:
    """SQL from elsewhere, on a connection of its own."""
    return place.raw
