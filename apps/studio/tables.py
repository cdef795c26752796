"""The studio's tables, in the same database as the engine's, and the view `studio_jobs`."""

import secrets
from typing import Literal, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    case,
    false,
    func,
    inspect,
    select,
    text,
)

from apps.common.database import JobId, UtcDateTime, advisory_lock, create_view, insert, now

Entry = Literal["grant", "reserve", "capture", "forfeit", "release"]
metadata = MetaData()
Number = BigInteger().with_variant(Integer, "sqlite")

users = Table(
    "studio_users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("key_hash", String(64), nullable=False, unique=True),
    Column("admin", Boolean, nullable=False, server_default=false()),
    Column("created_at", UtcDateTime, nullable=False, default=now),
)
sessions = Table(
    "studio_sessions",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    Column("user_id", Integer, ForeignKey("studio_users.id"), nullable=False, index=True),
    Column("expires_at", UtcDateTime, nullable=False),
)
# The secret that signs links to images. All processes on this database share it.
secret = Table(
    "studio_secret",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("value", String(64), nullable=False),
)
orders = Table(
    "studio_orders",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("user_id", Integer, ForeignKey("studio_users.id"), nullable=False),
    Column("prompt", Text, nullable=False),
    Column("size", Text, nullable=False),
    Column("seed", Integer),
    Column("cost", Integer, nullable=False),
    Index("studio_orders_by_user", "user_id", "job_id"),
)
entries = Table(
    "studio_entries",
    metadata,
    Column("id", Number, primary_key=True),
    Column("at", UtcDateTime, nullable=False, default=now),
    Column("user_id", Integer, ForeignKey("studio_users.id"), nullable=False),
    Column("job_id", JobId),
    Column(
        "entry", Text, CheckConstraint("entry IN ('grant', 'reserve', 'capture', 'forfeit', 'release')"), nullable=False
    ),
    Column("amount", Integer, CheckConstraint("amount > 0"), nullable=False),
    Column("note", Text),
    CheckConstraint("(entry = 'grant') = (job_id IS NULL)", name="studio_grants_have_no_job"),
    Index("studio_entries_by_user", "user_id", "entry", "amount"),
)
# Unique indexes: a job's credits are reserved once and settled once.
for _name, _which in (("reserved", "entry = 'reserve'"), ("settled", "entry IN ('capture', 'forfeit', 'release')")):
    Index(
        f"studio_{_name}_once", entries.c.job_id, unique=True, sqlite_where=text(_which), postgresql_where=text(_which)
    )
# The sums of each user's entries. A trigger adds every entry in the transaction that writes it.
balances = Table(
    "studio_balances",
    metadata,
    Column("user_id", Integer, ForeignKey("studio_users.id"), primary_key=True),
    *(Column(each, BigInteger, nullable=False, server_default="0") for each in get_args(Entry)),
)
assets = Table(
    "studio_assets",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("user_id", Integer, ForeignKey("studio_users.id"), nullable=False),
    Column("path", Text, nullable=False, unique=True),
    Column("content_type", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False, default=now),
    Index("studio_assets_by_user", "user_id", "job_id"),
)
# Decisions about dead letters, at most one for each.
reviews = Table(
    "studio_reviews",
    metadata,
    Column("job_id", JobId, primary_key=True),
    Column("decision", Text, CheckConstraint("decision IN ('redriven', 'closed')"), nullable=False),
    Column("successor", JobId, unique=True),
    Column("by", Text),
    Column("note", Text),
    Column("at", UtcDateTime, nullable=False, default=now),
)

