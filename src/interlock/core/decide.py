"""Moves: decided changes, ready to store. `decide` is the only place that decides."""

from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, Protocol

from .backoff import Backoff
from .errors import TransitionRefused
from .job import Job, Phase, Status
from .lifecycle import Lifecycle
from .machine import Arrow
from .outcome import (
    Advanced,
    Cancelled,
    Errored,
    Failed,
    Finished,
    Gone,
    Handed,
    Held,
    Looked,
    Lost,
    Outcome,
    Rejected,
    Released,
    Returned,
    Snoozed,
    Started,
    Unrecorded,
)
from .projection import phase_of
from .suspects import left_after_crash, left_after_loss, runs_grouped, unpaid

LEASE_LOST = "lease lost"


@dataclass(slots=True)  # not frozen: one is made per finished job, and freezing costs more than deciding
class Move:
    """One decided change of one execution and its job, carried out whole or not at all. Nobody changes it after it was decided.

    It is fenced: it applies only while the execution `(job_id, attempt, holder)` has `from_status` and the job is in `source`.
    `path` holds the arrows it walks, none, one or two; the last one leads to `state`. Durations are added to the store's clock.
    """

    job_id: str
    attempt: int
    holder: int
    from_status: Status
    to_status: Status
    source: str
    state: str
    phase: Phase
    tries_left: int
    path: tuple[Arrow, ...] = ()
    ended_by: str | None = None
    """The event that ends the execution; set exactly when `to_status` is DONE or ABORTED."""
    delay: float | None = None
    """When the job, waiting again, is due: seconds from the store's now."""
    lost: bool = False
    """A lease was lost: counted in `jobs.lease_losses`."""
    error: str | None = None
    result: str | None = None
    """The value as JSON text."""
    releases_key: bool = False
    held_reason: str | None = None
    external_id: str | None = None
    check_in: float | None = None
    """An external execution, given back: seconds until its reconciler looks at it."""
    missing: bool | None = None
    """Whether the outside did not know of it: since when is kept from the first time on, and forgotten when it is there again. None leaves what is stored."""
    actor: str = "worker"
    reason: str | None = None
    heard: bool = False
    """Whether who decided it knew that the job was asked to stop. One who did not cannot send it back to wait: the request would be forgotten."""
    progress: str | None = None
    usage: str | None = None
    """What the handler last had to show, as JSON texts; None leaves what is stored."""


