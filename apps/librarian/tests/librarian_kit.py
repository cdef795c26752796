"""A librarian for tests: an empty database, a worker, and a clock that the test sets."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.common.tests.app_kit import AppKit
from apps.common.tests.kit_database import migrated_database
from apps.librarian.jobs import Librarian, TorrentClient, build
from apps.librarian.models import Download, StartedDownload
from apps.librarian.service import LibraryService
from apps.librarian.settings import Settings
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent, Record
from interlock.testing import KitClock, KitWorker

POLL = 15.0
NO_ID = "01900000-0000-7000-8000-000000000000"
"""The id of no job."""
# The transitions of a download up to a state.
QUEUED = [(None, "queued")]
DOWNLOADING = [*QUEUED, ("queued", "downloading")]
COMPLETED = [*DOWNLOADING, ("downloading", "completed")]
sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For promises that do not depend on the database."""
_numbers = itertools.count(1)


class UncallableClient:
    """A qBittorrent client that fails the test when it is called."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"qBittorrent was called: {name}")


def magnet(number: int) -> str:
    """The magnet link of the torrent with this number."""
    return f"magnet:?xt=urn:btih:{info_hash_of(number)}&dn=book-{number}"


def info_hash_of(number: int) -> str:
    return f"{number:040x}"


def set_downloading(
    qbittorrent: FakeQbittorrent,
    number: int = 1,
    *,
    progress: float = 0.25,
    state: str = "downloading",
    size: int = 1000,
) -> Record:
    """Give qBittorrent the metadata of a torrent and this much of its data."""
    record = qbittorrent.metadata(info_hash_of(number), name="emma.epub", size=size)
    record.state, record.progress = state, progress
    return record


def set_complete(record: Record, state: str = "stalledUP") -> None:
    """Give qBittorrent all data of a torrent."""
    record.state, record.progress = state, 1.0


@dataclass(frozen=True)
class LibrarianKit(AppKit):
    """The librarian on one database."""

    librarian: Librarian
    service: LibraryService
    settings: Settings
    clock: KitClock
    worker: KitWorker

    def start(
        self, number: int = 1, *, user: int | None = None, book: int | None = None, media_type: str = "text"
    ) -> StartedDownload:
        """Start a download of the torrent with this number, by default for a new user and a new book."""
        user = self.service.add_user(f"reader {next(_numbers)}").id if user is None else user
        book = self.service.add_book("Emma").id if book is None else book
        return self.service.start_download(user, book, media_type, magnet(number))

    def download(self, id: str) -> Download:
        """The download as its user sees it."""
        return self.service.download(self.app.get(id).payload["request"]["user_id"], id)

    def cancel(self, id: str) -> Download:
        """Cancel a download as its user."""
        return self.service.cancel(self.app.get(id).payload["request"]["user_id"], id)

    @property
    def application(self) -> Librarian:
        return self.librarian

    def run_after(self, seconds: float = POLL) -> None:
        """Advance the clock, then run every job that is due."""
        super().run_after(seconds)

    def row_counts(self) -> dict[str, int]:
        """The number of rows in every table."""
        return self.count_rows("users", "books", "media_assets", "downloads", "torrents", "download_jobs")

    def removals(self) -> list[str]:
        """The states of all removals, oldest first."""
        return [job.state for job in reversed(self.app.jobs(kind="remove"))]


@contextmanager
def open_kit(url: str, client: TorrentClient, directory: Path) -> Iterator[LibrarianKit]:
    """A librarian on an empty, migrated database with a stopped clock."""
    settings = Settings(url, "http://127.0.0.1:1", "reader", "a long password", directory / "downloads", POLL)
    librarian, clock = build(settings, client), KitClock()
    try:
        with migrated_database(librarian, clock, directory, url):
            yield LibrarianKit(librarian, LibraryService(librarian), settings, clock, KitWorker(librarian.app, clock))
    finally:
        librarian.close()


def run_removals(kit: LibrarianKit) -> None:
    """Run until every removal has ended, and every job that waits for one."""
    kit.run()
    for _ in range(3):
        kit.run_after(5)
