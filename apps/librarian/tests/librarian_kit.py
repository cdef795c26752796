"""A branch of the library for tests: the librarian on an empty database, a worker, and time that a test sets."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from apps.common.tests.kits import Kit
from apps.librarian.jobs import Client, Librarian, build
from apps.librarian.library import Download, Library, Started
from apps.librarian.settings import Settings
from apps.librarian.tests.qbittorrent import FakeQbittorrent, Record
from interlock.testing import KitClock, KitWorker, fresh

POLL = 15.0
# The ways that downloads go.
QUEUED = [(None, "queued")]
BEGUN = [*QUEUED, ("queued", "downloading")]
COMPLETED = [*BEGUN, ("downloading", "completed")]
_numbers = itertools.count(1)


def magnet(number: int) -> str:
    """A magnet link of a torrent of this number."""
    return f"magnet:?xt=urn:btih:{hash_of(number)}&dn=book-{number}"


def hash_of(number: int) -> str:
    return f"{number:040x}"


def going(qbittorrent: FakeQbittorrent, number: int = 1, *, progress: float = 0.25, state: str = "downloading") -> Record:
    """qBittorrent knows what is in the torrent, and has so much of it."""
    record = qbittorrent.metadata(hash_of(number), name="emma.epub", size=1000)
    record.state, record.progress = state, progress
    return record


def complete(record: Record, state: str = "stalledUP") -> None:
    record.state, record.progress = state, 1.0


@dataclass(frozen=True)
class Branch(Kit):
    """The librarian at one database."""

    librarian: Librarian
    library: Library
    settings: Settings
    clock: KitClock
    worker: KitWorker

    def start(self, number: int = 1, *, user: int | None = None, book: int | None = None, media_type: str = "text") -> Started:
        """A download of the torrent of this number; by a new user and of a new book, unless it is said by whom and of what."""
        user = self.library.add_user(f"reader {next(_numbers)}").id if user is None else user
        book = self.library.add_book("Emma").id if book is None else book
        return self.library.start_download(user, book, media_type, magnet(number))

    def seen(self, id: str) -> Download:
        """The download, as its user sees it."""
        return self.library.download(self.app.get(id).payload["request"]["user_id"], id)

    def cancel(self, id: str) -> Download:
        """By its user."""
        return self.library.cancel(self.app.get(id).payload["request"]["user_id"], id)

    @property
    def application(self) -> Librarian:
        return self.librarian

    def later(self, seconds: float = POLL) -> None:
        """Let time pass, then do all that is due."""
        super().later(seconds)

    def stored(self) -> dict[str, int]:
        """How many rows there are of everything."""
        return self.counted("users", "books", "media_assets", "downloads", "torrents", "download_jobs")

    def removals(self) -> list[str]:
        """The states of all removals, oldest first."""
        return [job.state for job in reversed(self.app.jobs(kind="remove"))]


@contextmanager
def branch(url: str, client: Client, directory: Path) -> Iterator[Branch]:
    """A branch on an empty database, migrated, with its time standing still."""
    settings = Settings(url, "http://127.0.0.1:1", "reader", "a long password", directory / "downloads", POLL)
    librarian, clock = build(settings, client), KitClock()
    try:
        with fresh(librarian.app, clock, directory, url):
            librarian.migrate()
            yield Branch(librarian, Library(librarian), settings, clock, KitWorker(librarian.app, clock))
    finally:
        librarian.close()


def settle(branch: Branch) -> None:
    """Until every removal has had its turn, and those who waited for it theirs."""
    branch.run()
    for _ in range(3):
        branch.later(5)
