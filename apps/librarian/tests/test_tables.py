"""The tables: migrations, the view, and constraints that hold without the service."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from apps.common.database import make_engine, read_only
from apps.librarian import tables
from apps.librarian.models import User
from apps.librarian.tests.librarian_kit import LibrarianKit, UncallableClient, info_hash_of, magnet
from interlock import Refused

FIELDS = (
    "id",
    "user_id",
    "book_id",
    "media_type",
    "status",
    "source",
    "external_job_id",
    "created_at_utc",
    "updated_at_utc",
    "completed_at_utc",
    "cancel_requested_at_utc",
    "first_not_found_at_utc",
    "failure_reason",
)


@pytest.fixture
def client() -> UncallableClient:
    return UncallableClient()


@pytest.fixture
def ann(kit: LibrarianKit) -> User:
    return kit.service.add_user("ann")


@pytest.fixture
def emma(kit: LibrarianKit) -> int:
    return kit.service.add_book("Emma", "Jane Austen").id


def test_view_has_a_column_for_every_field(kit: LibrarianKit, ann: User, emma: int) -> None:
    started = kit.service.start_download(ann.id, emma, "audio", magnet(1))
    row = kit.rows(f"SELECT {', '.join(FIELDS)}, row_version FROM download_jobs")[0]
    assert [str(value) for value in row[:6]] == [started.id, str(ann.id), str(emma), "audio", "queued", magnet(1)]
    assert row[-1] == kit.app.get(started.id).version == 0


def test_second_migration_changes_nothing(kit: LibrarianKit, ann: User, emma: int) -> None:
    kit.service.start_download(ann.id, emma, "text", magnet(1))
    before, downloads = kit.row_counts(), kit.service.downloads(ann.id)
    kit.librarian.migrate()
    assert (kit.row_counts(), kit.service.downloads(ann.id)) == (before, downloads)


def test_migration_replaces_a_view_with_other_columns(kit: LibrarianKit, ann: User, emma: int) -> None:
    kit.service.start_download(ann.id, emma, "text", magnet(1))
    downloads = kit.service.downloads(ann.id)
    kit.write("DROP VIEW download_jobs")
    kit.write("CREATE VIEW download_jobs AS SELECT job_id AS id, user_id FROM downloads")
    kit.librarian.migrate()
    assert kit.service.downloads(ann.id) == downloads


def test_enqueue_without_the_unique_key_is_refused(kit: LibrarianKit, ann: User, emma: int) -> None:
    """The unique index allows one active download per medium only for jobs with the key."""
    first = kit.service.start_download(ann.id, emma, "text", magnet(1)).id
    before, kind = kit.row_counts(), kit.librarian.download
    request = tables.DownloadRequest(ann.id, emma, "text", magnet(1), info_hash_of(1))
    for enqueue in (kind.enqueue, kind.using(unique_key="another").enqueue):
        with pytest.raises(Refused, match="Start a download with `start_download`"):
            enqueue(request)
    assert kit.row_counts() == before
    found = kind.using(unique_key=request.unique_key).enqueue(request)
    assert (found.id, found.created, kit.row_counts()) == (first, False, before)


ASSET = "INSERT INTO media_assets (book_id, media_type, status, updated_at) VALUES"


def test_database_refuses_invalid_rows(kit: LibrarianKit, ann: User, emma: int) -> None:
    for wrong in (
        "INSERT INTO users (name, token_hash) SELECT name, 'another' FROM users",
        "INSERT INTO books (id, title, author, state) VALUES (7, 'x', '', 'Shelf')",
        f"{ASSET} (1, 'video', 'wanted', '2026-01-01T00:00:00.000000Z')",
        f"{ASSET} (1, 'text', 'lost', '2026-01-01T00:00:00.000000Z')",
        f"{ASSET} (99, 'text', 'wanted', '2026-01-01T00:00:00.000000Z')",
    ):
        with pytest.raises(IntegrityError):
            kit.write(wrong)


def test_sqlite_transaction_takes_the_write_lock_when_it_begins(tmp_path: Path) -> None:
    """Otherwise two transactions that read before they write would fail instead of waiting."""
    engine = make_engine(f"sqlite:///{tmp_path / 'library.db'}")
    with engine.begin() as tx:
        tables.metadata.create_all(tx)

    def add(number: int) -> None:
        with engine.begin() as tx:
            count = len(tx.execute(tables.books.select()).all())
            tx.execute(tables.books.insert().values(title=f"{number} after {count}", author=""))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    with read_only(engine).begin() as tx:
        assert {int(row.title.split()[-1]) for row in tx.execute(tables.books.select())} == set(range(40))
    engine.dispose()
