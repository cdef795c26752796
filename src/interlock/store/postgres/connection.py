"""One connection to PostgreSQL: how it is set up, and how a named statement runs on it."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

from psycopg import Connection, RawCursor

from ..enqueue_plan import Rows, Statement
from ..queryfile import to_positional

Run = Callable[[Statement], Rows]


@lru_cache(maxsize=512)
def native(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """A named query with the server's own placeholders, and the names of its values in order."""
    text, names = to_positional(sql)
    return text.encode(), names


def execute(conn: Connection[Any], sql: str, params: Mapping[str, Any]) -> RawCursor[Any]:
    """Run one named query.

    The driver would parse a text as long as ours at every call, because it does not cache it; so this sends the
    server's own placeholders. Results are binary, because the driver reads times and numbers faster from them than from
    text.
    """
    text, names = native(sql)
    return RawCursor(conn).execute(text, [params[name] for name in names], prepare=True, binary=True)


def prepare_session(conn: Connection[Any]) -> None:
    """Set up a new connection: its time zone is UTC, and behind a pooler it prepares no statements.

    A statement sets the time zone, because PgBouncer refuses `options` at startup; PgBouncer then preserves it.
    """
    conn.execute("SET TimeZone TO 'UTC'")
    if is_pooled(conn):
        # The next transaction may run in another session, which has none of our prepared statements.
        conn.prepare_threshold = None


def prepare_fixed_session(conn: Connection[Any], fixed_plans: str) -> None:
    """`prepare_session`, and fix the plans of the whole session, unless it is shared with others behind a pooler."""
    prepare_session(conn)
    if not is_shared(conn):
        execute(conn, fixed_plans, {"local": False})


def is_shared(conn: Connection[Any]) -> bool:
    """Whether the server's session behind this prepared connection belongs to a pooler, so nothing in it may be set."""
    return conn.prepare_threshold is None


def is_pooled(conn: Connection[Any]) -> bool:
    """Whether a pooler such as PgBouncer is between us and the server: it reports a different process id."""
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != conn.info.backend_pid


def runner(conn: Connection[Any]) -> Run:
    """A function that runs statements on this connection."""

    def run(statement: Statement) -> Rows:
        cursor = execute(conn, statement.sql, cast(dict[str, Any], statement.params))
        return cursor.fetchall() if statement.answers else ()

    return run
