"""The library: its users, its books, and what a user may do about downloads. Every verb checks all of its input before it stores anything."""

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from apps.common.database import insert, reading
from apps.common.ids import is_id
from interlock import TransitionRefused

from . import tables
from .errors import BadName, Conflict, NotFound, UnknownMedia
from .jobs import Librarian
from .tables import ACTIVE, MEDIA_TYPES, Request, books, download_jobs, downloads, media_assets, users

LONGEST = 500
BIGGEST = 2**31 - 1


@dataclass(frozen=True)
class User:
    """Someone who may download."""

    id: int
    name: str
    token: str | None = field(default=None, repr=False)
    """Only of a user who was just added: it is kept nowhere, and shown this once."""


@dataclass(frozen=True)
class Book:
    """A book. Its state is `Library` if one of its media is here, else `Archive`."""

    id: int
    title: str
    author: str
    state: str


@dataclass(frozen=True)
class Asset:
    """One medium of a book."""

    book_id: int
    media_type: str
    status: str
    storage_path: str | None
    source_url: str | None
    torrent_id: str | None
    updated_at: datetime


@dataclass(frozen=True)
class Started:
    """The download that a request led to, and whether it is a new one."""

    id: str
    created: bool


@dataclass(frozen=True)
class Progress:
    """How far a download that is active is, in bytes, and qBittorrent's own word for what it does."""

    done: int
    total: int | None
    note: str


@dataclass(frozen=True)
class Download:
    """A download, as the view `download_jobs` has it."""

    id: str
    user_id: int
    book_id: int
    media_type: str
    status: str
    source: str
    external_job_id: str | None
    created_at_utc: datetime
    updated_at_utc: datetime
    completed_at_utc: datetime | None
    cancel_requested_at_utc: datetime | None
    first_not_found_at_utc: datetime | None
    failure_reason: str | None
    progress: Progress | None

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def being_canceled(self) -> bool:
        """Its reader has said so, and no worker has ended it yet."""
        return self.active and self.cancel_requested_at_utc is not None


