"""Settles executions: decides the move for an outcome, runs the kind's functions and stores the move.

Settling blocks, so a worker settles in threads. `settle_waiting` settles jobs that no worker runs.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..core.decide import decide
from ..core.error_policy import headline
from ..core.job import Job
from ..core.outcome import CancelRequested, FailedFinally, Outcome, Requeued, Returned
from ..core.payload import clean
from ..core.success_moves import SuccessMoves
from ..core.transition import Move, Take
from ..errors import InterlockError, LeaseLost, TransitionRefused, Unavailable
from ..jobs.spec import KindSpec
from ..jobs.user_code import CallScope, call_within, context_of
from ..store.types import Refusal
from ..telemetry.events import DatabaseCall
from .classify import as_unrecorded, outcome_of
from .context import SettleContext
from .failpoints import Failpoint, no_failpoints
from .held_execution import WHY, HeldExecution
from .settle_events import note_hook_failure, report_hook_failure, report_move, report_refusal
from .settlement import Settlement

_log = logging.getLogger("interlock")
Body = Callable[[Any, Job], None]
"""The user's functions of one transition: the commit function, then the hooks of the states that it enters."""
MAX_COMMITS = 5
"""The most times that a commit is sent if the user's own transaction fails to end and its result is unknown."""
UNSTORABLE = "unstorable: "
"""The prefix of a job's error if the database cannot store its result or error."""


