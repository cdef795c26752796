"""The actions of users and staff. Every action validates its input before it stores anything."""

import hashlib
import json
import re
import secrets
from typing import Any

from sqlalchemy import Connection, RowMapping, Text, cast, select

from apps.common.database import insert, missing_tables_message, read_only, table_exists
from apps.common.job_ids import MIN_PREFIX, is_id, parse_id_prefix
from interlock import TransitionRefused

from . import tables
from .errors import BadName, CommandError, Conflict, NotFound, NotMigrated, UnknownMedia
from .jobs import Librarian
from .models import Asset, Book, Download, Progress, StartedDownload, User
from .tables import MEDIA_TYPES, DownloadRequest, books, download_jobs, downloads, media_assets, users

PROGRAM = "python -m apps.librarian"
MAX_NAME = 500
MAX_ROW_ID = 2**31 - 1


class LibraryService:
    """The actions that a user may take."""

    def __init__(self, librarian: Librarian) -> None:
        self._librarian = librarian
        self._engine = librarian.engine
        self._reading = read_only(librarian.engine)

    # ------------------------------------------------------------ users and books
    def add_user(self, name: str) -> User:
        """Add a user with a unique name. The result has the access token."""
        token, valid_name = secrets.token_urlsafe(32), _check_name("name", name)
        with self._engine.begin() as tx:
            added = (
                insert(tx, users)
                .values(name=valid_name, token_hash=_hash(token))
                .on_conflict_do_nothing(index_elements=["name"])
            )
            id = tx.scalar(added.returning(users.c.id))
        if id is None:
            raise Conflict(f"There is already a user named {valid_name}. Choose another name.")
        return User(id, valid_name, token)

    def authenticate(self, token: str) -> User:
        """The user who has this token."""
        with self._reading.begin() as tx:
            found = tx.execute(select(users.c.id, users.c.name).where(users.c.token_hash == _hash(token))).one_or_none()
        if found is None:
            raise NotFound("This token is not valid. Use the token that was shown when the user was added.")
        return User(found.id, found.name)

    def add_book(self, title: str, author: str = "") -> Book:
        """Add a book without media."""
        values = {"title": _check_name("title", title), "author": _check_name("author", author) if author else ""}
        with self._engine.begin() as tx:
            return Book(**tx.execute(books.insert().values(values).returning(*books.c)).mappings().one())

    def books(self) -> list[Book]:
        """All books, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [Book(**row) for row in tx.execute(select(books).order_by(books.c.id)).mappings()]

    def assets(self, book: int) -> list[Asset]:
        """The media of a book that are available or wanted."""
        columns = [column for column in media_assets.c if column.name != "id"]
        query = select(*columns).where(media_assets.c.book_id == book).order_by(media_assets.c.media_type.desc())
        with self._reading.begin() as tx:
            _check_book(tx, book)
            return [Asset(**row) for row in tx.execute(query).mappings()]

    # ------------------------------------------------------------ downloads
    def start_download(self, user: int, book: int, media_type: str, source: str | bytes) -> StartedDownload:
        """Download the text or audio of a book from a magnet link or a .torrent file.

        A user has one active download per book and media type. The same request returns it; a request for another
        source raises `Conflict`.
        """
        if media_type not in MEDIA_TYPES:
            raise UnknownMedia(f"There is no media type {media_type[:40]!r}. Choose one of {', '.join(MEDIA_TYPES)}.")
        parsed = self._librarian.parse_source(source)
        with self._engine.begin() as tx:
            _check_user(tx, user)
            _check_book(tx, book)
            # From here on, a removal of this torrent sees this download.
            tables.lock_torrent(tx, parsed.id, parsed.torrent)
            request = DownloadRequest(user, book, media_type, parsed.text, parsed.id)
            job = self._librarian.download.using(conn=tx, unique_key=request.unique_key).enqueue(request)
            if not job.created and (active := self._active_torrent(tx, job.id)) != parsed.id:
                raise Conflict(
                    f"Download {job.id} of this medium is active from another source ({active}). "
                    "Wait until it ends, or cancel it first."
                )
        return StartedDownload(job.id, job.created)

    def _active_torrent(self, tx: Connection, id: str) -> str:
        """The torrent of an active download. Adds the missing row of a job that another program has redriven."""
        known: str | None = tx.scalar(select(downloads.c.torrent_id).where(downloads.c.job_id == id))
        if known is None:
            request = DownloadRequest(**self._librarian.app.get(id).payload["request"])
            tables.register_download(tx, id, request)
            known = request.torrent_id
        return known

    def downloads(self, user: int) -> list[Download]:
        """All downloads of this user, newest first."""
        query = _DOWNLOADS.where(download_jobs.c.user_id == user).order_by(download_jobs.c.id.desc())
        with self._reading.begin() as tx:
            _check_user(tx, user)
            return [_download(row) for row in tx.execute(query).mappings()]

    def download(self, user: int, id: str) -> Download:
        """One download of this user. The download of another user is reported as not found."""
        query = _DOWNLOADS.where(download_jobs.c.id == id, download_jobs.c.user_id == user)
        with self._reading.begin() as tx:
            found = tx.execute(query).mappings().one_or_none() if is_id(id) and _is_row_id(user) else None
        if found is None:
            raise NotFound(f"You have no download {id[:40]}. Look at your list of downloads.")
        return _download(found)

    def cancel(self, user: int, id: str) -> Download:
        """Cancel an active download of this user. A removal deletes its files later.

        A waiting download is `canceled` at once. A download that qBittorrent has gets a cancel request, and a worker
        ends it.
        """
        found = self.download(user, id)
        if not found.active:
            raise Conflict(f"Download {id} is already {found.status} and cannot be canceled.")
        try:
            self._librarian.app.cancel(id, by=f"user:{user}")
        except TransitionRefused as error:
            raise Conflict(f"Download {id} was not canceled: {error}") from error
        return self.download(user, id)


class StaffService(LibraryService):
    """The actions of staff at the command line: all users and all downloads."""

    def check_migrated(self) -> None:
        """Raise `NotMigrated` if the database has no tables. The check does not create a file."""
        if not table_exists(self._engine, download_jobs.name):
            raise NotMigrated(missing_tables_message(self._engine, "librarian"))

    def users(self) -> list[User]:
        """All users, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [User(row.id, row.name) for row in tx.execute(select(users.c.id, users.c.name).order_by(users.c.id))]

    def find_user(self, given: str | None) -> User:
        """The user with this id or name. None means the only user there is."""
        candidates = self.users()
        if given is not None and given.isascii() and given.isdecimal():
            candidates = [user for user in candidates if str(user.id) == given]
        elif given is not None:
            candidates = [user for user in candidates if user.name == given]
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            raise NotFound(f"There is no user {'yet' if given is None else given}. Add one with `user add NAME`.")
        ids = ", ".join(f"{user.id} ({user.name})" for user in candidates[:10])
        raise CommandError(
            f"There are several users. Pass --user with one of {ids}{', …' if len(candidates) > 10 else ''}."
        )

    def all_downloads(self) -> list[Download]:
        """The downloads of all users, newest first."""
        found = (download for user in self.users() for download in self.downloads(user.id))
        return sorted(found, key=lambda download: download.id, reverse=True)

    def find_download(self, id: str) -> Download:
        """The download of any user with this id or unique id prefix."""
        prefix = parse_id_prefix(id)
        if prefix is None:
            raise CommandError(
                f"{id!r} is not a download id. `list` shows the ids; their first {MIN_PREFIX} characters are enough."
            )
        query = select(downloads.c.job_id, downloads.c.user_id).where(cast(downloads.c.job_id, Text).startswith(prefix))
        with self._reading.begin() as tx:
            found = tx.execute(query.order_by(downloads.c.job_id).limit(2)).all()
        if not found:
            raise NotFound(f"There is no download {prefix}. `list` shows all downloads.")
        if len(found) > 1:
            raise CommandError(
                f"Several downloads begin with {prefix}, such as {found[0].job_id} and {found[1].job_id}. "
                "Use more of the id."
            )
        return self.download(found[0].user_id, found[0].job_id)

    def storage_path(self, download: Download) -> str | None:
        """The path of a completed download."""
        return self._librarian.app.get(download.id).result["path"] if download.status == "completed" else None

    def missing_worker_warning(self) -> str | None:
        """A warning if no worker runs."""
        if self._librarian.download.name not in self._librarian.app.status().orphaned_kinds:
            return None
        return f"No worker is running, so downloads do not progress. Start one with `{PROGRAM} run`."

    def stalled_warning(self) -> str | None:
        """A warning if downloads do not progress: no worker runs, or qBittorrent is unavailable."""
        errors = [external.error for external in self._librarian.app.status().external if external.error is not None]
        if (warning := self.missing_worker_warning()) is not None or not errors:
            return warning
        # Interlock puts the error class before the message.
        reason = re.sub(r"^[A-Za-z_.]+: ", "", errors[0])
        return f"qBittorrent is unavailable, so downloads do not progress. {reason}"


