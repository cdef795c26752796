"""The courier's own tables, beside the engine's in one database, and the statements on them that a job's transaction runs."""

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

from apps.common.database import JobId, Utc, insert, now, of_engine, turn


def path_hash(path: str) -> str:
    """What a path is known by: an index of PostgreSQL has no room for the longest paths themselves."""
    return hashlib.sha256(path.encode(errors="replace")).hexdigest()


def _hash_of_path(context: DefaultExecutionContext) -> str:
    return path_hash(context.get_current_parameters()["path"])  # type: ignore[no-untyped-call]


metadata = MetaData()

users = Table(
    "courier_users", metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False), Column("name", Text, nullable=False), Column("language", Text, nullable=False),
    Column("status", Text, CheckConstraint("status IN ('PENDING', 'ACTIVE', 'BLOCKED')"), nullable=False, server_default="PENDING"),
    Column("asked_at", Utc, nullable=False),
    Column("decided_by", BigInteger), Column("decided_at", Utc), Column("decided_update", BigInteger),
)
# A row per path that was ever listed. None is deleted, so that an id never comes to mean another file.
files = Table(
    "courier_files", metadata,
    Column("id", Integer, primary_key=True), Column("parent_id", Integer, ForeignKey("courier_files.id"), index=True),
    Column("path", Text, nullable=False), Column("path_hash", String(64), nullable=False, unique=True, default=_hash_of_path),
    Column("name", Text, nullable=False), Column("is_folder", Boolean, nullable=False),
    Column("size", BigInteger), Column("md5", Text), Column("position", Integer, nullable=False, default=0, server_default="0"),
    Column("listed_at", Utc), Column("gone", Boolean, nullable=False, default=False, server_default=false()),
)
orders = Table(
    "courier_orders", metadata,
    Column("job_id", JobId, primary_key=True), Column("user_id", BigInteger, ForeignKey("courier_users.id"), nullable=False, index=True),
    Column("file_id", Integer, ForeignKey("courier_files.id"), nullable=False),
    Column("card_id", BigInteger), Column("shown", Text), Column("open", Boolean, nullable=False, default=True, server_default=true(), index=True),
    Column("created_at", Utc, nullable=False, default=now),
)
deliveries = Table(
    "courier_deliveries", metadata,
    Column("job_id", JobId, primary_key=True), Column("user_id", BigInteger, ForeignKey("courier_users.id"), nullable=False),
    Column("file_id", Integer, ForeignKey("courier_files.id"), nullable=False),
    Column("message_id", BigInteger, nullable=False), Column("doubted", Boolean, nullable=False), Column("sent_at", Utc, nullable=False, default=now),
)
# A row as soon as nobody knows whether a file arrived: it stands however the delivery ends.
doubts = Table(
    "courier_doubts", metadata,
    Column("job_id", JobId, primary_key=True), Column("doubted_at", Utc, nullable=False, default=now),
)
sent_files = Table(
    "courier_sent_files", metadata,
    Column("content", String(200), primary_key=True), Column("telegram_file_id", Text, nullable=False), Column("sent_at", Utc, nullable=False, default=now),
)
tokens = Table(
    "courier_tokens", metadata,
    Column("service", String(40), primary_key=True), Column("given", String(64), nullable=False),
    Column("access", Text), Column("refresh", Text), Column("expires_at", Utc), Column("renewing_until", Utc),
    Column("generation", Integer, nullable=False, default=0, server_default="0"),
)


# ---------------------------------------------------------------- the database
def migrate(engine: Engine) -> None:
    """Create the tables that are not there yet. The bot and the workers may all do so at once, when they start together."""
    with engine.begin() as tx:
        turn(tx, "courier_migrate")
        metadata.create_all(tx)


# ---------------------------------------------------------------- people and files
def status_of(tx: Connection, user_id: int) -> str | None:
    """Whether this user is PENDING, ACTIVE or BLOCKED; None for a stranger. Nobody decides otherwise before the transaction has ended."""
    found: str | None = tx.scalar(select(users.c.status).where(users.c.id == user_id).with_for_update(read=True))
    return found