@dataclass(frozen=True, slots=True)
class Take:
    """A waiting job carried out by an operator or keeper: cancel, expire, reject.

    It is fenced by `(job_id, version)`, and inserts the taker's own ABORTED execution, so that the job's state stays a function of its executions.
    """

    job_id: str
    version: int
    attempt: int
    """The job's attempt when it was read; the taker's execution is the next one."""
    kind: str
    arrow: Arrow
    phase: Phase
    actor: str
    reason: str | None = None
    releases_key: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a kind has decided beforehand: how often, how soon, and what a lost lease means."""

    tries: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun"
    key_until: tuple[str, ...] = ()
    """The states whose entry frees the idempotency key."""


class Holding(Protocol):
    """An execution, as far as deciding goes: who holds it and how far it has come."""

    @property
    def holder(self) -> int: ...

    @property
    def status(self) -> Status: ...


def decide(  # noqa: PLR0917 - the order is the story: of whom, what happened, under which rules
    lifecycle: Lifecycle, job: Job, execution: Holding, outcome: Outcome, policy: Policy, draw: float, *, actor: str,
) -> Move:
    """What becomes of a held job after this outcome. `TransitionRefused`, with the reason, where nothing may.

    `draw` in [0, 1) is the chance in a backoff. No clock is read: a move carries durations, which the store adds to its own.
    """
    hand = _Hand(lifecycle, job, execution.holder, execution.status, policy, draw, actor)
    hand.check(outcome)
    if isinstance(outcome, Handed | Looked | Unrecorded | Gone):
        return _elsewhere(hand, outcome)
    match outcome:
        case Returned():
            move = _succeed(hand, outcome)
        case Started() | Advanced():
            move = _go_on(hand, outcome)
        case Finished(error=error):
            move = hand.walk("DONE", hand.drawn("succeed"), error=error, reason=None if error is None else "finish_failed")
        case Errored():
            move = _error(hand, outcome)
        case Failed() | Rejected():
            move = _end(hand, outcome)
        case Lost():
            move = _lose(hand)
        case Released() | Snoozed() | Held():
            move = _give_back(hand, outcome)
        case Cancelled(reason=reason, by=by):
            stopped = _cancel(replace(hand, actor=by), reason, "lose", "retry")
            move = stopped or hand.refuse("no `cancel` is drawn from there, nor from where it would wait again")
    return move


def decide_take(lifecycle: Lifecycle, job: Job, event: Literal["cancel", "expire", "reject"], policy: Policy, *, actor: str, reason: str | None) -> Take:
    """How a waiting job is carried out by someone who never ran it. `TransitionRefused` if it does not wait, or if its state does not draw the event."""
    arrow = lifecycle.arrow(job.state, event)
    if job.phase != "pending" or job.state not in lifecycle.waiting:
        raise TransitionRefused(f"Job {job.id} is {job.phase} in {job.state}: `{event}` takes only a job that waits.")
    if arrow is None:
        raise TransitionRefused(f"Job {job.id} waits in {job.state}, where the lifecycle {lifecycle.name} draws no `{event}`.")
    phase = phase_of(lifecycle, arrow.target, live=False)
    return Take(job.id, job.version, job.attempt, job.kind, arrow, phase, actor, reason, arrow.target in policy.key_until)


# ---------------------------------------------------------------- what is hand, and the ways out of it
_NEEDS: dict[type[Outcome], tuple[Status, ...]] = {
    Started: ("LEASED", "IN_PROGRESS"), Advanced: ("IN_PROGRESS",), Handed: ("IN_PROGRESS",), Looked: ("IN_PROGRESS",), Unrecorded: ("IN_PROGRESS",),
    Returned: ("IN_PROGRESS",), Finished: ("COMMITTED",),
}
_BEFORE_COMMIT: tuple[Status, ...] = ("LEASED", "IN_PROGRESS")


@dataclass(slots=True)
class _Hand:
    """A job in its holder's hand."""

    lifecycle: Lifecycle
    job: Job
    holder: int
    status: Status
    policy: Policy
    draw: float
    actor: str

    def refuse(self, why: str) -> NoReturn:
        raise TransitionRefused(f"Job {self.job.id} is in {self.job.state} of {self.lifecycle.name}, its execution {self.status}: {why}.")

    def check(self, outcome: Outcome) -> None:
        what, needs = type(outcome).__name__, _NEEDS.get(type(outcome), _BEFORE_COMMIT)
        if self.status in ("DONE", "ABORTED"):
            self.refuse("it has ended, and what has ended never moves again")
        if self.job.state not in self.lifecycle.working:
            self.refuse("no job is held in that state")
        if self.status == "COMMITTED" and self.status not in needs:
            self.refuse(f"past its commit it is finished, never aborted or repeated; {what} comes too late")
        if self.status not in needs:
            self.refuse(f"{what} needs one that is {' or '.join(needs)}")

    def drawn(self, event: str) -> Arrow:
        return self.lifecycle.arrow(self.job.state, event) or self.refuse(f"`{event}` is not drawn from there")

    def walk(
        self, to: Status, *path: Arrow, event: str | None = None, tries_left: int | None = None, delay: float | None = None,
        error: str | None = None, reason: str | None = None, result: str | None = None,
    ) -> Move:
        """The move along `path`. `event` names what ended the execution where no arrow was walked."""
        state = path[-1].target if path else self.job.state
        ends = to in ("DONE", "ABORTED")
        return Move(
            self.job.id, self.job.attempt, self.holder, self.status, to, self.job.state, state, phase_of(self.lifecycle, state, live=not ends),
            self.job.tries_left if tries_left is None else tries_left, path, (path[-1].event if path else event) if ends else None,
            delay=delay, error=error, result=result, releases_key=any(arrow.target in self.policy.key_until for arrow in path),
            actor=self.actor, reason=reason, heard=self.job.cancel_requested_at is not None,
        )

    def fail(self, error: str, *, tries_left: int | None = None, reason: str | None = None) -> Move:
        """The end without success: where a failure would rest, it is buried at once."""
        fail = self.drawn("fail")
        bury = self.lifecycle.arrow(fail.target, "bury")
        path = (fail, bury) if fail.target in self.lifecycle.resting and bury else (fail,)
        return self.walk("ABORTED", *path, tries_left=tries_left, error=error, reason=error if reason is None else reason)

    def way_back(self, *events: str) -> tuple[Arrow, ...] | None:
        return self.lifecycle.way_back(self.job.state, *events)

    @property
    def tries_after(self) -> int:
        return max(self.job.tries_left - 1, 0)

    def backoff(self, tries_left: int) -> float:
        return self.policy.backoff.delay(self.job.tries - tries_left, self.draw)


