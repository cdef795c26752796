"""Commits one move on the store's own connection.

That takes two round trips (three before PostgreSQL 17) beside those of the caller's function.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import psycopg
from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus

from ...core.job import Job
from ...core.transition import Move, Take
from ..codec import JOB_WIDTH, move_steps
from ..codec import job as job_of
from ..commit_boundary import FenceRefused, call_in_time, transaction_ended
from ..enqueue_plan import Statement
from ..plain_path import plain_finish
from ..tx import PlainTx
from ..types import Refusal
from . import columns
from .connection import Run, execute, runner
from .pool import is_silent
from .rollback import rolled_back
from .session import PostgresSession, as_is

TRANSACTION_TIMEOUT = 170_000
"""The server version that introduced `transaction_timeout`."""
Sent = RawCursor[Any]


class SingleWriter(Protocol):
    """The statements of one move."""

    @property
    def session(self) -> PostgresSession: ...
    def lock_statement(self, move: Move | Take) -> Statement: ...
    def write_statements(self, move: Move | Take) -> list[Statement]: ...
    def find_refusal(self, run: Run, move: Move | Take) -> Refusal | None: ...


def commit_single(writer: SingleWriter, move: Move | Take, body: Callable[[Any, Job], None], timeout: float) -> None:
    """Lock the rows, check the fence, call `body`, write and commit. Raises like `committing`."""
    with writer.session.pool.connected() as conn, rolled_back(conn) as block:
        job, transaction = _begin(writer, conn, move, timeout)
        call_in_time(writer.session, body, PlainTx(conn), job, move, timeout)
        block.end()
        check_open(conn, move)
        _end(writer, conn, move, job, transaction)


def send(conn: Connection[Any], statement: Statement) -> Sent:
    """Send one statement inside a pipeline. Read its rows after the pipeline."""
    return execute(conn, statement.sql, cast(Mapping[str, Any], statement.params))


def write_moves(session: PostgresSession, moves: Sequence[Move], *, plain: bool) -> list[Statement]:
    """The statements that carry out moves of locked rows, one after the other.

    Each returns a row with the places of what it moved. Common successes take the plain statement.
    """
    finishes = [plain_finish(move) if plain else None for move in moves]
    alike = {(each.source, each.target, each.actor) if each is not None else None for each in finishes}
    if len(alike) == 1 and None not in alike:
        asked = [each for each in finishes if each is not None]
        return [session.statement("finish", columns.finishes(asked))]
    paths = [move_steps(move) for move in moves]
    longest = max(len(path) for path in paths)
    return [
        session.statement("move", columns.steps([path[number] for path in paths if len(path) > number]))
        for number in range(longest)
    ]


def timeouts(timeout: float) -> dict[str, str]:
    # Zero would mean no limit, and the server counts no further than some weeks.
    return {"idle": f"{max(round(min(timeout, 2e6) * 1000), 1)}ms"}


def check_open(conn: Connection[Any], move: Move | Take) -> None:
    """Check that the function left the transaction open, and that the server has not ended the session."""
    if conn.closed or not is_silent(conn):
        # Inside a pipeline, the driver would not see the reason for which the server ended the session.
        conn.execute("")
    if conn.info.transaction_status is not TransactionStatus.INTRANS:
        raise transaction_ended(move)


def _begin(writer: SingleWriter, conn: Connection[Any], move: Move | Take, timeout: float) -> tuple[Job, str]:
    """Begin and lock. Return the job and the id of the transaction."""
    # A pipeline leaves the server's timer for idle transactions off, until the next statement. From 17 on, the server
    # has transaction_timeout as well; on an older one, the lock is that next statement.
    timed = conn.info.server_version >= TRANSACTION_TIMEOUT
    lock, locked = writer.lock_statement(move), None
    with conn.pipeline():
        conn.execute("BEGIN")
        send(conn, writer.session.statement("commit_timeouts", timeouts(timeout)))
        if timed:
            locked = send(conn, lock)
    row = (locked or send(conn, lock)).fetchone()
    if row is None:
        raise FenceRefused(writer.find_refusal(runner(conn), move))
    return job_of(row[:JOB_WIDTH], as_is), row[JOB_WIDTH]


def _end(writer: SingleWriter, conn: Connection[Any], move: Move | Take, job: Job, transaction: str) -> None:
    """Write the move and commit."""
    session = writer.session
    written: list[Sent] = []
    checked: Sent | None = None
    try:
        with conn.pipeline():
            send(conn, session.statement("fixed_plans", {"local": True}))
            written = [send(conn, statement) for statement in writer.write_statements(move)]
            checked = send(conn, session.statement("require_moved", _after(move, job) | {"transaction": transaction}))
            conn.execute("COMMIT")
    except psycopg.errors.DivisionByZero as error:
        # A constraint that is checked at COMMIT may raise the same error.
        if checked is None or checked.pgresult is not None:
            raise
        if all(cursor.fetchall()[0][0] for cursor in written):
            raise transaction_ended(move) from error
        conn.rollback()
        raise FenceRefused(writer.find_refusal(runner(conn), move)) from None


def _after(move: Move | Take, job: Job) -> dict[str, Any]:
    """What the rows contain after the move."""
    if isinstance(move, Take):
        return {"job_id": job.id, "attempt": job.attempt + 1, "status": "ABORTED", "version": job.version + 1}
    version = job.version + len(move.path)
    return {"job_id": job.id, "attempt": move.attempt, "status": move.to_status, "version": version}
