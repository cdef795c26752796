"""The courier's tables, next to the engine's in one database, and the queries that run in a job's transaction."""

import hashlib
from datetime import datetime
from typing import Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    false,
    func,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.engine.default import DefaultExecutionContext

from apps.common.database import JobId, UtcDateTime, advisory_lock, engine_table, insert, now


def path_hash(path: str) -> str:
    """Hash a path for the unique index: PostgreSQL cannot index the longest paths."""
    return hashlib.sha256(path.encode(errors="replace")).hexdigest()


def _hash_of_path(context: DefaultExecutionContext) -> str:
    return path_hash(context.get_current_parameters()["path"])  # type: ignore[no-untyped-call]


metadata = MetaData()

users = Table(
    "courier_users",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("language", Text, nullable=False),
    Column(
        "status",
        Text,
        CheckConstraint("status IN ('PENDING', 'ACTIVE', 'BLOCKED')"),
        nullable=False,
        server_default="PENDING",
    ),
    Column("asked_at", UtcDateTime, nullable=False),
    Column("decided_by", BigInteger),
    Column("decided_at", UtcDateTime),
    Column("decided_update", BigInteger),
)
# One row per path that was ever listed. Rows are never deleted, so an ID never means another file.
files = Table(
    "courier_files",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("parent_id", Integer, ForeignKey("courier_files.id"), index=True),
    Column("path", Text, nullable=False),
    Column("path_hash", String(64), nullable=False, unique=True, default=_hash_of_path),
    Column("name", Text, nullable=False),
    Column("is_folder", Boolean, nullable=False),
    Column("size", BigInteger),
    Column("md5", Text),
    Column("position", Integer, nullable=False, default=0, server_default="0"),
    Column("listed_at", UtcDateTime),
    Column("gone", Boolean, nullable=False, default=False, server_default=false()),
)
orders = Table(
    "courier_orders",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("user_id", BigInteger, ForeignKey("courier_users.id"), nullable=False, index=True),
    Column("file_id", Integer, ForeignKey("courier_files.id"), nullable=False),
    Column("card_id", BigInteger),
    Column("shown", Text),
    Column("open", Boolean, nullable=False, default=True, server_default=true(), index=True),
    Column("created_at", UtcDateTime, nullable=False, default=now),
)
deliveries = Table(
    "courier_deliveries",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("user_id", BigInteger, ForeignKey("courier_users.id"), nullable=False),
    Column("file_id", Integer, ForeignKey("courier_files.id"), nullable=False),
    Column("message_id", BigInteger, nullable=False),
    Column("doubted", Boolean, nullable=False),
    Column("sent_at", UtcDateTime, nullable=False, default=now),
)
# One row per delivery whose file may have arrived unnoticed, however the delivery ends.
doubts = Table(
    "courier_doubts",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("doubted_at", UtcDateTime, nullable=False, default=now),
)
sent_files = Table(
    "courier_sent_files",
    metadata,
    Column("content", String(200), primary_key=True),
    Column("telegram_file_id", Text, nullable=False),
    Column("sent_at", UtcDateTime, nullable=False, default=now),
)
tokens = Table(
    "courier_tokens",
    metadata,
    Column("service", String(40), primary_key=True),
    Column("settings_hash", String(64), nullable=False),
    Column("access", Text),
    Column("refresh", Text),
    Column("expires_at", UtcDateTime),
    Column("renewing_until", UtcDateTime),
    Column("generation", Integer, nullable=False, default=0, server_default="0"),
)


# ---------------------------------------------------------------- migration
def migrate(engine: Engine) -> None:
    """Create the missing tables. The bot and all workers may run this at the same time."""
    with engine.begin() as tx:
        advisory_lock(tx, "courier_migrate")
        metadata.create_all(tx)


# ---------------------------------------------------------------- users and files
def status_of(tx: Connection, user_id: int) -> str | None:
    """Return the status of a user, or None if unknown. The row is locked until the transaction ends."""
    found: str | None = tx.scalar(select(users.c.status).where(users.c.id == user_id).with_for_update(read=True))
    return found


