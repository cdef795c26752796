"""Commits the moves of several jobs in one transaction, on SQLite: the disk is synchronised once for all."""

from collections.abc import Sequence
from typing import Protocol

from ...core.job import Job
from ...core.transition import Move
from ...errors import InterlockError
from ..commit_boundary import MARK, RELEASE, Run, transaction_ended
from ..commit_group import CommitGroup, GroupTx, call_functions
from ..enqueue_plan import Statement
from ..types import GroupCommit
from .session import SqliteSession

UNDO = Statement("ROLLBACK TO SAVEPOINT interlock_commit", {}, answers=False)


class GroupWriter(Protocol):
    """The statements of several moves."""

    @property
    def session(self) -> SqliteSession: ...
    def lock_each(self, run: Run, moves: Sequence[Move]) -> list[Job]: ...
    def write_each(self, run: Run, moves: Sequence[Move]) -> bool: ...


class SqliteSavepoints:
    def __init__(self, run: Run) -> None:
        self._run = run
        run(MARK)

    def keep(self, move: Move) -> None:
        try:
            self._run(RELEASE)
        except Exception as error:
            raise transaction_ended(move) from error
        self._run(MARK)

    def undo(self) -> None:
        self._run(UNDO)


def commit_group(writer: GroupWriter, group: CommitGroup) -> GroupCommit:
    writer.session.check()
    file = writer.session.file
    with file.write_with_caller_code() as conn:
        run = file.converting_runner(conn)
        jobs = {job.id: job for job in writer.lock_each(run, group.in_order)}
        tx = GroupTx(conn, file.converting)
        called = call_functions(writer.session, group, jobs, tx, SqliteSavepoints(run))
        if called.done and not writer.write_each(run, called.done):
            raise InterlockError("A function in a group of commits changed the rows of a job. Nothing was stored.")
    return called.result()