# ---------------------------------------------------------------- one function per question
def _go_on(hand: _Hand, outcome: Started | Advanced) -> Move:
    state = hand.job.state
    if isinstance(outcome, Started):
        start = hand.lifecycle.arrow(state, "start") if outcome.walks else None
        return hand.walk("IN_PROGRESS", *([start] if start else []))
    if outcome.stage == state:
        return hand.walk("IN_PROGRESS")
    stages = ", ".join(sorted(hand.lifecycle.advances(state))) or "no stage"
    arrow = hand.lifecycle.advance(state, outcome.stage) or hand.refuse(f"from there a job advances to {stages}, not to {outcome.stage}")
    return hand.walk("IN_PROGRESS", arrow)


def _elsewhere(hand: _Hand, outcome: Handed | Looked | Unrecorded | Gone) -> Move:
    """Of work that goes on outside: handed over, looked at, or gone from there."""
    match outcome:
        case Handed(external_id=external_id, check_in=check_in):
            return replace(hand.walk("IN_PROGRESS"), external_id=external_id, check_in=check_in)
        case Looked(check_in=check_in, seen=seen, begun=begun):
            start = hand.lifecycle.arrow(hand.job.state, "start") if begun else None
            return replace(hand.walk("IN_PROGRESS", *([start] if start else [])), check_in=check_in, missing=None if seen is None else not seen)
        case Unrecorded(error=error, retryable=retryable):
            left = hand.tries_after
            if not retryable or not left:
                return hand.fail(error, tries_left=left, reason=_headline(error))
            return replace(hand.walk("IN_PROGRESS", tries_left=left, error=error), check_in=outcome.pause(hand.backoff(left)), missing=False)
        case Gone(reason=reason):
            cancel = hand.lifecycle.arrow(hand.job.state, "cancel")
            return hand.walk("ABORTED", cancel, reason=reason) if cancel else hand.fail(reason)


def _succeed(hand: _Hand, outcome: Returned) -> Move:
    arrow = hand.lifecycle.arrow
    start = arrow(hand.job.state, "start") if outcome.begins else None
    succeed = arrow(hand.job.state, "succeed") or (arrow(start.target, "succeed") if start else None)
    if succeed is None:
        # Refused before the commit, since a committed value could then never be finished.
        able = ", ".join(state for state in hand.lifecycle.states if hand.lifecycle.arrow(state, "succeed"))
        return hand.fail(f"A value was returned in {hand.job.state}, which draws no `succeed`: a job of {hand.lifecycle.name} succeeds from {able}.")
    path = (start,) if start and succeed.source == start.target else ()
    move = hand.walk("COMMITTED", *path, result=outcome.value) if outcome.boundary else hand.walk("DONE", *path, succeed, result=outcome.value)
    return replace(move, missing=False) if outcome.begins else move


