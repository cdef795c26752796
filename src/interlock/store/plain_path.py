"""The plain case of a claim and of a finish, which both stores carry out by plain statements.

A plain statement checks the same fence as the general one and writes the same rows. It only leaves out steps that the
plain case never needs. The general statement carries out everything that did not match the plain one, and it alone
refuses.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from ..core.transition import Move
from .types import ClaimRule

_log = logging.getLogger("interlock")


class PlainFinish(NamedTuple):
    """A success by one transition: its fence, and what it writes. Its event is `succeed`, its phase `succeeded`."""

    job_id: str
    attempt: int
    holder: int
    source: str
    target: str
    tries_left: int
    result: str | None
    actor: str


def plain_finish(move: Move) -> PlainFinish | None:
    """Return the move as a plain finish; None if it is anything else."""
    if (
        move.ended_by != "succeed"
        or move.from_status != "IN_PROGRESS"
        or move.to_status != "DONE"
        or move.phase != "succeeded"
        or len(move.path) != 1
        or move.frees_key
        or move.lost
        or move.error is not None
        or move.reason is not None
        or move.delay is not None
        or move.missing is not None
        or move.check_in is not None
        or move.external_id is not None
        or move.held_reason is not None
        or move.progress is not None
        or move.usage is not None
    ):
        return None
    arrow = move.path[0]
    if (arrow.source, arrow.event, arrow.target) != (move.source, "succeed", move.state):
        return None
    return PlainFinish(
        move.job_id, move.attempt, move.holder, move.source, move.state, move.tries_left, move.result, move.actor
    )


def plain_claim(rules: Iterable[ClaimRule]) -> bool:
    """Whether each rule makes exactly one transition. Limits, expiring jobs and suspects are for the store to check."""
    return all(len(rule.path) == 1 for rule in rules)


class Fallbacks:
    """Counts what a plain statement left to the general one: each claim once, and each job that was to be finished."""

    __slots__ = ("count", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.count = 0

    def add(self, why: str, *, count: int = 1) -> None:
        """Count one claim, or this many jobs that were to be finished, and log why."""
        self.count += count
        _log.debug("The plain %s does not fit, so the general statement runs: %s.", self.what, why)
