"""Moves and takes on SQLite: in batches, or one inside a commit."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ...core.job import Job
from ...core.transition import Move, Take
from ...errors import InterlockError
from .. import caller_connection
from ..bisect import bisect
from ..codec import MoveStep, each_once, move_steps, refusal, take_columns
from ..codec import job as job_of
from ..commit_boundary import FenceRefused, Run, committing
from ..commit_group import CommitGroup, GroupBody
from ..dependents import Ended, resolving
from ..plain_path import Fallbacks, plain_finish
from ..retry import COMMIT_TRIES, retry
from ..tx import PlainTx
from ..types import GroupCommit, Refusal
from . import rows
from .commit_group import commit_group
from .file import runner
from .flow import SqliteFlow
from .session import SqliteSession
from .timestamps import Timestamp, when

Row = dict[str, Any]

LONG = 16_384
_RESULT = MoveStep._fields.index("result")
_SHOWN = MoveStep._fields.index("progress")
_COMMON = (*MoveStep._fields[1:_RESULT], *MoveStep._fields[_RESULT + 1 : _SHOWN])
_FINISH = ("attempt", "holder", "source", "target", "tries_left", "actor")


class SqliteTransitions:
    def __init__(self, session: SqliteSession, flow: SqliteFlow) -> None:
        self.session = session
        self._flow = flow
        self.plain = True
        """Whether successes by one transition take the statement `finish`. It changes no result."""
        self.fallbacks = Fallbacks("finish")

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        return self._write_all(moves)

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        return self._write_all(takes)

    def commit(
        self,
        move: Move | Take,
        body: Callable[[Any, Job], None],
        *,
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        timeout: float = 60.0,
    ) -> Refusal | None:
        self.session.check()
        file = self.session.file

        def once() -> None:
            if transaction is not None:
                file.check_place()
                caller_connection.commit(self.session, self, transaction, move, ended.watch(body), timeout)
                file.check_place()
                return
            with file.write_with_caller_code() as conn:
                tx = PlainTx(conn, file.converting)
                committing(self, file.converting_runner(conn), move, ended.watch(body), tx, timeout)

        try:
            with resolving(self._flow.resolve_ended) as ended:
                retry(once, file.library.should_retry, tries=COMMIT_TRIES)
        except FenceRefused as refused:
            return refused.refusal
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
            return commit_group(self, CommitGroup(moves, ended.watch_group(body), together, timeout))

    # ------------------------------------------------------------ one, inside a transaction
    def lock(self, run: Run, move: Move | Take) -> Job | None:
        run(self.session.statement("lock.file", {}, answers=False))
        return self._lock(run, move)

    def lock_each(self, run: Run, moves: Sequence[Move]) -> list[Job]:
        """Lock the rows of these moves and return the jobs whose fence matches."""
        run(self.session.statement("lock.file", {}, answers=False))
        return [job for move in moves if (job := self._lock(run, move)) is not None]

    def _lock(self, run: Run, move: Move | Take) -> Job | None:
        if isinstance(move, Take):
            given: Row = {"job_id": move.job_id, "version": move.version, "source": move.arrow.source}
            found = run(self.session.statement("lock_waiting", given))
        else:
            given = {
                "job_id": move.job_id,
                "attempt": move.attempt,
                "holder": move.holder,
                "from_status": move.from_status,
                "source": move.source,
            }
            found = run(self.session.statement("lock", given))
        return job_of(found[0], when) if found else None

    def write(self, run: Run, move: Move | Take) -> bool:
        return not self._carry_out(run, [move], self.session.timestamp())

    def write_each(self, run: Run, moves: Sequence[Move]) -> bool:
        """Carry out these moves in this transaction. Return False if the rows have changed."""
        return not self._carry_out(run, moves, self.session.timestamp())

    def find_refusal(self, run: Run, move: Move | Take) -> Refusal | None:
        return self._find_refusals(run, [move])[0]

    def _find_refusals(self, run: Run, moves: Sequence[Move | Take]) -> list[Refusal | None]:
        """For each move its refusal, or None if it was carried out already."""
        asked = [(move.job_id, move.attempt + 1 if isinstance(move, Take) else move.attempt) for move in moves]
        found = {row[0]: row for row in run(self.session.statement("present", {"asked": rows.array(asked)}))}
        return [refusal(move, found.get(move.job_id)) for move in moves]

    # ------------------------------------------------------------ many
    def _write_all(self, moves: Sequence[Move] | Sequence[Take]) -> list[Refusal]:
        self.session.check()
        each_once(moves)
        refusals: list[Refusal] = []
        with resolving(self._flow.resolve_ended) as ended:
            culprits = bisect(
                list[Move | Take](moves),
                lambda batch: refusals.extend(self._write_batch(batch, ended)),
                self.session.file.library.is_database_error,
            )
        return refusals + [self._unstorable(move, error) for move, error in culprits]

    def _write_batch(self, batch: Sequence[Move | Take], ended: Ended) -> list[Refusal]:
        """Write the batch in one transaction; a refused move does not affect the others."""
        with self.session.file.write() as conn:
            run, now = runner(conn), self.session.timestamp()
            missing = self._carry_out(run, batch, now)
            ended.note(run(self.session.statement("flow.due", {"now": now.text}))[0][0])
            if not missing:
                return []
            return [refused for refused in self._find_refusals(run, missing) if refused is not None]

    def _carry_out(self, run: Run, batch: Sequence[Move | Take], now: Timestamp) -> list[Move | Take]:
        """Write each move; returns those whose rows have changed since they were decided."""
        missing: list[Move | Take] = list(self._take(run, [take for take in batch if isinstance(take, Take)], now))
        moves = [move for move in batch if isinstance(move, Move)]
        pending = [(move, move_steps(move)) for move in (self._finish(run, moves, now) if self.plain else moves)]
        number = 0
        while pending:
            written = self._write_steps(run, [steps[number] for _, steps in pending], now)
            missed = [move for move, _ in pending if move.job_id not in written]
            if missed and number:
                # The first transition is written already: the batch is rolled back, and the culprit is found alone.
                raise InterlockError(
                    f"The second transition of a move of job {missed[0].job_id} does not begin where the first ends."
                )
            missing += missed
            number += 1
            pending = [(move, steps) for move, steps in pending if len(steps) > number and move.job_id in written]
        return missing

    def _take(self, run: Run, takes: Sequence[Take], now: Timestamp) -> list[Take]:
        """Write the takes, all that differ only in the job at once; returns those that did not match."""
        groups: dict[tuple[tuple[str, Any], ...], dict[str, Take]] = {}
        for take in takes:
            groups.setdefault(tuple(take_columns(take).items()), {})[take.job_id] = take
        missing: list[Take] = []
        for common, group in groups.items():
            given: Row = dict(common) | {"now": now.text, "ids": rows.array(group)}
            taken = {row[0] for row in run(self.session.statement("take", given))}
            missing += [take for id, take in group.items() if id not in taken]
            if taken:
                given["ids"] = rows.array(sorted(taken))
                run(self.session.statement("take.execution", given, answers=False))
                run(self.session.statement("take.audit", given, answers=False))
        return missing

    def _finish(self, run: Run, moves: Sequence[Move], now: Timestamp) -> list[Move]:
        """Write the plain successes; returns the other moves, and those that did not match."""
        left: list[Move] = []
        groups: dict[tuple[Any, ...], dict[str, str | None]] = {}
        for move in moves:
            plain = plain_finish(move)
            if plain is None or (plain.result is not None and len(plain.result) > LONG):
                left.append(move)
                continue
            common = (plain.attempt, plain.holder, plain.source, plain.target, plain.tries_left, plain.actor)
            groups.setdefault(common, {})[plain.job_id] = plain.result
        finished: set[str] = set()
        for common, results in groups.items():
            given: Row = dict(zip(_FINISH, common, strict=True)) | {"now": now.text}
            finished.update(self._finish_group(run, given, results))
        others = [move for move in moves if move.job_id not in finished]
        if len(others) > len(left):
            self.fallbacks.add("another attempt, holder, status or state", count=len(others) - len(left))
        return others

    def _finish_group(self, run: Run, given: Row, results: dict[str, str | None]) -> list[str]:
        """Write successes that differ only in job and result; returns the ids of the jobs that matched."""
        given["results"] = json.dumps(results, ensure_ascii=False)
        ids = [row[0] for row in run(self.session.statement("finish", given))]
        if not ids:
            return []
        if len(ids) < len(results):
            given["results"] = json.dumps({id: results[id] for id in ids}, ensure_ascii=False)
        run(self.session.statement("finish.job", given, answers=False))
        audit = {"ids": rows.array(ids), "event": "succeed", "reason": None}
        run(self.session.statement("move.audit", given | audit, answers=False))
        return ids

    def _write_steps(self, run: Run, steps: Sequence[MoveStep], now: Timestamp) -> set[str]:
        """Write one step of each move; returns the ids of the jobs that matched."""
        groups: dict[tuple[Any, ...], dict[str, str | None]] = {}
        shown = {step.job_id: step[_SHOWN:] for step in steps if step.progress is not None or step.usage is not None}
        for step in steps:
            # A long result gets a group of its own, since a group's results are one JSON value.
            alone = step.job_id if step.result is not None and len(step.result) > LONG else None
            groups.setdefault((alone, *step[1:_RESULT], *step[_RESULT + 1 : _SHOWN]), {})[step.job_id] = step.result
        written: set[str] = set()
        for common, results in groups.items():
            given: Row = dict(zip(_COMMON, common[1:], strict=True))
            given |= {
                "now": now.text,
                "now_us": now.us,
                "due_at": now.after(given["delay"]),
                "check_at": now.after(given["check_in"]),
            }
            given["results"] = json.dumps(results, ensure_ascii=False)
            given["shown"] = (
                json.dumps({id: shown[id] for id in results if id in shown}, ensure_ascii=False) if shown else None
            )
            ids = [row[0] for row in run(self.session.statement("move", given))]
            if ids:
                self._write_jobs(run, given | {"ids": rows.array(ids)})
                written.update(ids)
        return written

    def _write_jobs(self, run: Run, given: Row) -> None:
        if given["moves_job"]:
            run(self.session.statement("move.job", given, answers=False))
        if given["event"] is not None:
            run(self.session.statement("move.audit", given, answers=False))
        # A hold, and an execution that ended without a transition, are audit notes.
        if given["held_reason"] is not None:
            note = {"event": "hold", "reason": given["held_reason"]}
            run(self.session.statement("add_note", given | note, answers=False))
        elif given["event"] is None and given["ended_by"] is not None:
            run(self.session.statement("add_note", given | {"event": given["ended_by"]}, answers=False))

    def _unstorable(self, move: Move | Take, error: Exception) -> Refusal:
        present = self.session.file.read(lambda run: self.find_refusal(run, move))
        return replace(present or Refusal(move.job_id, 0, 0, None, None, None), error=str(error))
