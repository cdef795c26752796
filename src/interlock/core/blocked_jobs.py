"""Decides what happens to a job that waits for others."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from ..errors import UsageError

OnFailed = Literal["cancel", "run", "hold"]
"""What happens to a job if one that it waits for fails: it is cancelled, runs anyway, or is held."""
Outcome = Literal["succeeded", "failed"]
BlockedDecision = Literal["wait", "run", "hold", "cancel"]


def check_on_failed(value: str) -> OnFailed:
    """Return the value of `on_failed`. `UsageError` if it is none of the three."""
    if value not in get_args(OnFailed):
        raise UsageError(f"on_failed is {value!r}: give one of {', '.join(get_args(OnFailed))}.")
    return cast("OnFailed", value)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A job that waits for others: how many of its dependencies are open, and how many have failed, by policy."""

    job_id: str
    total: int
    open: int
    failed: int
    cancels: int
    """How many of the failed ones cancel the job."""
    holds: int
    """How many of the failed ones hold the job."""
    example: str | None = None
    """One of the failed ones: the kind and id of a job, or the name of a batch."""

    @property
    def decision(self) -> BlockedDecision:
        """Cancel the job at the first failure that cancels it. Otherwise run or hold it when all have ended."""
        if self.cancels:
            return "cancel"
        if self.open:
            return "wait"
        return "hold" if self.holds else "run"

    @property
    def reason(self) -> str:
        """Why the decision was made, for the audit."""
        which = f"its dependency {self.example} failed"
        if self.total > 1 and self.failed > 1:
            which = f"{self.failed} of its {self.total} dependencies failed, such as {self.example}"
        elif self.total > 1:
            which = f"one of its {self.total} dependencies failed: {self.example}"
        ended = "its dependency has ended" if self.total == 1 else f"its {self.total} dependencies have ended"
        if self.decision in ("cancel", "hold"):
            return which
        return f"{ended}; {which}" if self.failed else ended
