"""Moves and takes on PostgreSQL: in batches, or one inside a commit."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import psycopg

from ...core.job import Job
from ...core.transition import Move, Take
from ...errors import InterlockError, Unavailable
from .. import caller_connection
from ..bisect import bisect
from ..codec import JOB_WIDTH, MoveStep, array, each_once, is_id, move_steps, refusal
from ..codec import job as job_of
from ..commit_boundary import FenceRefused, too_long
from ..commit_group import CommitGroup, GroupBody
from ..dependents import Ended, resolving
from ..enqueue_plan import Rows, Statement
from ..plain_path import Fallbacks, PlainFinish, plain_finish
from ..retry import COMMIT_TRIES, retry
from ..types import GroupCommit, Refusal
from . import columns
from .commit_group import commit_group
from .commit_single import commit_single, write_moves
from .connection import Run, runner
from .flow import PostgresFlow
from .pool import collides, is_database_error, should_retry, was_idle_too_long
from .session import PostgresSession, as_is

T = TypeVar("T")
NOT_IN_STEP = "IL001"
"""The SQLSTATE of a `finish` in which an execution matches its move and its job does not."""


class PostgresTransitions:
    def __init__(self, session: PostgresSession, flow: PostgresFlow) -> None:
        self.session = session
        self._flow = flow
        self.plain = True
        """Whether successes try the plain statement first."""
        self.fallbacks = Fallbacks("finish")

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        self.session.check()
        each_once(moves)
        refusals: list[Refusal] = []
        ordered = sorted(moves, key=lambda m: (m.job_id, m.attempt))
        with resolving(self._flow.resolve_ended) as ended:
            culprits = bisect(ordered, lambda batch: refusals.extend(self._move(batch, ended)), is_database_error)
        return refusals + [self._unstorable(move, error) for move, error in culprits]

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        self.session.check()
        each_once(takes)
        refusals: list[Refusal] = []
        ordered = sorted(takes, key=lambda t: t.job_id)
        with resolving(self._flow.resolve_ended) as ended:
            culprits = bisect(ordered, lambda batch: refusals.extend(self._take(batch, ended)), is_database_error)
        return refusals + [self._unstorable(take, error) for take, error in culprits]

    def commit(
        self,
        move: Move | Take,
        body: Callable[[Any, Job], None],
        *,
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        timeout: float = 60.0,
    ) -> Refusal | None:
        session = self.session
        session.check()

        def once() -> None:
            if transaction is not None:
                caller_connection.commit(session, self, transaction, move, ended.watch(body), timeout)
                return
            commit_single(self, move, ended.watch(body), timeout)

        try:
            with resolving(self._flow.resolve_ended) as ended:
                retry(once, should_retry, tries=COMMIT_TRIES)
        except FenceRefused as refused:
            return refused.refusal
        except Unavailable as error:
            if was_idle_too_long(error):
                raise too_long(move, timeout) from error
            raise
        return None

    def commit_group(
        self,
        moves: Sequence[Move],
        body: GroupBody,
        *,
        together: bool = False,
        timeout: float = 60.0,
    ) -> GroupCommit:
        with resolving(self._flow.resolve_ended) as ended:
            group = CommitGroup(moves, ended.watch_group(body), together, timeout)
            return commit_group(self.session, group, plain=self.plain)

    # ------------------------------------------------------------ one, inside a transaction
    def lock(self, run: Run, move: Move | Take) -> Job | None:
        rows = run(self.lock_statement(move))
        return job_of(rows[0][:JOB_WIDTH], as_is) if rows else None

    def lock_statement(self, move: Move | Take) -> Statement:
        if isinstance(move, Take):
            given: dict[str, Any] = {"job_id": move.job_id, "version": move.version, "source": move.arrow.source}
            return self.session.statement("lock_waiting", given)
        given = {
            "job_id": move.job_id,
            "attempt": move.attempt,
            "holder": move.holder,
            "from_status": move.from_status,
            "source": move.source,
        }
        return self.session.statement("lock", given)

    def write(self, run: Run, move: Move | Take) -> bool:
        # Only our own statements run from here on, with plans that are not made anew for every commit.
        run(self.session.statement("fixed_plans", {"local": True}))
        return all(run(statement)[0][0] for statement in self.write_statements(move))

    def write_statements(self, move: Move | Take) -> list[Statement]:
        """The statements that carry out a move, each of which returns a row with the places of what it moved."""
        if isinstance(move, Take):
            return [self.session.statement("take", columns.takes([move]))]
        return write_moves(self.session, [move], plain=self.plain)

    def find_refusal(self, run: Run, move: Move | Take) -> Refusal | None:
        return self._find_refusals(run, [move])[0]

    def _find_refusals(self, run: Run, moves: Sequence[Move | Take]) -> list[Refusal | None]:
        """For each move its refusal, or None if it was carried out already."""
        asked = [m for m in moves if is_id(m.job_id)]
        attempts = [m.attempt + 1 if isinstance(m, Take) else m.attempt for m in asked]
        given = {"job_id": array(m.job_id for m in asked), "attempt": array(attempts)}
        found = {row[0]: row for row in run(self.session.statement("present", given)) if row[0] is not None}
        return [refusal(move, found.get(move.job_id)) for move in moves]

    # ------------------------------------------------------------ many
    def _move(self, batch: Sequence[Move], ended: Ended) -> list[Refusal]:
        """Write plain successes with one statement for each transition, and all other moves in one transaction."""
        others = self._finish_plainly(batch, ended) if self.plain else batch
        return self._move_together(others, ended) if others else []

    def _finish_plainly(self, batch: Sequence[Move], ended: Ended) -> list[Move]:
        """Write the plain successes. Return the moves that the general statement must carry out or refuse."""
        groups: dict[tuple[str, str, str], dict[str, PlainFinish]] = {}
        for move in batch:
            if (plain := plain_finish(move)) is not None:
                groups.setdefault((plain.source, plain.target, plain.actor), {})[move.job_id] = plain
        finished: set[str] = set()
        for group in groups.values():
            asked = list(group.values())
            try:
                rows = self.session.run_with_fixed_plan("finish", columns.finishes(asked))
            except psycopg.Error as error:
                if error.sqlstate != NOT_IN_STEP:
                    raise
                self.fallbacks.add(str(error), count=len(asked))
            else:
                ended.note(rows[0][1])
                done = [asked[int(n) - 1].job_id for n in rows[0][0] or ()]
                finished.update(done)
                if len(done) < len(asked):
                    self.fallbacks.add("another attempt, holder, status or state", count=len(asked) - len(done))
        return [move for move in batch if move.job_id not in finished]

    def _move_together(self, batch: Sequence[Move], ended: Ended) -> list[Refusal]:
        """Write the batch in one transaction, the steps of each move in turn."""
        session = self.session
        paths = [move_steps(move) for move in batch]
        if all(len(path) == 1 for path in paths):
            given = columns.steps([path[0] for path in paths])
            if _writes_notes(paths):
                rows = session.run_locked("lock_live", [move.job_id for move in batch], "move", given)
            else:
                rows = session.run_with_fixed_plan("move", given)
            ended.note(rows[0][1])
            return self._read_refusals(_missing(batch, rows))
        return session.pool.transact(lambda conn: self._write_steps(conn, batch, paths, ended))

    def _write_steps(
        self, conn: psycopg.Connection[Any], batch: Sequence[Move], paths: Sequence[Sequence[MoveStep]], ended: Ended
    ) -> list[Refusal]:
        session, run = self.session, runner(conn)
        run(session.statement("fixed_plans", {"local": True}))
        if _writes_notes(paths):
            run(session.statement("lock_live", {"id": array(move.job_id for move in batch)}))
        missing: list[Move] = []
        pending = list(zip(batch, paths, strict=True))
        for number in range(2):
            pending = [(move, path) for move, path in pending if len(path) > number]
            if pending:
                steps = columns.steps([path[number] for _, path in pending])
                rows = run(session.statement("move", steps))
                ended.note(rows[0][1])
                missed = _missing([move for move, _ in pending], rows)
                if missed and number:
                    # The first transition is written already: the batch is rolled back, and the culprit is found alone.
                    raise InterlockError(
                        f"The second transition of a move of job {missed[0].job_id} does not begin where the first "
                        "ends."
                    )
                missing += missed
                pending = [(move, path) for move, path in pending if move not in missed]
        return [refused for refused in self._find_refusals(run, missing) if refused is not None] if missing else []

    def _take(self, batch: Sequence[Take], ended: Ended) -> list[Refusal]:
        rows = self.session.run_with_fixed_plan("take", columns.takes(batch))
        ended.note(rows[0][1])
        return self._read_refusals(_missing(batch, rows))

    def _read_refusals(self, moves: Sequence[Move | Take]) -> list[Refusal]:
        if not moves:
            return []
        found = self.session.pool.transact(lambda conn: self._find_refusals(runner(conn), moves))
        return [refused for refused in found if refused is not None]

    def _unstorable(self, move: Move | Take, error: Exception) -> Refusal:
        present = self.session.pool.transact(lambda conn: self._find_refusals(runner(conn), [move]))[0]
        shown = present or Refusal(move.job_id, 0, 0, None, None, None)
        return replace(shown, error=str(error), collided=collides(error))


def _writes_notes(paths: Sequence[Sequence[MoveStep]]) -> bool:
    """Whether any of these moves writes an audit note."""
    every = (step for path in paths for step in path)
    return any(step.held_reason is not None or (step.event is None and step.ended_by is not None) for step in every)


def _missing(batch: Sequence[T], rows: Rows) -> list[T]:
    done: set[int] = set(rows[0][0] or ())
    return [item for n, item in enumerate(batch, start=1) if n not in done]
