"""The job kinds of the librarian: `download` hands a torrent to qBittorrent and follows it, `remove` deletes it."""

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
from apps.common.database import make_engine
from interlock import (
    Answer,
    App,
    Backoff,
    Completed,
    Enqueued,
    External,
    Fail,
    Failed,
    InProgress,
    Job,
    Kind,
    Lifecycle,
    Refused,
    Retry,
    Snooze,
    SyncRun,
)

from . import tables
from .address_policy import check_addresses
from .clients.qbittorrent import Torrent
from .errors import BadSource, LibrarianError, LoginRefused
from .settings import Settings
from .tables import DownloadRequest
from .torrent_source import Source, parse_source

RECONCILE_BATCH = 100
MISSING_GRACE = 60.0
REMOVAL_RECHECK = 5.0
"""Seconds until a job checks again whether a removal has ended."""

DownloadKind = Kind[[DownloadRequest], "Media", Connection]
RemoveKind = Kind[[str], None, Connection]


class TorrentClient(Protocol):
    """The calls to qBittorrent that the jobs need. Each call may block."""

    def add(self, source: Source, save_path: str) -> str: ...
    def find_torrents(self, ids: Sequence[str]) -> Mapping[str, Torrent]: ...
    def remove(self, id: str) -> None: ...


@dataclass(frozen=True)
class Media:
    """The result of a download: its path, and its size in bytes."""

    path: str
    size: float


@dataclass(frozen=True)
class Librarian(Application):
    """The application with its two job kinds."""

    download: DownloadKind
    remove: RemoveKind
    allow_private_addresses: bool

    def parse_source(self, given: str | bytes) -> Source:
        """Parse a magnet link or .torrent file and check its addresses. Raises only BadSource."""
        return _parse_allowed(given, allow_private=self.allow_private_addresses)

    @override
    def _create_tables(self) -> None:
        tables.migrate(self.engine)


def build(
    settings: Settings,
    client: TorrentClient,
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> Librarian:
    """The librarian on this database with this client. It opens no connection. `lifespan` wraps each worker."""
    engine = make_engine(settings.database)
    # Users see their past downloads, so completed jobs are never deleted.
    app = App(settings.database, transaction=engine.begin, lifespan=lifespan, retention={"succeeded": None})
    remove = _declare_remove(app, engine, client, settings.downloads)
    download = _declare_download(app, engine, client, settings, remove)
    return Librarian(app, engine, download, remove, settings.allow_private_addresses)


def _parse_allowed(given: str | bytes, *, allow_private: bool) -> Source:
    source = parse_source(given)
    if not allow_private:
        check_addresses(source.addresses)
    return source


# ---------------------------------------------------------------- download
def _declare_download(
    app: App[Connection], engine: Engine, client: TorrentClient, settings: Settings, remove: RemoveKind
) -> DownloadKind:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "download")

    # A plain function, because a coroutine could be cancelled after the call to qBittorrent and before its answer:
    # the torrent of a cancelled job would stay in qBittorrent.
    @app.job(kind="download", lifecycle=lifecycle, tries=8, backoff=Backoff(10.0, cap=300.0))
    def download(run: SyncRun, request: DownloadRequest) -> External[Media]:
        torrent_id = request.torrent_id
        with engine.begin() as tx:
            removal = tables.lock_torrent(tx, torrent_id)
            # The row is missing only if a program without this app has redriven the job.
            tables.register_download(tx, run.job_id, request)
            torrent_file = tables.load_torrent_file(tx, torrent_id)
        if removal is not None:
            raise Snooze(f"torrent {torrent_id} is being removed; it is added again afterwards", after=REMOVAL_RECHECK)
        try:
            # Check the source again: a program with other settings may have stored it.
            source = _parse_allowed(torrent_file or request.source, allow_private=settings.allow_private_addresses)
            # This is not an effect with a receipt: adding a torrent twice is harmless, and a torrent that was
            # deleted in the meantime must be added again.
            external_id = client.add(source, str(settings.downloads / torrent_id))
        except BadSource as error:
            raise Fail(str(error)) from None
        except LibrarianError as error:
            raise Retry(str(error), after=error.retry_after if isinstance(error, LoginRefused) else None) from error
        if app.get(run.job_id).state == "canceled":
            # This worker lost its lease before the call, and the removal may have run before the torrent was added.
            remove.enqueue(torrent_id)
        return External(external_id)

    _add_reconciler(download, client, settings)
    _add_hooks(download, remove)
    return download


def _add_reconciler(download: DownloadKind, client: TorrentClient, settings: Settings) -> None:
    @download.reconcile(every=settings.poll, batch=RECONCILE_BATCH, grace=MISSING_GRACE)
    async def reconcile(ids: Sequence[str]) -> Mapping[str, Answer[Media]]:  # pyright: ignore[reportUnusedFunction]
        # Both the requests and the checks of paths on disk may block.
        return await asyncio.to_thread(
            lambda: {
                id: reconcile_torrent(torrent, settings.downloads) for id, torrent in client.find_torrents(ids).items()
            }
        )