class Settler:
    """Decides the moves for outcomes and stores them. An error of one job does not affect the others."""

    def __init__(self, context: SettleContext) -> None:
        self.context = context
        self._successes = SuccessMoves()

    # ------------------------------------------------------------ many
    def settle_batch(self, settlements: Sequence[Settlement]) -> None:
        """Store all moves with one statement. Afterwards each settlement has its move or its error."""
        began = self.context.sleeper.monotonic()
        moves = self._decide_all(settlements)
        if not moves:
            return
        try:
            self._pass_failpoint(Failpoint.BEFORE_COMMIT, settlements)
            refusals = self._store_moves([move for _, move in moves.values()])
            self._pass_failpoint(Failpoint.AFTER_COMMIT, settlements)
        except Exception as error:  # noqa: BLE001 - kept in the settlements
            for settlement, _ in moves.values():
                settlement.error = error
            return
        for refusal in refusals:
            if refusal.job_id in moves:
                settlement, move = moves.pop(refusal.job_id)
                _keep_error(settlement, self._handle_refusal, settlement, move, refusal)
            else:
                _log.error("The store refused a move of job %s, which was not in the batch. Ignored.", refusal.job_id)
        for settlement, move in moves.values():
            _keep_error(settlement, self._handle_stored, settlement, move)
        self.context.events.emit(DatabaseCall("settle", len(settlements), self.context.sleeper.monotonic() - began))

    def _decide_all(self, settlements: Sequence[Settlement]) -> dict[str, tuple[Settlement, Move]]:
        """Return the move of each settlement by its job; keep the errors in the others."""
        moves: dict[str, tuple[Settlement, Move]] = {}
        for settlement in settlements:
            try:
                move = settlement.move or self._decide(settlement)
            except Exception as error:  # noqa: BLE001 - kept in the settlement
                settlement.error = error
            else:
                moves[move.job_id] = settlement, move
        return moves

    def _pass_failpoint(self, point: Failpoint, settlements: Sequence[Settlement]) -> None:
        if self.context.failpoints is not no_failpoints:
            for settlement in settlements:
                if isinstance(settlement.outcome, Returned):
                    self.context.failpoints(point, settlement.execution.job)

    def settle_all(self, settlements: Sequence[Settlement]) -> None:
        """Settle jobs with a commit function or hooks one by one, and the others with one statement."""
        batch = list[Settlement]()
        for settlement in settlements:
            try:
                body = self._body(settlement, self._decide(settlement))
            except Exception as error:  # noqa: BLE001 - kept in the settlement
                settlement.error = error
                continue
            if body is not None:
                self.settle_one(settlement)
            else:
                batch.append(settlement)
        if batch:
            self.settle_batch(batch)

    # ------------------------------------------------------------ one
    def settle_one(self, settlement: Settlement) -> None:
        """Store one move in its own transaction, together with the functions that its kind runs there."""
        began = self.context.sleeper.monotonic()
        while True:
            try:
                move = self._decide(settlement)
            except Exception as error:  # noqa: BLE001 - kept in the settlement
                settlement.error = error
                return
            body = self._body(settlement, move)
            try:
                refusal = self._store(settlement, move, body, retry=True)
            except Exception as error:  # noqa: BLE001 - an error of the user's function may lead to another outcome
                if isinstance(error, Unavailable) or not self._reclassify(settlement, move, error, body):
                    settlement.error = error
                    return
                continue
            if refusal is None:
                self._handle_stored(settlement, move)
                self.context.events.emit(DatabaseCall("settle", 1, self.context.sleeper.monotonic() - began))
            else:
                self._handle_refusal(settlement, move, refusal)
            return

    def settle_or_raise(self, settlement: Settlement) -> bool:
        """Settle once, for a caller that handles errors. Returns False if another process has moved the job.

        Raises errors of the kind's functions and of the database, and `TransitionRefused` if the lifecycle does not
        allow the outcome. Nothing is stored then.
        """
        execution, outcome = settlement.execution, settlement.outcome
        move = self._decide_outcome(execution, outcome)
        if isinstance(outcome, Returned) and move.to_status == "ABORTED":
            raise TransitionRefused(
                move.error or f"Job {execution.job.id} cannot be completed from {execution.job.state}."
            )
        refusal = self._store(settlement, move, self._body(settlement, move), retry=False)
        if refusal is not None:
            report_refusal(self.context, execution, move, refusal)
            return False
        self._handle_stored(settlement, move)
        return True

    def _store_moves(self, moves: Sequence[Move]) -> Sequence[Refusal]:
        return self.context.retry_while_unavailable(lambda: self.context.store.transitions.move(moves), "report")

    def _store(self, settlement: Settlement, move: Move, body: Body | None, *, retry: bool) -> Refusal | None:
        context, execution = self.context, settlement.execution
        if body is None:
            refusals = self._store_moves([move]) if retry else context.store.transitions.move([move])
            return refusals[0] if refusals else None
        context.failpoints(Failpoint.BEFORE_COMMIT, execution.job)
        refusal = commit(context, move, body, execution.spec, retry=retry)
        context.failpoints(Failpoint.AFTER_COMMIT, execution.job)
        return refusal

    def _body(self, settlement: Settlement, move: Move) -> Body | None:
        """Return the functions that run in the transaction of this move: the commit function, then the hooks."""
        execution = settlement.execution
        functions = execution.spec.move_body(move, settlement.value, commits=isinstance(settlement.outcome, Returned))
        if functions is None:
            return None

        def body(tx: Any, job: Job) -> None:
            context_of(CallScope(job.kind, job.id, execution.job.attempt)).run(functions, tx, job)
            self.context.failpoints(Failpoint.IN_COMMIT, job)

        return body

    def _reclassify(self, settlement: Settlement, move: Move, error: Exception, body: Body | None) -> bool:
        """Replace the outcome after an error of a commit function. Returns False if there is no other outcome.

        An error of a hook schedules a retry of the same move.
        """
        execution = settlement.execution
        if isinstance(settlement.outcome, Returned):
            outcome = outcome_of(error, execution, self.context.now)
            settlement.outcome = as_unrecorded(outcome) if settlement.outcome.begins else outcome
            return True
        if body is None or settlement.keeps_running:
            return False
        # The move is not stored. It is retried for as long as this worker has the lease.
        execution.failures += 1
        report_hook_failure(self.context, execution.job, move.state, error)
        if execution.failures == 1:
            job, by = execution.job, execution.owner
            note_hook_failure(self.context, job, move.state, error, actor=by, retried_by="worker", attempt=job.attempt)
        if settlement.retry_hooks:
            settlement.retry_in = execution.spec.backoff.delay(execution.failures, self.context.random())
        return False

    # ------------------------------------------------------------ deciding
    def _decide(self, settlement: Settlement) -> Move:
        """Return the move for this outcome. If the lifecycle does not allow the outcome, the job fails."""
        execution = settlement.execution
        if execution.withdrawn and isinstance(settlement.outcome, Returned):
            settlement.outcome = Requeued(WHY["shutdown"])
        outcome = settlement.outcome
        if isinstance(outcome, CancelRequested):
            self._reload_cancel_request(execution)
            by = execution.job.cancel_requested_by
            outcome = (
                CancelRequested(execution.job.cancel_reason, by) if by else Requeued("the cancel request was withdrawn")
            )
        try:
            move = self._decide_outcome(execution, outcome)
        except TransitionRefused as error:
            if settlement.keeps_running or isinstance(outcome, Requeued):
                raise
            move = self._decide_outcome(execution, FailedFinally(clean(str(error))))
        settlement.move = move
        return move

    def _decide_outcome(self, execution: HeldExecution, outcome: Outcome) -> Move:
        lifecycle, job, policy, actor = execution.lifecycle, execution.job, execution.spec.policy, execution.owner
        move = self._successes.find(lifecycle, job, execution, outcome, policy, actor=actor)
        if move is None:
            move = decide(lifecycle, job, execution, outcome, policy, self.context.random(), actor=actor)
            self._successes.remember(lifecycle, outcome, policy, move)
        move.progress, move.usage = execution.progress_and_usage()
        return move

    def _reload_cancel_request(self, execution: HeldExecution) -> None:
        """Read the job's cancel request. Other columns are not read: they may belong to another worker's attempt."""
        job, find = execution.job, self.context.retry_while_unavailable
        found = find(lambda: self.context.store.inspect.get(job.id), "report")
        if found.attempt == job.attempt:
            job.cancel_requested_at, job.cancel_requested_by = found.cancel_requested_at, found.cancel_requested_by
            job.cancel_reason = found.cancel_reason

    # ------------------------------------------------------------ afterwards
    def _handle_stored(self, settlement: Settlement, move: Move) -> None:
        settlement.move = move
        settlement.execution.apply_move(move)
        report_move(self.context, settlement.execution, move)

    def _handle_refusal(self, settlement: Settlement, move: Move, refusal: Refusal) -> None:
        execution, outcome = settlement.execution, settlement.outcome
        failed = isinstance(outcome, FailedFinally) and outcome.reason.startswith(UNSTORABLE)
        if refusal.error is not None and not refusal.collided and not failed:
            settlement.outcome = FailedFinally(clean(f"{UNSTORABLE}{refusal.error}"))
            self.settle_one(settlement)
            return
        if _missed_cancel_request(move, refusal):
            # This worker still owns the lease. A job with a cancel request must not return to a waiting state.
            self._reload_cancel_request(execution)
            self.settle_one(settlement)
            return
        row = report_refusal(self.context, execution, move, refusal)
        execution.halt("lost")
        settlement.error = LeaseLost(f"Job {execution.job.id} was not moved to {move.state}: the row is {row}.")