_DOWNLOADS = select(*(column for column in download_jobs.c if column.name not in ("row_version", "torrent_id")))


def _download(row: RowMapping) -> Download:
    fields: dict[str, Any] = dict(row)
    stored = fields.pop("progress")
    if stored is None:
        return Download(**fields, progress=None)
    done, total, note = json.loads(stored)
    return Download(**fields, progress=Progress(int(done), None if total is None else int(total), note))


def _check_user(tx: Connection, id: int) -> None:
    if not _is_row_id(id) or tx.scalar(select(users.c.id).where(users.c.id == id)) is None:
        raise NotFound(f"There is no user {id}. Add the user first.")


def _check_book(tx: Connection, id: int) -> None:
    if not _is_row_id(id) or tx.scalar(select(books.c.id).where(books.c.id == id)) is None:
        raise NotFound(f"There is no book {id}. Look at the list of books.")


def _is_row_id(id: int) -> bool:
    """Whether a row can have this id. The databases treat a number that is too big for them differently."""
    return 0 < id <= MAX_ROW_ID


def _check_name(what: str, given: str) -> str:
    name = given.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise BadName(f"The {what} {given[:40]!r} is not valid. Use 1 to {MAX_NAME} visible characters on one line.")
    return name


def _hash(token: str) -> str:
    # A token is 32 random bytes, so it needs no salt and no slow hash.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
