"""Commits the moves of several jobs in one transaction, on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from ...core.job import Job
from ...core.transition import Move
from ...errors import InterlockError
from ..codec import array, text_array
from ..codec import job as job_of
from ..commit_group import CommitGroup, GroupTx, call_functions
from ..types import GroupCommit
from .commit_single import check_open, send, timeouts, write_moves
from .rollback import rolled_back
from .session import PostgresSession, as_is

NEXT = b"RELEASE SAVEPOINT interlock_commit; SAVEPOINT interlock_commit"


class PostgresSavepoints:
    def __init__(self, conn: Connection[Any]) -> None:
        self._conn = conn

    def keep(self, move: Move) -> None:
        check_open(self._conn, move)
        # libpq sends both in one message. A cursor of psycopg would cost as much as a statement of the commit function.
        result = self._conn.pgconn.exec_(NEXT)
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result)

    def undo(self) -> None:
        self._conn.execute("ROLLBACK TO SAVEPOINT interlock_commit")


def commit_group(session: PostgresSession, group: CommitGroup, *, plain: bool) -> GroupCommit:
    session.check()
    with session.pool.connected() as conn, rolled_back(conn) as block:
        jobs = _begin(session, conn, group)
        called = call_functions(session, group, jobs, GroupTx(conn), PostgresSavepoints(conn))
        block.end()
        if called.done:
            _write(session, conn, called.done, plain=plain)
        not_stored = jobs.keys() - called.stored
        if left := [move for move in group.moves if move.job_id in not_stored]:
            send(conn, session.statement("renew_left", _fences(left)))
        conn.execute("COMMIT")
    return called.result()


def _begin(session: PostgresSession, conn: Connection[Any], group: CommitGroup) -> dict[str, Job]:
    """Lock the rows, and return the jobs whose fence matches."""
    with conn.pipeline():
        conn.execute("BEGIN")
        # First, because the server starts the timer of the whole transaction with the first limit that it is given.
        send(conn, session.statement("commit_timeouts", timeouts(group.timeout)))
        send(conn, session.statement("fixed_plans", {"local": True}))
        locked = send(conn, session.statement("lock_group", _fences(group.in_order)))
        send(conn, session.statement("group_timeouts", timeouts(group.timeout)))
    # Outside the pipeline, so that the server's timer for idle transactions runs.
    conn.execute("SAVEPOINT interlock_commit")
    jobs = [job_of(row, as_is) for row in locked.fetchall()]
    return {job.id: job for job in jobs}


def _fences(moves: Sequence[Move]) -> dict[str, Any]:
    return {
        "job_id": array(move.job_id for move in moves),
        "attempt": array(move.attempt for move in moves),
        "holder": array(move.holder for move in moves),
        "from_status": array(move.from_status for move in moves),
        "source": text_array(move.source for move in moves),
    }


def _write(session: PostgresSession, conn: Connection[Any], moves: Sequence[Move], *, plain: bool) -> None:
    with conn.pipeline():
        conn.execute("RELEASE SAVEPOINT interlock_commit")
        send(conn, session.statement("fixed_plans", {"local": True}))
        written = [send(conn, statement) for statement in write_moves(session, moves, plain=plain)]
    if len(written) > 1 or len(written[0].fetchall()[0][0] or ()) != len(moves):
        raise InterlockError("A function in a group of commits changed the rows of a job. Nothing was stored.")