def _keep_error(settlement: Settlement, work: Callable[..., None], *args: object) -> None:
    """Call `work` and store its error in the settlement, so that the rest of the batch is settled."""
    try:
        work(*args)
    except Exception as error:  # noqa: BLE001 - kept in the settlement
        settlement.error = error


def _missed_cancel_request(move: Move, refusal: Refusal) -> bool:
    """Whether a move was refused only because the job has a cancel request that `decide` did not know of."""
    mine = (move.attempt, move.holder, move.from_status, move.source)
    found = (refusal.attempt, refusal.holder, refusal.status, refusal.state)
    return not move.saw_cancel_request and move.phase == "pending" and found == mine


# ---------------------------------------------------------------- committing with the user's functions
class _TrackedBody:
    """A body that counts its calls and records whether it raised."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.calls = 0
        self.raised = False

    def __call__(self, tx: Any, job: Job) -> None:
        self.calls += 1
        try:
            self._body(tx, job)
        except BaseException:
            self.raised = True
            raise


def commit(context: SettleContext, move: Move | Take, body: Body, spec: KindSpec, *, retry: bool) -> Refusal | None:
    """Store one transition and run `body` in its transaction. Returns the refusal if the fence does not match.

    With `retry`, a worker repeats the commit while the database is unreachable. For each try, a worker enters the
    `around_attempt` context managers again, which may repair the user's connection.
    """
    tracked = _TrackedBody(body)
    send = functools.partial(_send, context, move, tracked, spec.commit_timeout, retry=retry and context.in_worker)
    once = functools.partial(_surrounded, send, move, spec) if context.in_worker else send
    return context.retry_while_unavailable(once, "commit") if retry else once()


def _surrounded(send: Callable[[], Refusal | None], move: Move | Take, spec: KindSpec) -> Refusal | None:
    sent: list[Refusal | None] = []
    try:
        call_within(spec.around, lambda: sent.append(send()))
    except BaseException as error:
        if not sent:
            message = f"around_attempt raised {type(error).__name__} around the commit of job {move.job_id}"
            raise error if isinstance(error, Exception) else RuntimeError(message) from error
        _log.warning("Job %s is committed, but around_attempt raised afterwards: %s", move.job_id, headline(error))
    return sent[0]


def _send(
    context: SettleContext, move: Move | Take, body: _TrackedBody, timeout: float, *, retry: bool
) -> Refusal | None:
    try:
        return context.store.transitions.commit(move, body, transaction=context.transaction, timeout=timeout)
    except InterlockError:
        raise
    except Exception as error:
        if not retry or context.transaction is None or body.raised or body.calls >= MAX_COMMITS:
            raise
        # The user's own transaction failed to end, so its result is unknown. The fence makes another try safe.
        raise Unavailable(f"Your transaction could not be ended: {headline(error)}") from error
