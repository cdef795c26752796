"""The librarian as it really runs: workers in processes of their own, which a test may kill, on one database, with a real qBittorrent."""

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

from apps.common.tests.waiting import eventually
from apps.librarian.client import Qbittorrent
from apps.librarian.jobs import Librarian, build
from apps.librarian.library import Download, Library
from apps.librarian.settings import Settings
from apps.librarian.tests.real import Peer, RealQbittorrent
from interlock import Execution

T = TypeVar("T")
_numbers = itertools.count(1)
ROOT = Path(__file__).parents[3]
POLL = 0.5
SLOWLY = 200_000
"""Bytes per second at which a torrent arrives until it is told to hurry: it could not be there before a test has looked at it."""


class Worker:
    """`interlock worker` of the librarian, with a process group to itself."""

    def __init__(self, settings: Settings, log: Path) -> None:
        told = {
            "DATABASE_URL": settings.database, "QBITTORRENT_URL": settings.qbittorrent_url, "QBITTORRENT_USERNAME": settings.username,
            "QBITTORRENT_PASSWORD": settings.password, "DOWNLOADS": str(settings.downloads), "POLL": str(settings.poll),
        }  # fmt: skip
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "worker", "-A", "apps.librarian.app:app"], cwd=ROOT, start_new_session=True,
                env=os.environ | {f"LIBRARIAN_{name}": value for name, value in told.items()}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def signal(self, what: signal.Signals) -> None:
        # Not yet waited for, so that the id cannot be another's.
        if self.code is None:
            os.killpg(self._process.pid, what)

    def kill(self) -> None:
        """As a power cut would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait(20)

    def end(self) -> int:
        """Ask it to end, and answer its exit code."""
        self.signal(signal.SIGTERM)
        return self._process.wait(40)


class House:
    """One database, one qBittorrent, and any number of workers. What a test does here itself, it does in a process of its own, too."""

    def __init__(self, url: str, server: RealQbittorrent, directory: Path) -> None:
        self.server = server
        self.settings = Settings(url, server.url, server.username, server.password, directory / "downloads", POLL)
        self.qbittorrent = Qbittorrent(server.url, server.username, server.password)
        self.librarian: Librarian = build(self.settings, self.qbittorrent)
        self.app = self.librarian.app
        self.library = Library(self.librarian)
        self.workers: list[Worker] = []
        self._directory = directory

    def worker(self) -> Worker:
        self.workers.append(Worker(self.settings, self._directory / f"worker-{len(self.workers)}.log"))
        return self.workers[-1]

    def end(self) -> None:
        """End every worker that is left, by its id."""
        for worker in self.workers:
            worker.kill()

    def eventually(self, check: Callable[[], T], within: float = 60.0) -> T:
        """What `check` answers as soon as that is true, while every worker that nobody killed is at work."""

        def checked() -> T:
            assert {worker.code for worker in self.workers} <= {None, -signal.SIGKILL}, "a worker has ended"
            return check()

        try:
            return eventually(checked, within=within)
        except AssertionError as error:
            jobs = "\n".join(str(job) for job in self.app.jobs())
            logs = "\n".join(f"--- worker {worker.code}\n{worker.log}" for worker in self.workers)
            raise AssertionError(f"{error}\n{jobs}\n{logs}") from None

    # ------------------------------------------------------------ downloads
    def start(self, source: str | bytes, *, book: int | None = None, media_type: str = "text") -> str:
        """A download by a new user; of a new book, unless it is said of which."""
        book = self.library.add_book("Night and Day").id if book is None else book
        return self.library.start_download(self.library.add_user(f"reader {next(_numbers)}").id, book, media_type, source).id

    def seen(self, id: str) -> Download:
        """The download, as its user sees it."""
        return self.library.download(self.app.get(id).payload["request"]["user_id"], id)

    def cancel(self, id: str) -> None:
        """By its user."""
        self.library.cancel(self.seen(id).user_id, id)

    def path(self, id: str) -> list[str | None]:
        """The states in which the download was, in order."""
        return [entry.to_state for entry in self.app.history(id) if entry.n == 0]

    def execution(self, id: str) -> Execution | None:
        """The newest attempt at it."""
        return next(reversed(self.app.executions(id)), None)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with self.librarian.engine.begin() as tx:
            return [tuple(row) for row in tx.execute(text(sql))]

    # ------------------------------------------------------------ on their way
    def meet(self, id: str, peer: Peer) -> str:
        """Once it is handed over, have it come slowly from this peer. Answers its id in qBittorrent."""
        known = self.eventually(lambda: self.seen(id).external_job_id or "", within=90)
        self.limit(known, SLOWLY)
        peer.meet(self.server, known)
        return known

    def limit(self, known: str, bytes_per_second: int) -> None:
        self.server.post("torrents/setDownloadLimit", hashes=known, limit=bytes_per_second)

    def under_way(self, id: str, beyond: float = 0.0) -> float:
        """How many bytes of it are there, as its user sees it, once that is more than `beyond` and less than all. Zero until then."""
        seen = self.seen(id)
        if seen.status != "downloading" or seen.progress is None:
            return 0.0
        return seen.progress.done if beyond < seen.progress.done < (seen.progress.total or 0) else 0.0

    def complete(self, id: str, peer: Peer) -> None:
        """Let it come as fast as it can, until it is there."""
        known = self.seen(id).external_job_id or ""
        self.limit(known, 0)

        def completed() -> bool:
            there = self.qbittorrent.look([known]).get(known)
            if there and there.active and there.state != "downloading":
                peer.meet(self.server, known)
            return not self.seen(id).active

        self.eventually(completed)
        seen = self.seen(id)
        assert (seen.status, seen.first_not_found_at_utc) == ("completed", None), seen

    def on_the_shelf(self, id: str, peer: Peer) -> bool:
        """The one asset of this download is available, and its file, where it says, is the one that the peer gave."""
        seen = self.seen(id)
        (asset,) = [asset for asset in self.library.assets(seen.book_id) if asset.media_type == seen.media_type]
        assert (asset.status, asset.source_url) == ("available", seen.source), asset
        assert asset.storage_path == str(self.settings.downloads / str(seen.external_job_id) / peer.name), asset
        # Not as bytes, of which a failing test would print eight million.
        return hashlib.sha256(Path(asset.storage_path).read_bytes()).digest() == hashlib.sha256(peer.content).digest()

    # ------------------------------------------------------------ at the worst moment
    def asked_about(self, id: str) -> bool:
        """Whether a worker holds this handed-over download just now, to ask qBittorrent about it."""
        held = self.execution(id)
        return held is not None and held.external_id is not None and held.lease_owner.endswith("/reconciler")

    def kill_at_rest(self, worker: Worker, id: str) -> None:
        """Kill a worker while it has nothing to do with this download, which is handed over."""

        def at_rest() -> bool:
            worker.signal(signal.SIGSTOP)
            if not self.asked_about(id):
                return True
            worker.signal(signal.SIGCONT)
            return False

        self.eventually(at_rest)
        worker.kill()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """qBittorrent takes every request, and answers none."""
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)


    @contextmanager
    def unwritable(self, id: str) -> Iterator[None]:
        """Nobody can write anything down about the attempt at this download, and who tried has died of it, as its worker must have by then. On PostgreSQL."""
        with self.librarian.engine.connect() as tx:
            tx.execute(text("SELECT 1 FROM interlock.executions WHERE job_id = CAST(:id AS uuid) FOR UPDATE"), {"id": id})
            yield
            # A session that waits for us does not see that its client is gone.
            waiting = "datname = current_database() AND wait_event_type = 'Lock'"
            tx.execute(text(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {waiting}"))


@contextmanager
def house(url: str, server: RealQbittorrent, directory: Path) -> Iterator[House]:
    """A house on an empty database. Its workers end in good order, and with it."""
    made = House(url, server, directory)
    with ExitStack() as stack:
        stack.callback(made.librarian.close)
        stack.callback(made.end)
        made.librarian.migrate()
        yield made
        assert {worker.end() for worker in made.workers if worker.code is None} <= {0}
