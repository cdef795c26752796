"""Moves and takes on PostgreSQL, one by one inside a commit or in batches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import psycopg

from ...errors import InterlockError
from ...job import Job
from ...move import Move, Take
from ...records import Lease, Refusal
from ..codec import JOB_WIDTH, Hop, adopted, array, hops, is_id, refusal
from ..codec import job as job_of
from ..enqueue import Rows, Statement
from . import columns
from .pool import Pool, Run, collides, runner

T = TypeVar("T")


def as_is(value: Any) -> Any:
    """Times come from the driver as they are meant."""
    return value


class Settle:
    """The half of the store that writes. It needs `queries` and `pool`."""

    queries: dict[str, str]
    pool: Pool

    # ------------------------------------------------------------ one, inside a transaction
    def lock(self, run: Run, move: Move | Take) -> Job | None:
        if isinstance(move, Take):
            rows = run(Statement(self.queries["lock_waiting"], {"job_id": move.job_id, "version": move.version, "source": move.arrow.source}))
        else:
            rows = run(Statement(self.queries["lock"], {
                "job_id": move.job_id, "attempt": move.attempt, "holder": move.holder, "from_status": move.from_status, "source": move.source}))
        return job_of(rows[0], as_is) if rows else None

    def write(self, run: Run, move: Move | Take) -> bool:
        # From here on only our own statements run: planned once, and not anew for every commit.
        run(Statement(self.queries["steady"], {}))
        if isinstance(move, Take):
            return bool(run(Statement(self.queries["take"], columns.takes([move])))[0][0])
        return all(run(Statement(self.queries["move"], columns.hops([hop])))[0][0] for hop in hops(move))

    def standing(self, run: Run, move: Move | Take) -> Refusal | None:
        return self._standing(run, [move])[0]

    def _standing(self, run: Run, moves: Sequence[Move | Take]) -> list[Refusal | None]:
        """Per move what stands in its place, or None where that is what it asked for."""
        asked = [m for m in moves if is_id(m.job_id)]
        attempts = [m.attempt + 1 if isinstance(m, Take) else m.attempt for m in asked]
        rows = run(Statement(self.queries["present"], {"job_id": array(m.job_id for m in asked), "attempt": array(attempts)}))
        found = {row[0]: row for row in rows if row[0] is not None}
        return [refusal(move, found.get(move.job_id)) for move in moves]

    # ------------------------------------------------------------ many
    def _move(self, batch: Sequence[Move]) -> list[Refusal]:
        """One transaction: each move's hops in turn."""
        paths = [hops(move) for move in batch]
        if all(len(path) == 1 for path in paths):
            given = columns.hops([path[0] for path in paths])
            ids = [move.job_id for move in batch]
            write = partial(self._remarking, "lock_live", ids) if _remarks(paths) else self._steadily
            missing = _missing(batch, write("move", given))
            return self._refused(missing) if missing else []
        return self.pool.transact(lambda conn: self._walk(conn, batch, paths))

    def _walk(self, conn: psycopg.Connection[Any], batch: Sequence[Move], paths: Sequence[Sequence[Any]]) -> list[Refusal]:
        run = runner(conn)
        run(Statement(self.queries["steady"], {}))
        if _remarks(paths):
            run(Statement(self.queries["lock_live"], {"id": array(move.job_id for move in batch)}))
        missing: list[Move] = []
        walking = list(zip(batch, paths, strict=True))
        for step in range(2):
            walking = [(move, path) for move, path in walking if len(path) > step]
            if walking:
                moves = [move for move, _ in walking]
                missed = _missing(moves, run(Statement(self.queries["move"], columns.hops([path[step] for _, path in walking]))))
                if missed and step:
                    # The first arrow is written already: all or nothing, so the batch is undone and the culprit found alone.
                    raise InterlockError(f"the second arrow of a move of job {missed[0].job_id} does not begin where the first one ends")
                missing += missed
                walking = [(move, path) for move, path in walking if move not in missed]
        return [stands for stands in self._standing(run, missing) if stands is not None] if missing else []

    def _take(self, batch: Sequence[Take]) -> list[Refusal]:
        missing = _missing(batch, self._steadily("take", columns.takes(batch)))
        return self._refused(missing) if missing else []

    def _refused(self, moves: Sequence[Move | Take]) -> list[Refusal]:
        return self.pool.transact(lambda conn: [r for r in self._standing(runner(conn), moves) if r is not None])

    def _unstorable(self, move: Move | Take, error: Exception) -> Refusal:
        stands = self.pool.transact(lambda conn: self._standing(runner(conn), [move]))[0]
        shown = stands or Refusal(move.job_id, 0, 0, None, None, None)
        return replace(shown, error=str(error), collided=collides(error))

    def _adopt(self, query: str, by: str, kinds: Sequence[str], seconds: float, limit: int, **more: str) -> list[Lease]:
        given = {"by": by, "kinds": columns.names(kinds), "lease": seconds, "limit": limit} | more
        return [adopted(row, as_is, owner=by, seconds=seconds, missing_for=row[JOB_WIDTH + 5]) for row in self._steadily(query, given)]

    # ------------------------------------------------------------ running
    def _steadily(self, query: str, params: dict[str, Any]) -> Rows:
        return self.pool.steadily(self.queries["steady"], Statement(self.queries[query], params))[0]

    def _remarking(
        self, lock: str, ids: Sequence[str], query: str, params: dict[str, Any], *, answers: bool = True,
    ) -> Rows:
        """Lock the jobs, then run a statement that writes remarks, so that its snapshot is newer than the lock."""
        locked = Statement(self.queries[lock], {"id": array(ids)})
        writing = Statement(self.queries[query], params, answers=answers)
        return self.pool.steadily(self.queries["steady"], locked, writing)[1]


def _remarks(paths: Sequence[Sequence[Hop]]) -> bool:
    """Whether any of these moves writes a remark."""
    every = (hop for path in paths for hop in path)
    return any(hop.held_reason is not None or (hop.event is None and hop.ended_by is not None) for hop in every)


def _missing(batch: Sequence[T], rows: Rows) -> list[T]:
    done: set[int] = set(rows[0][0] or ())
    return [item for n, item in enumerate(batch, start=1) if n not in done]
