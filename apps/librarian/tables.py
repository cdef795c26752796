"""The librarian's tables, and the statements that run in the transactions of its jobs."""

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

from apps.common.database import JobId, UtcDateTime, create_view, engine_table, insert, now

MEDIA_TYPES = ("text", "audio")
ACTIVE = ("queued", "downloading")

metadata = MetaData()
KNOWN_MEDIA = "media_type IN ('text', 'audio')"

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("token_hash", String(64), nullable=False, unique=True),
)
users_by_name = Index("users_by_name", users.c.name, unique=True)
books = Table(
    "books",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("title", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("state", Text, CheckConstraint("state IN ('Archive', 'Library')"), nullable=False, server_default="Archive"),
)
media_assets = Table(
    "media_assets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("book_id", Integer, ForeignKey("books.id"), nullable=False),
    Column("media_type", Text, CheckConstraint(KNOWN_MEDIA), nullable=False),
    Column("status", Text, CheckConstraint("status IN ('wanted', 'available')"), nullable=False),
    Column("storage_path", Text),
    Column("source_url", Text),
    Column("torrent_id", String(40), index=True),
    Column("updated_at", UtcDateTime, nullable=False, default=now),
    UniqueConstraint("book_id", "media_type"),
)
# One row per info-hash that was ever requested. A job locks the row before it adds or removes the torrent.
# `removal` is the last job that began to remove it.
torrents = Table(
    "torrents",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("removal", JobId),
    Column("torrent", LargeBinary),
)
downloads = Table(
    "downloads",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("user_id", Integer, ForeignKey("users.id"), nullable=False, index=True),
    Column("book_id", Integer, ForeignKey("books.id"), nullable=False),
    Column("media_type", Text, CheckConstraint(KNOWN_MEDIA), nullable=False),
    Column("source", Text, nullable=False),
    Column("torrent_id", String(40), ForeignKey("torrents.id"), nullable=False, index=True),
)

# `create_view` creates this view, because the name of Interlock's view in it differs between the databases.
download_jobs = Table(
    "download_jobs",
    MetaData(),
    Column("id", JobId),
    Column("user_id", Integer),
    Column("book_id", Integer),
    Column("media_type", Text),
    Column("status", Text),
    Column("source", Text),
    Column("external_job_id", Text),
    Column("created_at_utc", UtcDateTime),
    Column("updated_at_utc", UtcDateTime),
    Column("completed_at_utc", UtcDateTime),
    Column("cancel_requested_at_utc", UtcDateTime),
    Column("first_not_found_at_utc", UtcDateTime),
    Column("failure_reason", Text),
    Column("row_version", Integer),
    Column("torrent_id", String(40)),
    Column("progress", Text),
)
DOWNLOAD_JOBS_SQL = """
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
    """Create the missing tables, and create or replace the view. Interlock's own tables must exist."""
    with engine.begin() as tx:
        metadata.create_all(tx)
        users_by_name.create(tx, checkfirst=True)
        create_view(tx, download_jobs, DOWNLOAD_JOBS_SQL)


# ---------------------------------------------------------------- torrents
def lock_torrent(tx: Connection, torrent_id: str, torrent: bytes | None = None) -> str | None:
    """Lock the torrent's row until the transaction ends, and return the active removal job, if there is one.

    Stores the .torrent file if one is given. An upsert, so that it also locks a row that does not exist yet.
    """
    upsert = insert(tx, torrents).values(id=torrent_id, torrent=torrent)
    keep = {"torrent": case((upsert.excluded.torrent.is_not(None), upsert.excluded.torrent), else_=torrents.c.torrent)}
    removal: str | None = tx.execute(
        upsert.on_conflict_do_update(index_elements=["id"], set_=keep).returning(torrents.c.removal)
    ).scalar_one()
    # A removal counts only while its job is active, so a removal that failed does not block the torrent.
    if removal is None:
        return None
    jobs = engine_table(tx.dialect, "jobs_now", "id", "phase")
    return tx.scalar(select(jobs.c.id).where(jobs.c.id == removal, jobs.c.phase.in_(("pending", "running"))))


def is_torrent_in_use(tx: Connection, torrent_id: str) -> bool:
    """Whether a download of this torrent is active, or a media asset uses it.

    One statement: a download ends and its asset appears in one transaction, and two statements could miss both.
    """
    active = exists().where(download_jobs.c.torrent_id == torrent_id, download_jobs.c.status.in_(ACTIVE))
    asset = exists().where(media_assets.c.torrent_id == torrent_id, media_assets.c.status == "available")
    return bool(tx.execute(select(active | asset)).scalar_one())


def reserve_torrent(tx: Connection, torrent_id: str, job_id: str) -> None:
    """Record that this removal works on the torrent. No download hands the torrent over until the job ends."""
    tx.execute(update(torrents).where(torrents.c.id == torrent_id).values(removal=job_id))


# ---------------------------------------------------------------- downloads
@dataclass(frozen=True)
class DownloadRequest:
    """The payload of a download job: the user, the book, the media type and the source."""

    user_id: int
    book_id: int
    media_type: str
    source: str
    torrent_id: str

    @property
    def unique_key(self) -> str:
        """The unique key of the job: a user has one active download per book and media type."""
        return f"{self.user_id}:{self.book_id}:{self.media_type}"


def job_unique_key(tx: Connection, job_id: str) -> str | None:
    """The unique key of a job."""
    jobs = engine_table(tx.dialect, "jobs", "id", "unique_key")
    return tx.scalar(select(jobs.c.unique_key).where(jobs.c.id == job_id))


def register_download(tx: Connection, job_id: str, request: DownloadRequest) -> None:
    """Insert the row of a download, unless it exists."""
    tx.execute(insert(tx, downloads).values(job_id=job_id, **asdict(request)).on_conflict_do_nothing())


def load_torrent_file(tx: Connection, torrent_id: str) -> bytes | None:
    """The stored .torrent file of this torrent, if there is one."""
    stored: bytes | None = tx.execute(select(torrents.c.torrent).where(torrents.c.id == torrent_id)).scalar_one()
    return stored


def store_asset(tx: Connection, request: DownloadRequest, storage_path: str) -> None:
    """Make the media asset available and update the state of the book. An existing `source_url` stays unchanged."""
    values = {
        "status": "available",
        "storage_path": storage_path,
        "torrent_id": request.torrent_id,
        "updated_at": now(),
    }
    upsert = insert(tx, media_assets).values(
        book_id=request.book_id, media_type=request.media_type, source_url=request.source, **values
    )
    tx.execute(upsert.on_conflict_do_update(index_elements=["book_id", "media_type"], set_=values))
    available = exists().where(media_assets.c.book_id == books.c.id, media_assets.c.status == "available")
    tx.execute(
        update(books).where(books.c.id == request.book_id).values(state=case((available, "Library"), else_="Archive"))
    )