def _error(hand: _Hand, outcome: Errored) -> Move:
    reason = _headline(outcome.error)
    events = ("retry", "lose") if outcome.crashed else ("retry",)
    if not outcome.retryable or not (outcome.crashed or hand.lifecycle.retryable(hand.job.state)):
        return hand.fail(outcome.error, reason=reason)
    if outcome.shared and runs_grouped(hand.job):
        return _lose(hand, outcome.error)
    left = left_after_crash(hand.job) if outcome.crashed else hand.tries_after
    # Count the third loss, so that the job does not pay for the second one twice.
    lost = outcome.crashed and unpaid(hand.job) > 0
    if cancelled := _as_requested(hand, *events, tries_left=left, error=outcome.error):
        return replace(cancelled, lost=lost)
    path = hand.way_back(*events)
    if not left or path is None:
        return replace(hand.fail(outcome.error, tries_left=left, reason=reason), lost=lost)
    back = hand.walk("ABORTED", *path, event="retry", tries_left=left, delay=outcome.pause(hand.backoff(left)), error=outcome.error, reason=reason)
    return replace(back, lost=True) if lost else back


def _end(hand: _Hand, outcome: Failed | Rejected) -> Move:
    if isinstance(outcome, Failed):
        return replace(hand.fail(outcome.reason), missing=False if outcome.seen else None)
    reject = hand.lifecycle.arrow(hand.job.state, "reject")
    return hand.walk("ABORTED", reject, error=outcome.reason, reason=outcome.reason) if reject else hand.fail(outcome.reason)


def _lose(hand: _Hand, error: str = LEASE_LOST) -> Move:
    left, answer, reason = left_after_loss(hand.job), hand.policy.on_lost_lease, _headline(error)
    if cancelled := _as_requested(hand, "lose", "retry", tries_left=left, error=error):
        return replace(cancelled, lost=True)
    path = hand.way_back("lose", "retry")
    if answer == "fail" or path is None or (answer == "rerun" and not left):
        return replace(hand.fail(error, tries_left=left, reason=reason), lost=True)
    back = hand.walk("ABORTED", *path, event="lose", tries_left=left, delay=0.0, error=error, reason=reason)
    return replace(back, lost=True, held_reason=reason if answer == "hold" else None)


def _give_back(hand: _Hand, outcome: Released | Snoozed | Held) -> Move:
    if cancelled := _as_requested(hand, "lose", "retry"):
        return cancelled
    holds = isinstance(outcome, Held)
    path = hand.way_back("lose", "retry")
    if path is None and holds:
        return hand.fail(outcome.reason)
    if path is None:
        hand.refuse("it cannot be given back, for want of `lose`, `retry` or a resting `fail`; it runs on until it ends or its lease does")
    back = hand.walk("ABORTED", *path, event="lose", delay=outcome.after if isinstance(outcome, Snoozed) else 0.0, reason=outcome.reason)
    return replace(back, held_reason=outcome.reason) if holds else back


def _as_requested(hand: _Hand, *events: str, tries_left: int | None = None, error: str | None = None) -> Move | None:
    """The end of a job that would wait again by one of these events though it was asked to stop. None if nobody asked, or no `cancel` is drawn on its way."""
    if hand.job.cancel_requested_at is None:
        return None
    requested = replace(hand, actor=hand.job.cancel_requested_by or hand.actor)
    return _cancel(requested, hand.job.cancel_reason, *events, tries_left=tries_left, error=error)


def _cancel(hand: _Hand, reason: str | None, *events: str, tries_left: int | None = None, error: str | None = None) -> Move | None:
    path = hand.way_back("cancel", *events)
    if path and path[0].event != "cancel":
        cancel = hand.lifecycle.arrow(path[0].target, "cancel")
        path = (*path, cancel) if cancel else None
    return hand.walk("ABORTED", *path, tries_left=tries_left, error=error, reason=reason) if path else None


def _headline(error: str) -> str:
    """The last line: what a traceback ends with, and all of a plain sentence."""
    return error.strip().rpartition("\n")[2][:200]