# `create_view` creates this view, not the metadata: it reads an engine view whose name depends on the database.
jobs = Table(
    "studio_jobs",
    MetaData(),
    Column("id", JobId),
    Column("userId", Integer),
    Column("prompt", Text),
    Column("size", Text),
    Column("seed", Integer),
    Column("cost", Integer),
    Column("status", Text),
    Column("retryCount", Integer),
    Column("maxRetries", Integer),
    Column("idempotencyKey", Text),
    Column("createdAt", UtcDateTime),
    Column("startedAt", UtcDateTime),
    Column("updatedAt", UtcDateTime),
    Column("finishedAt", UtcDateTime),
    Column("dueAt", UtcDateTime),
    Column("resultUrl", Text),
    Column("lastError", Text),
    Column("version", Integer),
    Column("redriveOf", JobId),
)
# A permanent error uses no try of the engine, but counts as a failure here: such a dead letter still has tries left.
VIEW = """
CREATE VIEW studio_jobs AS
SELECT o.job_id AS id, o.user_id AS "userId", o.prompt, o.size, o.seed, o.cost, j.state AS status,
  j.tries - j.tries_left + CASE WHEN j.state = 'dead_letter' AND j.tries_left > 0 THEN 1 ELSE 0 END AS "retryCount",
  j.tries AS "maxRetries", j.idempotency_key AS "idempotencyKey",
  j.created_at AS "createdAt", j.started_at AS "startedAt", j.updated_at AS "updatedAt",
  j.finished_at AS "finishedAt", j.due_at AS "dueAt",
  a.path AS "resultUrl", j.last_error AS "lastError", j.version, j.redrive_of AS "redriveOf"
FROM studio_orders o JOIN {jobs_now} j ON j.id = o.job_id LEFT JOIN studio_assets a ON a.job_id = o.job_id
"""
# Triggers that reject any update or deletion of a ledger entry.
REFUSE = """
CREATE OR REPLACE FUNCTION studio_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the ledger is append-only' USING ERRCODE = 'restrict_violation'; END $$
"""
SEALS = {
    "sqlite": "CREATE TRIGGER studio_entries_{what} BEFORE {what} ON studio_entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "postgresql": "CREATE TRIGGER studio_entries_{what} BEFORE {what} ON studio_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION studio_append_only()",
}
# SQLite's REPLACE deletes without firing DELETE triggers, so an insert that would replace an entry is rejected.
NO_REPLACE = """
CREATE TRIGGER studio_entries_REPLACE BEFORE INSERT ON studio_entries
WHEN EXISTS (SELECT 1 FROM studio_entries WHERE id = NEW.id)
  OR (NEW.entry = 'reserve' AND EXISTS (SELECT 1 FROM studio_entries WHERE job_id = NEW.job_id AND entry = 'reserve'))
  OR (NEW.entry <> 'reserve' AND EXISTS (
    SELECT 1 FROM studio_entries WHERE job_id = NEW.job_id AND entry IN ('capture', 'forfeit', 'release')))
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
"""
_ADDED = ", ".join(
    f'"{each}" = "{each}" + CASE WHEN NEW.entry = \'{each}\' THEN NEW.amount ELSE 0 END' for each in get_args(Entry)
)
# The first entry creates the row. SQLite needs a plain INSERT: an outer INSERT OR REPLACE overrides a conflict clause.
ADD = f"""
  INSERT INTO studio_balances (user_id)
  SELECT NEW.user_id WHERE NOT EXISTS (SELECT 1 FROM studio_balances WHERE user_id = NEW.user_id){{unless}};
  UPDATE studio_balances SET {_ADDED} WHERE user_id = NEW.user_id;
"""  # noqa: S608 - built from constants of this module
ONCE = " ON CONFLICT DO NOTHING"
"""On PostgreSQL, two transactions may write a user's first entries at the same time."""
COUNT = {
    "sqlite": [
        f"CREATE TRIGGER studio_entries_counted AFTER INSERT ON studio_entries BEGIN {ADD.format(unless='')} END"
    ],
    "postgresql": [
        f"""CREATE OR REPLACE FUNCTION studio_count() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN {ADD.format(unless=ONCE)} RETURN NULL; END $$""",
        """CREATE TRIGGER studio_entries_counted AFTER INSERT ON studio_entries
        FOR EACH ROW EXECUTE FUNCTION studio_count()""",
    ],
}


def migrate(engine: Engine) -> None:
    """Create missing tables and triggers, and update the view. The engine's tables must exist already."""
    with engine.begin() as tx:
        advisory_lock(tx, "studio_migrate")
        seen = inspect(tx)
        fresh, uncounted = not seen.has_table(entries.name), not seen.has_table(balances.name)
        metadata.create_all(tx)
        if fresh:
            _seal(tx)
        if uncounted:
            _count(tx)
        tx.execute(insert(tx, secret).values(id=1, value=secrets.token_hex(32)).on_conflict_do_nothing())
        create_view(tx, jobs, VIEW)


def _seal(tx: Connection) -> None:
    on_postgres = tx.dialect.name == "postgresql"
    if on_postgres:
        tx.exec_driver_sql(REFUSE)
    for what in ("UPDATE", "DELETE", *(["TRUNCATE"] if on_postgres else [])):
        tx.exec_driver_sql(SEALS[tx.dialect.name].format(what=what))
    if not on_postgres:
        tx.exec_driver_sql(NO_REPLACE)


def _count(tx: Connection) -> None:
    """Create the trigger that updates balances, and add the entries that an earlier version wrote."""
    # Create the trigger first: on PostgreSQL it waits for open writers, and blocks new ones until this commits.
    for statement in COUNT[tx.dialect.name]:
        tx.exec_driver_sql(statement)
    sums = [func.sum(case((entries.c.entry == each, entries.c.amount), else_=0)) for each in get_args(Entry)]
    tx.execute(
        balances.insert().from_select(
            ["user_id", *get_args(Entry)], select(entries.c.user_id, *sums).group_by(entries.c.user_id)
        )
    )


def signing_secret(tx: Connection) -> bytes:
    """The secret that signs links."""
    return bytes.fromhex(tx.execute(select(secret.c.value)).scalar_one())
