"""Two kinds of job: one hands a torrent over to qBittorrent and follows it there, the other removes it when nobody needs it any more."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine
from typing_extensions import override

from apps.common.application import Application
from apps.common.database import connect
from interlock import Answer, App, Backoff, Complete, Enqueued, External, Fail, Failed, Going, Job, Kind, Lifecycle, Refused, Retry, Snooze, SyncRun

from . import addresses, tables
from . import source as sources
from .client import Torrent
from .errors import BadSource, LibrarianError, LoginRefused
from .settings import Settings
from .source import Source
from .tables import Request

BATCH = 100
GRACE = 60.0
WAIT = 5.0
"""Seconds after which a job looks again whether a removal is over."""

Fetch = Kind[[Request], "Media", Connection]
Remove = Kind[[str], None, Connection]


class Client(Protocol):
    """qBittorrent, as far as the jobs need it. Each call may block."""

    def add(self, source: Source, save_path: str) -> str: ...
    def look(self, ids: Sequence[str]) -> Mapping[str, Torrent]: ...
    def remove(self, id: str) -> None: ...


@dataclass(frozen=True)
class Media:
    """What a download has brought: where it lies, and its size in bytes."""

    path: str
    size: float


@dataclass(frozen=True)
class Librarian(Application):
    """The app with its two kinds, and its own way to the database."""

    fetch: Fetch
    remove: Remove
    allow_private_addresses: bool

    def source(self, given: str | bytes) -> Source:
        """Parse a source and check that it is allowed. Raises only BadSource."""
        return _allowed(given, private=self.allow_private_addresses)

    @override
    def _make_tables(self) -> None:
        tables.migrate(self.engine)


def build(settings: Settings, client: Client, *, lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None) -> Librarian:
    """The librarian on this database, with this qBittorrent. It opens nothing yet; `lifespan` wraps each of its workers."""
    engine = connect(settings.database)
    # What a reader once downloaded stays to be seen, so no job of it is ever deleted.
    app = App(settings.database, transaction=engine.begin, lifespan=lifespan, retention={"succeeded": None})
    remove = _removal(app, engine, client, settings.downloads)
    return Librarian(app, engine, _download(app, engine, client, settings, remove), remove, settings.allow_private_addresses)


def _allowed(given: str | bytes, *, private: bool) -> Source:
    found = sources.source(given)
    if not private:
        addresses.check(found.addresses)
    return found


# ---------------------------------------------------------------- download
def _download(app: App[Connection], engine: Engine, client: Client, settings: Settings, remove: Remove) -> Fetch:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "download")

    # A plain function, and no coroutine: it cannot be stopped between its call and the answer, so no torrent arrives behind the back of a cancelled job.
    @app.job(kind="download", lifecycle=lifecycle, tries=8, backoff=Backoff(10.0, cap=300.0))
    def fetch(run: SyncRun, request: Request) -> External[Media]:
        torrent_id = request.torrent_id
        with engine.begin() as tx:
            removal = tables.lock(tx, torrent_id)
            # It is there already, unless an operator has driven this download again by a program that does not know us.
            tables.register(tx, run.job_id, request)
            given = tables.torrent_of(tx, torrent_id)
        if removal is not None:
            raise Snooze(f"torrent {torrent_id} is being removed: it is added again after that", after=WAIT)
        try:
            # Checked again: another program, or one with another setting, may have stored the source.
            allowed = _allowed(given or request.source, private=settings.allow_private_addresses)
            # No effect with a receipt: a torrent is added once however often it is asked for, and one that has vanished since must be added again.
            known = client.add(allowed, str(settings.downloads / torrent_id))
        except BadSource as error:
            raise Fail(str(error)) from None
        except LibrarianError as error:
            raise Retry(str(error), after=error.retry_after if isinstance(error, LoginRefused) else None) from error
        if app.get(run.job_id).state == "canceled":
            # We stood still for so long that the job was taken from us and cancelled, and the removal may have found nothing to remove.
            remove.enqueue(torrent_id)
        return External(known)

    @fetch.reconcile(every=settings.poll, batch=BATCH, grace=GRACE)
    async def ask(ids: Sequence[str]) -> Mapping[str, Answer[Media]]:  # pyright: ignore[reportUnusedFunction]
        # Paths are looked at, too, and a disk may be as slow as a server.
        return await asyncio.to_thread(lambda: {id: answer(torrent, settings.downloads) for id, torrent in client.look(ids).items()})

    _accounted(fetch, remove)
    return fetch


def _accounted(fetch: Fetch, remove: Remove) -> None:
    """What is written with a download's beginning and with its ends, in their own transactions."""

    @fetch.admit
    def begun(tx: Connection, job: Enqueued, request: Request) -> None:  # pyright: ignore[reportUnusedFunction]
        # Whoever enqueues it, or drives it again: it is one of a kind, and to be seen at once.
        if tables.unique_key(tx, job.id) != request.medium:
            raise Refused(f"A download is started by `start_download`, or with the unique key {request.medium!r}: a user has one of each medium.")
        tables.register(tx, job.id, request)

    @fetch.commit
    def shelve(tx: Connection, job: Job, media: Media) -> None:  # pyright: ignore[reportUnusedFunction]
        tables.shelve(tx, _request(job), media.path)

    @fetch.on_enter("canceled")
    def tidy(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        # A removal for each cancelled download, and not one per torrent: one that has already looked, and seen this download, would do nothing for it.
        remove.using(conn=tx).enqueue(_request(job).torrent_id)


def _request(job: Job) -> Request:
    return Request(**job.payload["request"])


def answer(torrent: Torrent, downloads: Path) -> Answer[Media]:
    """What qBittorrent's word about a torrent means for its download."""
    if torrent.error:
        return Failed(f"qbittorrent_error: {torrent.state}")
    if torrent.complete:
        if not inside(torrent.content_path, downloads):
            return Failed(f"unsafe_path: qBittorrent keeps it at {torrent.content_path!r}, outside the downloads directory")
        return Complete(Media(os.path.normpath(torrent.content_path), torrent.done))
    return Going(torrent.done, torrent.total, torrent.state) if torrent.active else Going()


def inside(path: str, directory: Path) -> bool:
    """Whether a path lies in a directory and is not the directory itself: as it is written, and, where it can be seen from here, where its links lead."""
    found = Path(os.path.normpath(path))
    if not found.is_absolute() or directory not in found.parents:
        return False
    # What may not be looked at from here is not seen, and no error: qBittorrent may run as another user.
    return not os.path.exists(found) or Path(os.path.realpath(directory)) in Path(os.path.realpath(found)).parents  # noqa: PTH110


# ---------------------------------------------------------------- remove
def _removal(app: App[Connection], engine: Engine, client: Client, downloads: Path) -> Remove:
    def reserved(names: Iterable[str], torrent_id: str, job_id: str) -> bool:
        with engine.begin() as tx:
            return all(_reserved(tx, name, job_id, yields=name != torrent_id) for name in sorted(names))

    def ours(torrent: Torrent) -> bool:
        """One that was in qBittorrent before us, or was moved, is somebody else's."""
        kept = Path(os.path.normpath(torrent.save_path))
        return kept.parent == downloads and kept.name in torrent.names

    def delete(torrent_id: str, job_id: str) -> bool:
        """Delete the torrent with its files. A hybrid goes by two ids, and someone else's download may know it by the other one."""
        torrent = client.look([torrent_id]).get(torrent_id)
        if torrent is None or not ours(torrent) or not reserved([name for name in torrent.names if len(name) == len(torrent_id)], torrent_id, job_id):
            return False
        client.remove(torrent_id)
        return True

    @app.job(kind="remove", tries=20, backoff=Backoff(5.0, cap=900.0))
    def remove(run: SyncRun, torrent_id: str) -> None:
        if reserved([torrent_id], torrent_id, run.job_id):
            # Deleting twice does no harm, so this is no effect for its receipt's sake but for its fence's: a worker that stood still here, while another did
            # its work and a newer download began, is refused before it can delete that one's torrent.
            run.effect("delete", on_doubt="retry")(delete, torrent_id, run.job_id)

    return remove


def _reserved(tx: Connection, torrent_id: str, job_id: str, *, yields: bool) -> bool:
    """Whether the torrent is this removal's to delete; from then on no download hands it over, until the removal has ended."""
    removal = tables.lock(tx, torrent_id)
    if removal == job_id:
        # An attempt before this one has looked. Nobody has handed the torrent over since.
        return True
    if removal is not None and yields and job_id < removal:
        # Two removals, each under one of a hybrid's ids, would wait for each other: the older one leaves it to the younger.
        return False
    if removal is not None:
        raise Snooze(f"removal {removal} is at work on torrent {torrent_id}", after=WAIT)
    if tables.in_use(tx, torrent_id):
        return False
    tables.reserve(tx, torrent_id, job_id)
    return True