def language_of(tx: Connection, user_id: int) -> str:
    """The language in which this user is spoken to, as Telegram names it; of a stranger, none."""
    return tx.scalar(select(users.c.language).where(users.c.id == user_id)) or ""


def path_of(tx: Connection, file_id: int) -> str | None:
    """Where this file lies on the disk, unless it was seen to be gone."""
    found: str | None = tx.scalar(select(files.c.path).where(files.c.id == file_id, ~files.c.gone, ~files.c.is_folder))
    return found


def inside(path: str, folder: str) -> bool:
    """Whether a path lies in this folder or is the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def name_of(tx: Connection, file_id: int) -> str:
    """What this file is called, also when it is gone."""
    return tx.scalar(select(files.c.name).where(files.c.id == file_id)) or ""


# ---------------------------------------------------------------- what Telegram has already
def remembered(tx: Connection, content: str) -> str | None:
    """Telegram's own id of this content, if it was sent before."""
    found: str | None = tx.scalar(select(sent_files.c.telegram_file_id).where(sent_files.c.content == content))
    return found


def remember(tx: Connection, content: str, telegram_file_id: str) -> None:
    """This content need not be moved again: Telegram has it under this id. The newest id counts."""
    known = {"telegram_file_id": telegram_file_id, "sent_at": now()}
    tx.execute(insert(tx, sent_files).values(content=content, **known).on_conflict_do_update(index_elements=["content"], set_=known))


def forget(tx: Connection, content: str) -> None:
    """Telegram does not know this content's id any more."""
    tx.execute(delete(sent_files).where(sent_files.c.content == content))


# ---------------------------------------------------------------- a delivery
def delivered(tx: Connection, job_id: str, user_id: int, file_id: int, message_id: int, *, doubted: bool) -> None:
    """The file is there, as this message. `doubted` says that it may be there twice."""
    values = {"job_id": job_id, "user_id": user_id, "file_id": file_id, "message_id": message_id, "doubted": doubted}
    tx.execute(deliveries.insert().values(values))


def doubt(tx: Connection, job_id: str) -> None:
    """Nobody knows whether this delivery's file has arrived already."""
    tx.execute(insert(tx, doubts).values(job_id=job_id).on_conflict_do_nothing())


def doubted(tx: Connection, job_id: str) -> bool:
    """Whether that was ever so."""
    return tx.scalar(select(doubts.c.job_id).where(doubts.c.job_id == job_id)) is not None


def receipt(tx: Connection, job_id: str, name: str) -> Literal["none", "asked", "applied"]:
    """How an outside call of this job stands: never begun, begun with its end unknown, or done."""
    receipts = of_engine(tx.dialect, "receipts", "job_id", "name", "applied_at")
    found = tx.execute(select(receipts.c.applied_at).where(receipts.c.job_id == job_id, receipts.c.name == name)).one_or_none()
    if found is None:
        return "none"
    return "asked" if found.applied_at is None else "applied"


def token_given(tx: Connection) -> str:
    """By what the secrets are known that the settings gave for the disk."""
    return tx.scalar(select(func.max(tokens.c.given))) or ""


def silent(tx: Connection, kind: str, now: datetime, limit: int = 1000) -> list[tuple[str, str, datetime]]:
    """Jobs of this kind whose lease is over, each with its state and last heartbeat, the longest silence first.

    Workers may recover them from then on. The engine's own status reports them only after twice the lease.
    """
    held = of_engine(tx.dialect, "executions", "job_id", "kind", "state", "heartbeat_at", "lease_expires_at")
    over, since = type_coerce(held.c.lease_expires_at, Utc) < now, type_coerce(held.c.heartbeat_at, Utc)
    # This repeats the condition of the engine's index, so that the query uses it.
    leased = text("status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED')")
    asked = select(held.c.job_id, held.c.state, since).where(held.c.kind == kind, over, leased).order_by(since).limit(limit)
    return [(row[0], row[1], row[2]) for row in tx.execute(asked)]
