"""The librarian with a real qBittorrent: workers run in separate processes, which tests may kill."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text

from apps.common.tests.waiting import wait_until
from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.jobs import Librarian, build
from apps.librarian.service import Download, LibraryService
from apps.librarian.settings import Settings
from apps.librarian.tests.real_qbittorrent import Peer, RealQbittorrent
from interlock import Execution

T = TypeVar("T")
_numbers = itertools.count(1)
ROOT = Path(__file__).parents[3]
POLL = 0.5
SLOW_RATE = 200_000
"""Bytes per second of a limited torrent. It cannot complete before the test has looked at it."""


class Worker:
    """An `interlock worker` of the librarian in its own process group."""

    def __init__(self, settings: Settings, log: Path) -> None:
        variables = {
            "DATABASE_URL": settings.database,
            "QBITTORRENT_URL": settings.qbittorrent_url,
            "QBITTORRENT_USERNAME": settings.username,
            "QBITTORRENT_PASSWORD": settings.password,
            "DOWNLOADS": str(settings.downloads),
            "POLL": str(settings.poll),
        }
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "worker", "-A", "apps.librarian.app:app"],
                cwd=ROOT,
                start_new_session=True,
                env=os.environ | {f"LIBRARIAN_{name}": value for name, value in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, or None while the worker runs."""
        return self._process.poll()

    def signal(self, what: signal.Signals) -> None:
        # The id cannot be reused while nothing has waited for the process.
        if self.code is None:
            os.killpg(self._process.pid, what)

    def kill(self) -> None:
        """Kill the worker without warning, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait(20)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self._process.wait(40)


class RealLibrarian:
    """A librarian on one database, with one real qBittorrent and any number of workers."""

    def __init__(self, url: str, server: RealQbittorrent, directory: Path) -> None:
        self.server = server
        self.settings = Settings(url, server.url, server.username, server.password, directory / "downloads", POLL)
        self.qbittorrent = QbittorrentClient(server.url, server.username, server.password)
        self.librarian: Librarian = build(self.settings, self.qbittorrent)
        self.app = self.librarian.app
        self.service = LibraryService(self.librarian)
        self.workers: list[Worker] = []
        self._directory = directory

    def worker(self) -> Worker:
        self.workers.append(Worker(self.settings, self._directory / f"worker-{len(self.workers)}.log"))
        return self.workers[-1]

    def kill_workers(self) -> None:
        """Kill every worker that still runs."""
        for worker in self.workers:
            worker.kill()

    def wait_until(self, check: Callable[[], T], within: float = 60.0) -> T:
        """Call `check` until it returns something true. Fails if a worker ends that the test did not kill."""

        def checked() -> T:
            assert {worker.code for worker in self.workers} <= {None, -signal.SIGKILL}, "a worker has ended"
            return check()

        try:
            return wait_until(checked, within=within)
        except AssertionError as error:
            jobs = "\n".join(str(job) for job in self.app.jobs())
            logs = "\n".join(f"--- worker {worker.code}\n{worker.log}" for worker in self.workers)
            raise AssertionError(f"{error}\n{jobs}\n{logs}") from None

    # ------------------------------------------------------------ downloads
    def start(self, source: str | bytes, *, book: int | None = None, media_type: str = "text") -> str:
        """Start a download for a new user, by default of a new book."""
        book = self.service.add_book("Night and Day").id if book is None else book
        return self.service.start_download(
            self.service.add_user(f"reader {next(_numbers)}").id, book, media_type, source
        ).id

    def download(self, id: str) -> Download:
        """The download as its user sees it."""
        return self.service.download(self.app.get(id).payload["request"]["user_id"], id)

    def cancel(self, id: str) -> None:
        """Cancel a download as its user."""
        self.service.cancel(self.download(id).user_id, id)

    def states(self, id: str) -> list[str | None]:
        """The states of the download, in order."""
        return [entry.to_state for entry in self.app.history(id) if entry.n == 0]

    def execution(self, id: str) -> Execution | None:
        """The newest attempt of a job."""
        return next(reversed(self.app.executions(id)), None)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with self.librarian.engine.begin() as tx:
            return [tuple(row) for row in tx.execute(text(sql))]

    # ------------------------------------------------------------ progress
    def connect(self, id: str, peer: Peer) -> str:
        """After the hand-over, connect the torrent to this peer, slowly. Returns its id in qBittorrent."""
        known = self.wait_until(lambda: self.download(id).external_job_id or "", within=90)
        self.limit(known, SLOW_RATE)
        peer.meet(self.server, known)
        return known

    def limit(self, known: str, bytes_per_second: int) -> None:
        self.server.post("torrents/setDownloadLimit", hashes=known, limit=bytes_per_second)

    def downloaded(self, id: str, beyond: float = 0.0) -> float:
        """The downloaded bytes that the user sees, if they are more than `beyond` and less than all, else 0."""
        download = self.download(id)
        if download.status != "downloading" or download.progress is None:
            return 0.0
        return download.progress.done if beyond < download.progress.done < (download.progress.total or 0) else 0.0

    def finish(self, id: str, peer: Peer) -> None:
        """Download without a limit, until the download is completed."""
        known = self.download(id).external_job_id or ""
        self.limit(known, 0)

        def completed() -> bool:
            torrent = self.qbittorrent.find_torrents([known]).get(known)
            if torrent and torrent.active and torrent.state != "downloading":
                peer.meet(self.server, known)
            return not self.download(id).active

        self.wait_until(completed)
        download = self.download(id)
        assert (download.status, download.first_not_found_at_utc) == ("completed", None), download

    def has_asset(self, id: str, peer: Peer) -> bool:
        """Whether the asset of this download is available, and its file has the content of the peer."""
        download = self.download(id)
        (asset,) = [asset for asset in self.service.assets(download.book_id) if asset.media_type == download.media_type]
        assert (asset.status, asset.source_url) == ("available", download.source), asset
        assert asset.storage_path == str(self.settings.downloads / str(download.external_job_id) / peer.name), asset
        # A failing test must not print eight million bytes.
        return hashlib.sha256(Path(asset.storage_path).read_bytes()).digest() == hashlib.sha256(peer.content).digest()

    # ------------------------------------------------------------ failures
    def is_being_reconciled(self, id: str) -> bool:
        """Whether a worker is asking qBittorrent about this download right now."""
        held = self.execution(id)
        return held is not None and held.external_id is not None and held.lease_owner.endswith("/reconciler")

    def kill_between_checks(self, worker: Worker, id: str) -> None:
        """Kill a worker while it is not asking qBittorrent about this download."""

        def is_idle() -> bool:
            worker.signal(signal.SIGSTOP)
            if not self.is_being_reconciled(id):
                return True
            worker.signal(signal.SIGCONT)
            return False

        self.wait_until(is_idle)
        worker.kill()

    @contextmanager
    def qbittorrent_frozen(self) -> Iterator[None]:
        """qBittorrent accepts requests, and answers none."""
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    @contextmanager
    def execution_locked(self, id: str) -> Iterator[None]:
        """Lock the attempt of this download, so that its worker cannot store a result. On PostgreSQL.

        The worker must be dead at the end of the block, and its waiting database session is terminated.
        """
        with self.librarian.engine.connect() as tx:
            tx.execute(
                text("SELECT 1 FROM interlock.executions WHERE job_id = CAST(:id AS uuid) FOR UPDATE"), {"id": id}
            )
            yield
            # A session that waits for a lock does not notice that its client is gone.
            waiting = "datname = current_database() AND wait_event_type = 'Lock'"
            tx.execute(text(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {waiting}"))


@contextmanager
def run_librarian(url: str, server: RealQbittorrent, directory: Path) -> Iterator[RealLibrarian]:
    """A librarian on an empty database. Its workers end with it, and must exit with 0."""
    librarian = RealLibrarian(url, server, directory)
    with ExitStack() as stack:
        stack.callback(librarian.librarian.close)
        stack.callback(librarian.kill_workers)
        librarian.librarian.migrate()
        yield librarian
        assert {worker.terminate() for worker in librarian.workers if worker.code is None} <= {0}
