"""Moves and takes on SQLite, one by one inside a commit or in batches."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import InterlockError
from ...job import Job
from ...move import Move, Take
from ...records import Refusal
from ..codec import Hop, hops, refusal, take_columns
from ..codec import job as job_of
from ..commit import Run
from ..enqueue import Statement
from . import rows
from .file import File, runner
from .moment import Moment, when

Row = dict[str, Any]

LONG = 16_384
_RESULT = Hop._fields.index("result")
_SHOWN = Hop._fields.index("progress")
_COMMON = (*Hop._fields[1:_RESULT], *Hop._fields[_RESULT + 1:_SHOWN])


class Settle:
    """The half of the store that settles. It needs `queries`, `file` and `moment`."""

    queries: dict[str, str]
    file: File

    def moment(self) -> Moment:
        raise NotImplementedError

    # ------------------------------------------------------------ one, inside a transaction
    def lock(self, run: Run, move: Move | Take) -> Job | None:
        run(Statement(self.queries["lock.file"], {}, answers=False))
        if isinstance(move, Take):
            found = run(Statement(self.queries["lock_waiting"], {"job_id": move.job_id, "version": move.version, "source": move.arrow.source}))
        else:
            found = run(Statement(self.queries["lock"], {
                "job_id": move.job_id, "attempt": move.attempt, "holder": move.holder, "from_status": move.from_status, "source": move.source}))
        return job_of(found[0], when) if found else None

    def write(self, run: Run, move: Move | Take) -> bool:
        return not self._carry_out(run, [move], self.moment())

    def standing(self, run: Run, move: Move | Take) -> Refusal | None:
        return self._standing(run, [move])[0]

    def _standing(self, run: Run, moves: Sequence[Move | Take]) -> list[Refusal | None]:
        """Per move what stands in its place, or None where that is what it asked for."""
        asked = [(move.job_id, move.attempt + 1 if isinstance(move, Take) else move.attempt) for move in moves]
        found = {row[0]: row for row in run(Statement(self.queries["present"], {"asked": rows.array(asked)}))}
        return [refusal(move, found.get(move.job_id)) for move in moves]

    # ------------------------------------------------------------ many
    def _settle(self, batch: Sequence[Move | Take]) -> list[Refusal]:
        """One transaction for all of them; a refused one does not touch the others."""
        with self.file.write() as conn:
            run = runner(conn)
            missing = self._carry_out(run, batch, self.moment())
            return [stands for stands in self._standing(run, missing) if stands is not None] if missing else []

    def _carry_out(self, run: Run, batch: Sequence[Move | Take], now: Moment) -> list[Move | Take]:
        """Write each; answers those whose rows are not what they were decided on."""
        missing: list[Move | Take] = [take for take in batch if isinstance(take, Take) and not self._take(run, take, now)]
        walking = [(move, hops(move)) for move in batch if isinstance(move, Move)]
        step = 0
        while walking:
            walked = self._walk(run, [path[step] for _, path in walking], now)
            missed = [move for move, _ in walking if move.job_id not in walked]
            if missed and step:
                # The first arrow is written already: all or nothing, so the transaction is undone and the culprit found alone.
                raise InterlockError(f"the second arrow of a move of job {missed[0].job_id} does not begin where the first one ends")
            missing += missed
            step += 1
            walking = [(move, path) for move, path in walking if len(path) > step and move.job_id in walked]
        return missing

    def _take(self, run: Run, take: Take, now: Moment) -> bool:
        row = take_columns(take) | {"now": now.text}
        if not run(Statement(self.queries["take"], row)):
            return False
        run(Statement(self.queries["take.execution"], row, answers=False))
        run(Statement(self.queries["take.audit"], row, answers=False))
        return True

    def _walk(self, run: Run, step: Sequence[Hop], now: Moment) -> set[str]:
        """One hop of each; answers the jobs that made it."""
        groups: dict[tuple[Any, ...], dict[str, str | None]] = {}
        shown = {hop.job_id: hop[_SHOWN:] for hop in step if hop.progress is not None or hop.usage is not None}
        for hop in step:
            # A long result stands alone: the list of a group's results is one value.
            alone = hop.job_id if hop.result is not None and len(hop.result) > LONG else None
            groups.setdefault((alone, *hop[1:_RESULT], *hop[_RESULT + 1:_SHOWN]), {})[hop.job_id] = hop.result
        walked: set[str] = set()
        for common, results in groups.items():
            given: Row = dict(zip(_COMMON, common[1:], strict=True))
            given |= {"now": now.text, "now_us": now.us, "due_at": now.after(given["delay"]), "check_at": now.after(given["check_in"])}
            given["results"] = json.dumps(results, ensure_ascii=False)
            given["shown"] = json.dumps({id: shown[id] for id in results if id in shown}, ensure_ascii=False) if shown else None
            ids = [row[0] for row in run(Statement(self.queries["move"], given))]
            if ids:
                self._walk_jobs(run, given | {"ids": rows.array(ids)})
                walked.update(ids)
        return walked

    def _walk_jobs(self, run: Run, given: Row) -> None:
        if given["moves_job"]:
            run(Statement(self.queries["move.job"], given, answers=False))
        if given["event"] is not None:
            run(Statement(self.queries["move.audit"], given, answers=False))
        # What a hop says beside its arrow: that a job is held, or how an execution ended that walked none.
        if given["held_reason"] is not None:
            run(Statement(self.queries["remark"], given | {"event": "hold", "reason": given["held_reason"]}, answers=False))
        elif given["event"] is None and given["ended_by"] is not None:
            run(Statement(self.queries["remark"], given | {"event": given["ended_by"]}, answers=False))

    def _unstorable(self, move: Move | Take, error: Exception) -> Refusal:
        stands = self.file.read(lambda run: self.standing(run, move)) or Refusal(move.job_id, 0, 0, None, None, None)
        return replace(stands, error=str(error))
