"""Builds the moves of plain successes from one answer of `decide`, because most jobs of a kind succeed the same way."""

from .job import Job
from .lifecycle import Lifecycle
from .move_builder import OwnedExecution
from .outcome import Outcome, Returned
from .transition import Move, Policy

_Key = tuple[int, int, str, bool]


class SuccessMoves:
    """Remembers the answers of `decide` for running executions whose handler returned.

    For a given lifecycle, policy and state, such moves differ only in the values of their job, which this class sets.
    """

    def __init__(self) -> None:
        # The values keep the lifecycle and the policy, so that no other object gets the same `id`.
        self._known: dict[_Key, tuple[Lifecycle, Policy, Move]] = {}

    def find(
        self,
        lifecycle: Lifecycle,
        job: Job,
        execution: OwnedExecution,
        outcome: Outcome,
        policy: Policy,
        *,
        actor: str,
    ) -> Move | None:
        """Return the move that `decide` would return; None if no answer for this case is known."""
        if not isinstance(outcome, Returned):
            return None
        known = self._known.get((id(lifecycle), id(policy), job.state, outcome.boundary))
        if known is None or execution.status != "IN_PROGRESS" or outcome.begins:
            return None
        alike = known[2]
        return Move(
            job.id,
            job.attempt,
            execution.holder,
            alike.from_status,
            alike.to_status,
            alike.source,
            alike.state,
            alike.phase,
            job.tries_left,
            alike.path,
            alike.ended_by,
            result=outcome.value,
            frees_key=alike.frees_key,
            actor=actor,
            saw_cancel_request=job.cancel_requested_at is not None,
        )

    def remember(self, lifecycle: Lifecycle, outcome: Outcome, policy: Policy, move: Move) -> None:
        """Remember an answer of `decide`, if it is a success."""
        if (
            isinstance(outcome, Returned)
            and move.from_status == "IN_PROGRESS"
            and not outcome.begins
            and move.result is not None
        ):
            self._known[id(lifecycle), id(policy), move.source, outcome.boundary] = lifecycle, policy, move
