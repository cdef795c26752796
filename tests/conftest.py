"""Databases for the tests: each test that stores something runs on SQLite and on PostgreSQL."""

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
"""A directory in memory, if the machine has one: tests do not need durable storage."""
ROOM = 4 << 30
"""The free bytes that are needed for a server with all databases of a session."""

# A suite that a shell starts in the background ignores Ctrl-C, and so would every program that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _memory() -> Path | None:
    """Return the directory in memory, if it has space for all databases of a session."""
    return MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM else None


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server: the one that INTERLOCK_TEST_POSTGRES_URL names, or one that ends with the session."""
    if url := os.environ.get("INTERLOCK_TEST_POSTGRES_URL"):
        yield url
        return
    from tests.postgres_start import start_server

    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir=_memory()) as directory:
        server = start_server(Path(directory), cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                # The server ends with the session, so it need not survive a power cut.
                for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                # Tables exist for seconds, so a vacuum only slows the tests; tests of plans run ANALYZE themselves.
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
    """An empty directory, in memory if possible."""
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
    """Make databases with a schema but without lifecycles and kinds, unless they are opened with some."""
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
    """Make completely empty databases, for tests of the migration."""
    yield from make_empty_places(request, quick_path)


def make_empty_places(request: pytest.FixtureRequest, directory: Path) -> Iterator[Places]:
    """Make completely empty databases of the store that is the fixture's parameter."""
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
    """A store with a frozen clock and the kinds and lifecycles of the kit."""
    return place.open_with(CONTENTS)


@pytest.fixture
def live(place: Place) -> OpenStore:
    """The same in real time, for races between threads and processes."""
    return place.open_with(CONTENTS, real_time=True)


@pytest.fixture
def other(store: OpenStore, place: Place) -> OpenStore:
    """A second store on the same database, as another process has it."""
    return place.open()


@pytest.fixture
def clock(store: OpenStore, place: Place) -> SettableClock:
    """The clock of `store`; it stands still until a test advances it."""
    return place.clock


@pytest.fixture
def raw(place: Place) -> Raw:
    """SQL that does not come from the store, on its own connection."""
    return place.raw
