"""The librarian's own tables, beside the engine's in one database, and the statements on them that a job's transaction runs."""

from dataclasses import asdict, dataclass

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    case,
    exists,
    select,
    update,
)

from apps.common.database import JobId, Utc, create_view, insert, now, of_engine

MEDIA_TYPES = ("text", "audio")
ACTIVE = ("queued", "downloading")

metadata = MetaData()
KNOWN_MEDIA = "media_type IN ('text', 'audio')"

users = Table(
    "users", metadata,
    Column("id", Integer, primary_key=True), Column("name", Text, nullable=False), Column("token_hash", String(64), nullable=False, unique=True),
)
users_by_name = Index("users_by_name", users.c.name, unique=True)
books = Table(
    "books", metadata,
    Column("id", Integer, primary_key=True), Column("title", Text, nullable=False), Column("author", Text, nullable=False),
    Column("state", Text, CheckConstraint("state IN ('Archive', 'Library')"), nullable=False, server_default="Archive"),
)
media_assets = Table(
    "media_assets", metadata,
    Column("id", Integer, primary_key=True), Column("book_id", Integer, ForeignKey("books.id"), nullable=False),
    Column("media_type", Text, CheckConstraint(KNOWN_MEDIA), nullable=False),
    Column("status", Text, CheckConstraint("status IN ('wanted', 'available')"), nullable=False), Column("storage_path", Text), Column("source_url", Text),
    Column("torrent_id", String(40), index=True), Column("updated_at", Utc, nullable=False, default=now),
    UniqueConstraint("book_id", "media_type"),
)
# One row per info-hash that was ever asked for: whoever adds or removes that torrent locks it first. `removal` is the job that set out to remove it last.
torrents = Table(
    "torrents", metadata,
    Column("id", String(40), primary_key=True), Column("removal", JobId), Column("torrent", LargeBinary),
)
downloads = Table(
    "downloads", metadata,
    Column("job_id", JobId, primary_key=True), Column("user_id", Integer, ForeignKey("users.id"), nullable=False, index=True),
    Column("book_id", Integer, ForeignKey("books.id"), nullable=False), Column("media_type", Text, CheckConstraint(KNOWN_MEDIA), nullable=False),
    Column("source", Text, nullable=False), Column("torrent_id", String(40), ForeignKey("torrents.id"), nullable=False, index=True),
)

# The view is not the metadata's to create: it stands on the engine's, whose name is the one thing that differs between the databases.
download_jobs = Table(
    "download_jobs", MetaData(),
    Column("id", JobId), Column("user_id", Integer), Column("book_id", Integer), Column("media_type", Text), Column("status", Text), Column("source", Text),
    Column("external_job_id", Text), Column("created_at_utc", Utc), Column("updated_at_utc", Utc), Column("completed_at_utc", Utc),
    Column("cancel_requested_at_utc", Utc), Column("first_not_found_at_utc", Utc), Column("failure_reason", Text), Column("row_version", Integer),
    Column("torrent_id", String(40)), Column("progress", Text),
)
VIEW = """
CREATE VIEW download_jobs AS
SELECT j.id, d.user_id, d.book_id, d.media_type, j.state AS status, d.source, j.external_id AS external_job_id,
  j.created_at AS created_at_utc, j.updated_at AS updated_at_utc,
  CASE WHEN j.state = 'completed' THEN j.finished_at END AS completed_at_utc,
  j.cancel_requested_at AS cancel_requested_at_utc, j.missing_since AS first_not_found_at_utc,
  CASE WHEN j.state = 'failed' THEN j.last_error END AS failure_reason, j.version AS row_version,
  d.torrent_id, CASE WHEN j.state IN ('queued', 'downloading') THEN CAST(j.progress AS text) END AS progress
FROM downloads d JOIN {jobs_now} j ON j.id = d.job_id
"""


# ---------------------------------------------------------------- the database
def migrate(engine: Engine) -> None:
    """Create the tables and the view that are not there yet, and the view anew if it has other columns. The engine's own must be there already."""
    with engine.begin() as tx:
        metadata.create_all(tx)
        users_by_name.create(tx, checkfirst=True)
        create_view(tx, download_jobs, VIEW)