def language_of(tx: Connection, user_id: int) -> str:
    """Return the Telegram language code of a user, or an empty string if unknown."""
    return tx.scalar(select(users.c.language).where(users.c.id == user_id)) or ""


def path_of(tx: Connection, file_id: int) -> str | None:
    """Return the path of a file on the disk, or None if it is gone."""
    found: str | None = tx.scalar(select(files.c.path).where(files.c.id == file_id, ~files.c.gone, ~files.c.is_folder))
    return found


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path is this folder or below it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def name_of(tx: Connection, file_id: int) -> str:
    """Return the name of a file, even if it is gone."""
    return tx.scalar(select(files.c.name).where(files.c.id == file_id)) or ""


# ---------------------------------------------------------------- files that Telegram has
def find_sent_file(tx: Connection, content: str) -> str | None:
    """Return Telegram's file ID of this content, if it was sent before."""
    found: str | None = tx.scalar(select(sent_files.c.telegram_file_id).where(sent_files.c.content == content))
    return found


def save_sent_file(tx: Connection, content: str, telegram_file_id: str) -> None:
    """Store Telegram's file ID of this content. The newest ID wins."""
    known = {"telegram_file_id": telegram_file_id, "sent_at": now()}
    tx.execute(
        insert(tx, sent_files)
        .values(content=content, **known)
        .on_conflict_do_update(index_elements=["content"], set_=known)
    )


def delete_sent_file(tx: Connection, content: str) -> None:
    """Delete the file ID of this content, because Telegram no longer knows it."""
    tx.execute(delete(sent_files).where(sent_files.c.content == content))


# ---------------------------------------------------------------- deliveries
def record_delivery(tx: Connection, job_id: str, user_id: int, file_id: int, message_id: int, *, doubted: bool) -> None:
    """Store that a file was sent as this message. With `doubted`, it may have been sent twice."""
    values = {"job_id": job_id, "user_id": user_id, "file_id": file_id, "message_id": message_id, "doubted": doubted}
    tx.execute(deliveries.insert().values(values))


def record_doubt(tx: Connection, job_id: str) -> None:
    """Store that the file of this delivery may have arrived."""
    tx.execute(insert(tx, doubts).values(job_id=job_id).on_conflict_do_nothing())


def has_doubt(tx: Connection, job_id: str) -> bool:
    """Return whether the file of this delivery may have arrived unnoticed."""
    return tx.scalar(select(doubts.c.job_id).where(doubts.c.job_id == job_id)) is not None


def receipt_state(tx: Connection, job_id: str, name: str) -> Literal["none", "asked", "applied"]:
    """Return the state of an external call of this job: never started, started without a known result, or done."""
    receipts = engine_table(tx.dialect, "receipts", "job_id", "name", "applied_at")
    found = tx.execute(
        select(receipts.c.applied_at).where(receipts.c.job_id == job_id, receipts.c.name == name)
    ).one_or_none()
    if found is None:
        return "none"
    return "asked" if found.applied_at is None else "applied"


def token_settings_hash(tx: Connection) -> str:
    """Return the hash of the secrets from the settings that the stored token is based on."""
    return tx.scalar(select(func.max(tokens.c.settings_hash))) or ""


def stuck_jobs(tx: Connection, kind: str, now: datetime, limit: int = 1000) -> list[tuple[str, str, datetime]]:
    """Return jobs of this kind with an expired lease, each with its state and last heartbeat, oldest heartbeat first.

    Workers may recover these jobs. The engine's own status reports them only after twice the lease.
    """
    executions = engine_table(tx.dialect, "executions", "job_id", "kind", "state", "heartbeat_at", "lease_expires_at")
    lease_expired, heartbeat_at = (
        type_coerce(executions.c.lease_expires_at, UtcDateTime) < now,
        type_coerce(executions.c.heartbeat_at, UtcDateTime),
    )
    # This repeats the condition of the engine's index, so that the query uses it.
    leased = text("status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED')")
    query = (
        select(executions.c.job_id, executions.c.state, heartbeat_at)
        .where(executions.c.kind == kind, lease_expired, leased)
        .order_by(heartbeat_at)
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in tx.execute(query)]
