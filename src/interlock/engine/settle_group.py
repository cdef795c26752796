"""Settles several commits of one kind in one transaction. Jobs that the transaction leaves out are settled alone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.error_policy import headline
from ..core.job import Job
from ..core.outcome import Returned
from ..core.transition import Move
from ..jobs.user_code import CallScope, context_of
from ..store.commit_group import AbandonGroup, GroupBody
from ..store.types import GroupCommit
from ..telemetry.events import DatabaseCall
from .failpoints import Failpoint
from .settle import Settler
from .settlement import Settlement

_log = logging.getLogger("interlock")


@dataclass
class LeftOut:
    """The settlements that a group has not stored."""

    alone: list[Settlement] = field(default_factory=list[Settlement])
    """They must be settled alone, which reports their errors."""
    late: list[Settlement] = field(default_factory=list[Settlement])
    """They may join another group, because this one took too long."""


class GroupSettler(Settler):
    """A settler that also commits several jobs of one kind in one transaction."""

    def accepts(self, settlement: Settlement) -> bool:
        """Whether this outcome can be committed together with others."""
        spec = settlement.execution.spec
        return (
            isinstance(settlement.outcome, Returned)
            and spec.commits
            and spec.commit_batch > 1
            # These surround each commit separately.
            and not spec.around
            and self.context.transaction is None
        )

    def settle_group(self, settlements: Sequence[Settlement]) -> LeftOut:
        """Store the settlements that can be committed together, and return the others.

        Afterwards each stored settlement has its move or its error.
        """
        began, left_out = self.context.sleeper.monotonic(), LeftOut()
        moves: dict[str, tuple[Settlement, Move]] = {}
        for settlement in settlements:
            move = self._plain_commit(settlement)
            if move is None:
                left_out.alone.append(settlement)
            else:
                moves[move.job_id] = settlement, move
        result = self._commit_group(moves) if moves else GroupCommit(frozenset(), frozenset())
        for job_id, (settlement, move) in moves.items():
            if job_id in result.stored:
                self._report_stored(settlement, move)
            else:
                (left_out.late if job_id in result.late else left_out.alone).append(settlement)
        if result.stored:
            elapsed = self.context.sleeper.monotonic() - began
            self.context.events.emit(DatabaseCall("commit", len(result.stored), elapsed))
        return left_out

    def _plain_commit(self, settlement: Settlement) -> Move | None:
        """Return the move if it is a success of at most one transition."""
        try:
            move = self._decide(settlement)
        except Exception:  # noqa: BLE001 - raised again when the job is settled alone
            return None
        return move if move.to_status in ("COMMITTED", "DONE") and len(move.path) <= 1 else None

    def _commit_group(self, moves: dict[str, tuple[Settlement, Move]]) -> GroupCommit:
        context = self.context
        spec = next(iter(moves.values()))[0].execution.spec
        try:
            for settlement, _ in moves.values():
                context.failpoints(Failpoint.BEFORE_COMMIT, settlement.execution.job)
            return context.store.transitions.commit_group(
                [move for _, move in moves.values()],
                self._group_body(moves),
                together=spec.commit_many is not None,
                timeout=spec.commit_timeout,
            )
        except Exception as error:  # noqa: BLE001 - each job is settled alone, which reports its own error
            _log.info(
                "%d jobs of kind %s could not be committed together (%s). The worker commits each of them alone.",
                len(moves), spec.name, headline(error),
            )  # fmt: skip
            return GroupCommit(frozenset(), frozenset())

    def _group_body(self, moves: dict[str, tuple[Settlement, Move]]) -> GroupBody:
        spec = next(iter(moves.values()))[0].execution.spec
        functions = spec.group_body(
            {job_id: move for job_id, (_, move) in moves.items()},
            {job_id: settlement.value for job_id, (settlement, _) in moves.items()},
        )

        def body(tx: Any, jobs: Sequence[Job]) -> None:
            only = jobs[0] if len(jobs) == 1 else None
            scope = CallScope(spec.name, only.id, only.attempt) if only is not None else CallScope(spec.name)
            context_of(scope).run(functions, tx, jobs)
            try:
                for job in jobs:
                    self.context.failpoints(Failpoint.IN_COMMIT, job)
            except Exception as error:
                raise AbandonGroup from error

        return body

    def _report_stored(self, settlement: Settlement, move: Move) -> None:
        try:
            self.context.failpoints(Failpoint.AFTER_COMMIT, settlement.execution.job)
            self._handle_stored(settlement, move)
        except Exception as error:  # noqa: BLE001 - kept in the settlement, so that the others are reported
            settlement.error = error