# ---------------------------------------------------------------- a torrent, under its lock
def lock(tx: Connection, torrent_id: str, torrent: bytes | None = None) -> str | None:
    """Hold this torrent's row until the transaction ends, and answer which removal is at work on it, if one is. A .torrent that is given is kept in it.

    A write and no plain lock, so that a row which is not there yet can be held as well, on both databases.
    """
    upsert = insert(tx, torrents).values(id=torrent_id, torrent=torrent)
    kept = {"torrent": case((upsert.excluded.torrent.is_not(None), upsert.excluded.torrent), else_=torrents.c.torrent)}
    removal: str | None = tx.execute(upsert.on_conflict_do_update(index_elements=["id"], set_=kept).returning(torrents.c.removal)).scalar_one()
    # It counts for as long as its job is active, and nobody need take it back: so a removal that ended badly, or one that wakes up after its end, jams nothing.
    jobs = of_engine(tx.dialect, "jobs_now", "id", "phase")
    return None if removal is None else tx.scalar(select(jobs.c.id).where(jobs.c.id == removal, jobs.c.phase.in_(("pending", "running"))))


def in_use(tx: Connection, torrent_id: str) -> bool:
    """Whether a download of this torrent is active, or an asset was made of it.

    One statement, since a download ends and its asset appears in one transaction: two statements could miss both.
    """
    active = exists().where(download_jobs.c.torrent_id == torrent_id, download_jobs.c.status.in_(ACTIVE))
    made = exists().where(media_assets.c.torrent_id == torrent_id, media_assets.c.status == "available")
    return bool(tx.execute(select(active | made)).scalar_one())


def reserve(tx: Connection, torrent_id: str, job_id: str) -> None:
    """Say that this removal is at work: no download hands the torrent over until its job has ended."""
    tx.execute(update(torrents).where(torrents.c.id == torrent_id).values(removal=job_id))


# ---------------------------------------------------------------- a download
@dataclass(frozen=True)
class Request:
    """What a download is of, for whom, and from where: the payload of its job."""

    user_id: int
    book_id: int
    media_type: str
    source: str
    torrent_id: str

    @property
    def medium(self) -> str:
        """Of this there is one active download: the key that the engine's index holds it by."""
        return f"{self.user_id}:{self.book_id}:{self.media_type}"


def unique_key(tx: Connection, job_id: str) -> str | None:
    """By what a job is the only one of its kind that is active."""
    jobs = of_engine(tx.dialect, "jobs", "id", "unique_key")
    return tx.scalar(select(jobs.c.unique_key).where(jobs.c.id == job_id))


def register(tx: Connection, job_id: str, request: Request) -> None:
    """Write a download's row, unless it is there."""
    tx.execute(insert(tx, downloads).values(job_id=job_id, **asdict(request)).on_conflict_do_nothing())


def torrent_of(tx: Connection, torrent_id: str) -> bytes | None:
    """The .torrent that was given for this torrent, if one ever was."""
    kept: bytes | None = tx.execute(select(torrents.c.torrent).where(torrents.c.id == torrent_id)).scalar_one()
    return kept


def shelve(tx: Connection, request: Request, storage_path: str) -> None:
    """The book has this medium now: its asset is available, and the book's state follows. Where an asset came from, once written, stays."""
    have = {"status": "available", "storage_path": storage_path, "torrent_id": request.torrent_id, "updated_at": now()}
    upsert = insert(tx, media_assets).values(book_id=request.book_id, media_type=request.media_type, source_url=request.source, **have)
    tx.execute(upsert.on_conflict_do_update(index_elements=["book_id", "media_type"], set_=have))
    available = exists().where(media_assets.c.book_id == books.c.id, media_assets.c.status == "available")
    tx.execute(update(books).where(books.c.id == request.book_id).values(state=case((available, "Library"), else_="Archive")))