class Library:
    """What the librarian does for people."""

    def __init__(self, librarian: Librarian) -> None:
        self._librarian = librarian
        self._engine = librarian.engine
        self._reading = reading(librarian.engine)

    # ------------------------------------------------------------ people and books
    def add_user(self, name: str) -> User:
        """A new user, with the token by which they are known from now on. No two have the same name."""
        token, called = secrets.token_urlsafe(32), _name("name", name)
        with self._engine.begin() as tx:
            added = insert(tx, users).values(name=called, token_hash=_hash(token)).on_conflict_do_nothing(index_elements=["name"])
            id = tx.scalar(added.returning(users.c.id))
        if id is None:
            raise Conflict(f"There is a user {called} already: give another name.")
        return User(id, called, token)

    def user_of(self, token: str) -> User:
        """Whose token this is."""
        with self._reading.begin() as tx:
            found = tx.execute(select(users.c.id, users.c.name).where(users.c.token_hash == _hash(token))).one_or_none()
        if found is None:
            raise NotFound("Nobody has this token: give the one that was shown when the user was added.")
        return User(found.id, found.name)

    def add_book(self, title: str, author: str = "") -> Book:
        """A new book, of which nothing is here yet."""
        values = {"title": _name("title", title), "author": _name("author", author) if author else ""}
        with self._engine.begin() as tx:
            return Book(**tx.execute(books.insert().values(values).returning(*books.c)).mappings().one())

    def books(self) -> list[Book]:
        """Every book, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [Book(**row) for row in tx.execute(select(books).order_by(books.c.id)).mappings()]

    def assets(self, book: int) -> list[Asset]:
        """The media of a book, as far as they are wanted or here."""
        columns = [column for column in media_assets.c if column.name != "id"]
        with self._reading.begin() as tx:
            _book(tx, book)
            rows = tx.execute(select(*columns).where(media_assets.c.book_id == book).order_by(media_assets.c.media_type.desc())).mappings()
            return [Asset(**row) for row in rows]

    # ------------------------------------------------------------ downloads
    def start_download(self, user: int, book: int, media_type: str, source: str | bytes) -> Started:
        """Download this medium of this book, from a magnet link or a .torrent. The same request finds the download that is active already.

        One user has one active download per medium of a book: a request for it from another source is a `Conflict`.
        """
        if media_type not in MEDIA_TYPES:
            raise UnknownMedia(f"A book has no medium {media_type[:40]!r}: give one of {', '.join(MEDIA_TYPES)}.")
        given = self._librarian.source(source)
        with self._engine.begin() as tx:
            _user(tx, user)
            _book(tx, book)
            # From here on no removal of this torrent can look and miss this download.
            tables.lock(tx, given.id, given.torrent)
            request = Request(user, book, media_type, given.text, given.id)
            job = self._librarian.fetch.using(conn=tx, unique_key=request.medium).enqueue(request)
            if not job.created and (active := self._torrent_of(tx, job.id)) != given.id:
                raise Conflict(f"Download {job.id} of this medium is active, from another source ({active}): wait for its end, or cancel it first.")
        return Started(job.id, job.created)

    def _torrent_of(self, tx: Connection, id: str) -> str:
        """The torrent of an active download. One that was driven again by a program that does not know us, and that nobody has run since, gets its row now."""
        known: str | None = tx.scalar(select(downloads.c.torrent_id).where(downloads.c.job_id == id))
        if known is None:
            request = Request(**self._librarian.app.get(id).payload["request"])
            tables.register(tx, id, request)
            known = request.torrent_id
        return known

    def downloads(self, user: int) -> list[Download]:
        """All downloads of this user, newest first."""
        with self._reading.begin() as tx:
            _user(tx, user)
            return [_download(row) for row in tx.execute(_VIEW.where(download_jobs.c.user_id == user).order_by(download_jobs.c.id.desc())).mappings()]

    def download(self, user: int, id: str) -> Download:
        """One download of this user. Another's is not found, as one that does not exist."""
        with self._reading.begin() as tx:
            asked = _VIEW.where(download_jobs.c.id == id, download_jobs.c.user_id == user)
            found = tx.execute(asked).mappings().one_or_none() if is_id(id) and _in_range(user) else None
        if found is None:
            raise NotFound(f"You have no download {id[:40]}: look at the list of yours.")
        return _download(found)

    def cancel(self, user: int, id: str) -> Download:
        """End a download of this user that is active. One that waits is `canceled` at once; one that is handed over is marked, and a worker ends it.

        Its files go afterwards.
        """
        found = self.download(user, id)
        if not found.active:
            raise Conflict(f"Download {id} is {found.status}: there is nothing left to cancel.")
        try:
            self._librarian.app.cancel(id, by=f"user:{user}")
        except TransitionRefused as error:
            raise Conflict(f"Download {id} was not cancelled: {error}") from error
        return self.download(user, id)


_VIEW = select(*(column for column in download_jobs.c if column.name not in ("row_version", "torrent_id")))


def _download(row: RowMapping) -> Download:
    fields: dict[str, Any] = dict(row)
    told = fields.pop("progress")
    if told is None:
        return Download(**fields, progress=None)
    done, total, note = json.loads(told)
    return Download(**fields, progress=Progress(int(done), None if total is None else int(total), note))


def _user(tx: Connection, id: int) -> None:
    if not _in_range(id) or tx.scalar(select(users.c.id).where(users.c.id == id)) is None:
        raise NotFound(f"There is no user {id}: add one first.")


def _book(tx: Connection, id: int) -> None:
    if not _in_range(id) or tx.scalar(select(books.c.id).where(books.c.id == id)) is None:
        raise NotFound(f"There is no book {id}: look at the list of books.")


def _in_range(id: int) -> bool:
    """Could a row have this id? The databases differ in what they make of a number that is too big for them."""
    return 0 < id <= BIGGEST



def _name(what: str, given: str) -> str:
    name = given.strip()
    if not name or len(name) > LONGEST or not name.isprintable():
        raise BadName(f"The {what} {given[:40]!r} cannot be kept: give 1 to {LONGEST} characters, all of them visible, in one line.")
    return name


def _hash(token: str) -> str:
    # No salt and no slow hash: a token is 32 random bytes, which nobody guesses.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