def _add_hooks(download: DownloadKind, remove: RemoveKind) -> None:
    """Register the hooks that write in the transactions of a download's transitions."""

    @download.admit
    def admit(tx: Connection, job: Enqueued, request: DownloadRequest) -> None:  # pyright: ignore[reportUnusedFunction]
        if tables.job_unique_key(tx, job.id) != request.unique_key:
            raise Refused(
                f"Start a download with `start_download`, or with the unique key {request.unique_key!r}: "
                "a user has one active download per medium."
            )
        tables.register_download(tx, job.id, request)

    @download.commit
    def store_asset(tx: Connection, job: Job, media: Media) -> None:  # pyright: ignore[reportUnusedFunction]
        tables.store_asset(tx, _request(job), media.path)

    @download.on_enter("canceled")
    def schedule_removal(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        # One removal per canceled download, not one per torrent: a removal that has already decided to keep the
        # torrent because of this download would not run again.
        remove.using(conn=tx).enqueue(_request(job).torrent_id)


def _request(job: Job) -> DownloadRequest:
    return DownloadRequest(**job.payload["request"])


def reconcile_torrent(torrent: Torrent, downloads: Path) -> Answer[Media]:
    """Translate the state of a torrent in qBittorrent into an answer for its download."""
    if torrent.error:
        return Failed(f"qbittorrent_error: {torrent.state}")
    if torrent.complete:
        if not is_inside(torrent.content_path, downloads):
            return Failed(f"unsafe_path: qBittorrent stores {torrent.content_path!r} outside the downloads directory")
        return Completed(Media(os.path.normpath(torrent.content_path), torrent.done))
    return InProgress(torrent.done, torrent.total, torrent.state) if torrent.active else InProgress()


def is_inside(path: str, directory: Path) -> bool:
    """Whether a path is below a directory, as written and, if it is visible here, after following its links."""
    found = Path(os.path.normpath(path))
    if not found.is_absolute() or directory not in found.parents:
        return False
    # qBittorrent may run as another user, so a path that cannot be read here is judged as written.
    if not os.path.exists(found):  # noqa: PTH110 - `Path.exists` raises PermissionError
        return True
    return Path(os.path.realpath(directory)) in Path(os.path.realpath(found)).parents


# ---------------------------------------------------------------- remove
def _declare_remove(app: App[Connection], engine: Engine, client: TorrentClient, downloads: Path) -> RemoveKind:
    def reserve_all(ids: Iterable[str], torrent_id: str, job_id: str) -> bool:
        with engine.begin() as tx:
            return all(_reserve(tx, id, job_id, yields=id != torrent_id) for id in sorted(ids))

    def is_ours(torrent: Torrent) -> bool:
        """Whether the librarian added the torrent, and it was not moved since."""
        saved = Path(os.path.normpath(torrent.save_path))
        return saved.parent == downloads and saved.name in torrent.ids

    def delete(torrent_id: str, job_id: str) -> bool:
        """Delete the torrent with its files, unless another download needs it under its other id (a hybrid)."""
        torrent = client.find_torrents([torrent_id]).get(torrent_id)
        if torrent is None or not is_ours(torrent):
            return False
        if not reserve_all([id for id in torrent.ids if len(id) == len(torrent_id)], torrent_id, job_id):
            return False
        client.remove(torrent_id)
        return True

    @app.job(kind="remove", tries=20, backoff=Backoff(5.0, cap=900.0))
    def remove(run: SyncRun, torrent_id: str) -> None:
        if reserve_all([torrent_id], torrent_id, run.job_id):
            # Deleting twice is harmless. It is an effect because of its fence: a stale worker, whose job has ended
            # elsewhere, is refused here and cannot delete the torrent of a newer download.
            run.effect("delete", on_doubt="retry")(delete, torrent_id, run.job_id)

    return remove


def _reserve(tx: Connection, torrent_id: str, job_id: str, *, yields: bool) -> bool:
    """Reserve a torrent for this removal, so that no download hands it over until the removal ends.

    Returns false if the torrent is in use.
    """
    removal = tables.lock_torrent(tx, torrent_id)
    if removal == job_id:
        # An earlier attempt reserved it, and no download has handed it over since.
        return True
    if removal is not None and yields and job_id < removal:
        # Two removals that each hold one id of a hybrid would wait for each other: the older one gives way.
        return False
    if removal is not None:
        raise Snooze(f"removal {removal} works on torrent {torrent_id}", after=REMOVAL_RECHECK)
    if tables.is_torrent_in_use(tx, torrent_id):
        return False
    tables.reserve_torrent(tx, torrent_id, job_id)
    return True
