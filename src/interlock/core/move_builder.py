"""Builds moves for an execution that a worker, a reconciler or maintenance owns, as the lifecycle allows them."""

from dataclasses import dataclass
from typing import NoReturn, Protocol

from ..errors import TransitionRefused
from .job import Job, Status
from .lifecycle import Lifecycle
from .machine import Arrow
from .outcome import Advanced, Finished, Handed, Looked, Outcome, Returned, Started, Unrecorded
from .projection import phase_of
from .transition import Move, Policy


class OwnedExecution(Protocol):
    """The fields of an execution that a decision reads: its holder number and its status."""

    @property
    def holder(self) -> int: ...

    @property
    def status(self) -> Status: ...


_NEEDS: dict[type[Outcome], tuple[Status, ...]] = {
    Started: ("LEASED", "IN_PROGRESS"),
    Advanced: ("IN_PROGRESS",),
    Handed: ("IN_PROGRESS",),
    Looked: ("IN_PROGRESS",),
    Unrecorded: ("IN_PROGRESS",),
    Returned: ("IN_PROGRESS",),
    Finished: ("COMMITTED",),
}
_BEFORE_COMMIT: tuple[Status, ...] = ("LEASED", "IN_PROGRESS")


@dataclass(slots=True)
class MoveBuilder:
    """An owned job with the rules that apply to it. Its methods build moves."""

    lifecycle: Lifecycle
    job: Job
    holder: int
    status: Status
    policy: Policy
    random: float
    actor: str

    def refuse(self, why: str) -> NoReturn:
        raise TransitionRefused(
            f"Job {self.job.id} is in {self.job.state} of {self.lifecycle.name}, its execution {self.status}: {why}."
        )

    def check(self, outcome: Outcome) -> None:
        what, needs = type(outcome).__name__, _NEEDS.get(type(outcome), _BEFORE_COMMIT)
        if self.status in ("DONE", "ABORTED"):
            self.refuse("it has ended, and an ended execution never changes")
        if self.job.state not in self.lifecycle.working:
            self.refuse("no job runs in that state")
        if self.status == "COMMITTED" and self.status not in needs:
            self.refuse(f"it is committed and can only be finished; {what} comes too late")
        if self.status not in needs:
            self.refuse(f"{what} needs an execution that is {' or '.join(needs)}")

    def require(self, event: str) -> Arrow:
        """The transition for an event; `TransitionRefused` if the lifecycle does not allow it."""
        return self.lifecycle.arrow(self.job.state, event) or self.refuse(f"`{event}` is not allowed from there")

    def walk(
        self,
        to: Status,
        *path: Arrow,
        event: str | None = None,
        tries_left: int | None = None,
        delay: float | None = None,
        error: str | None = None,
        reason: str | None = None,
        result: str | None = None,
    ) -> Move:
        """A move along `path`. `event` names the end of an execution whose job keeps its state."""
        state = path[-1].target if path else self.job.state
        ends = to in ("DONE", "ABORTED")
        return Move(
            self.job.id,
            self.job.attempt,
            self.holder,
            self.status,
            to,
            self.job.state,
            state,
            phase_of(self.lifecycle, state, live=not ends),
            self.job.tries_left if tries_left is None else tries_left,
            path,
            (path[-1].event if path else event) if ends else None,
            delay=delay,
            error=error,
            result=result,
            frees_key=any(arrow.target in self.policy.key_until for arrow in path),
            actor=self.actor,
            reason=reason,
            saw_cancel_request=self.job.cancel_requested_at is not None,
        )

    def fail(self, error: str, *, tries_left: int | None = None, reason: str | None = None) -> Move:
        """A move that fails the job for good. If `fail` leads to a resting state, the move also buries the job."""
        fail = self.require("fail")
        bury = self.lifecycle.arrow(fail.target, "bury")
        path = (fail, bury) if fail.target in self.lifecycle.resting and bury else (fail,)
        return self.walk(
            "ABORTED", *path, tries_left=tries_left, error=error, reason=error if reason is None else reason
        )

    def return_path(self, *events: str) -> tuple[Arrow, ...] | None:
        return self.lifecycle.return_path(self.job.state, *events)

    @property
    def tries_after(self) -> int:
        return max(self.job.tries_left - 1, 0)

    def backoff(self, tries_left: int) -> float:
        return self.policy.backoff.delay(self.job.tries - tries_left, self.random)
