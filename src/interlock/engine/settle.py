"""From an outcome to a stored move: decided once, written fenced, and sent again where the reply was lost. It blocks, so it runs in threads."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import events
from ..declaration import Declaration
from ..errors import InterlockError, LeaseLost, TransitionRefused, Unavailable
from ..job import Job
from ..move import Move, decide
from ..outcome import Advanced, Cancelled, Failed, Outcome, Released, Returned, Started
from ..payload import clean
from ..records import Refusal
from ..taxonomy import headline
from ..user_code import Scope, context_of, surround
from .desk import Desk
from .grip import Grip
from .points import Point, pass_by
from .verdict import outcome_of, unrecorded

_log = logging.getLogger("interlock")
SENT = 5
"""How often a commit is sent again whose end, in a transaction of the user's own, nobody knows."""
_GOES_ON = (Started, Advanced)
"""What would make a job wait again: not if someone asked it to stop."""


@dataclass(slots=True, eq=False)
class Item:
    """One outcome on its way to the store."""

    grip: Grip
    outcome: Outcome
    done: Callable[["Item"], None]
    """Called in the event loop when it is settled, or cannot be."""
    value: Any = None
    """What the handler returned, for its commit function."""
    error: Exception | None = None
    move: Move | None = None
    once: bool = False
    """Where a hook raises, it is not waited for: whoever settles it comes back by himself."""

    again: float | None = None
    """Seconds after which it is to be tried again: a hook raised, and nobody waits for that in a thread that others need."""

    @property
    def goes_on(self) -> bool:
        return isinstance(self.outcome, _GOES_ON)


class _Inside:
    """What runs inside a commit, and whether it raised there."""

    def __init__(self, body: Callable[[Any, Job], None]) -> None:
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


class Settler:
    """Decides and stores. Whatever goes wrong for one job ends in that job's item, never in another's."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    # ------------------------------------------------------------ many
    def together(self, items: Sequence[Item]) -> None:
        """One statement for all. Each item then has its move, or its error."""
        begun = self.desk.waits.monotonic()
        moves: dict[str, tuple[Item, Move]] = {}
        for item in items:
            try:
                move = item.move or self.decided(item)
            except Exception as error:  # noqa: BLE001 - the item carries it
                item.error = error
            else:
                moves[move.job_id] = item, move
        if not moves:
            return
        try:
            self._pass(Point.BEFORE_COMMIT, items)
            refusals = self.desk.persistently(lambda: self.desk.store.move([move for _, move in moves.values()]), "report")
            self._pass(Point.AFTER_COMMIT, items)
        except Exception as error:  # noqa: BLE001 - the items carry it
            for item, _ in moves.values():
                item.error = error
            return
        for refusal in refusals:
            if refusal.job_id in moves:
                item, move = moves.pop(refusal.job_id)
                _guarded(item, functools.partial(self._refused, item, move, refusal))
            else:
                _log.error("the store refused a move of job %s, which was not in the batch", refusal.job_id)
        for item, move in moves.values():
            _guarded(item, functools.partial(self._carried_out, item, move))
        self.desk.events.emit(events.Batch("settle", len(items), self.desk.waits.monotonic() - begun))

    def _pass(self, point: Point, items: Sequence[Item]) -> None:
        if self.desk.points is not pass_by:
            for item in items:
                if isinstance(item.outcome, Returned):
                    self.desk.points(point, item.grip.job)

    def each(self, items: Sequence[Item]) -> None:
        """All of them: those whose move runs code of their kind one by one, the others by one statement."""
        together = list[Item]()
        for item in items:
            try:
                runs_code = self._body(item, self.decided(item)) is not None
            except Exception as error:  # noqa: BLE001 - the item carries it
                item.error = error
                continue
            if runs_code:
                self.alone(item)
            else:
                together.append(item)
        if together:
            self.together(together)

    # ------------------------------------------------------------ one
    def alone(self, item: Item) -> None:
        """One move in a transaction of its own, with the functions that its kind runs there."""
        while True:
            try:
                move = self.decided(item)
            except Exception as error:  # noqa: BLE001 - the item carries it
                item.error = error
                return
            body = self._body(item, move)
            try:
                refusal = self._write(item, move, body)
            except Exception as error:  # noqa: BLE001 - judged here
                if isinstance(error, Unavailable) or not self._judged(item, move, error, ran_code=body is not None):
                    item.error = error
                    return
                continue
            if refusal is None:
                self._carried_out(item, move)
            else:
                self._refused(item, move, refusal)
            return

    def _write(self, item: Item, move: Move, body: Callable[[Any, Job], None] | None) -> Refusal | None:
        desk, declaration = self.desk, item.grip.declaration
        if body is None:
            refusals = desk.persistently(lambda: desk.store.move([move]), "report")
            return refusals[0] if refusals else None
        job = item.grip.job
        desk.points(Point.BEFORE_COMMIT, job)
        refusal = desk.persistently(functools.partial(self._commit, move, _Inside(body), declaration), "commit")
        desk.points(Point.AFTER_COMMIT, job)
        return refusal

    def _commit(self, move: Move, inside: "_Inside", declaration: Declaration) -> Refusal | None:
        """Try to commit once, inside the `around_attempt` context managers, which may repair the user's connection."""
        sent: list[Refusal | None] = []
        try:
            surround(declaration.around, lambda: sent.append(self._send(move, inside, declaration.commit_timeout)))
        except BaseException as error:
            if not sent:
                said = f"around_attempt raised {type(error).__name__} around its commit"
                raise error if isinstance(error, Exception) else RuntimeError(said) from error
            _log.warning("job %s is committed, but around_attempt raised afterwards: %s", move.job_id, headline(error))
        return sent[0]

    def _send(self, move: Move, inside: "_Inside", timeout: float) -> Refusal | None:
        try:
            return self.desk.store.commit(move, inside, transaction=self.desk.transaction, timeout=timeout)
        except InterlockError:
            raise
        except Exception as error:
            if self.desk.transaction is None or inside.raised or inside.calls >= SENT:
                raise
            # The user's own transaction broke when it was ended: nobody knows how, and sending the same again settles it.
            raise Unavailable(f"Your transaction could not be ended: {headline(error)}") from error

    def _body(self, item: Item, move: Move) -> Callable[[Any, Job], None] | None:
        """What runs inside the transaction of this move: the commit function, then the hooks of the states it enters."""
        inside = item.grip.declaration.moving(move, item.value, commits=isinstance(item.outcome, Returned))
        if inside is None:
            return None

        def body(tx: Any, job: Job) -> None:
            context_of(Scope(job.kind, job.id, item.grip.job.attempt)).run(inside, tx, job)
            self.desk.points(Point.IN_COMMIT, job)

        return body

    def _judged(self, item: Item, move: Move, error: Exception, *, ran_code: bool) -> bool:
        """A function of the job raised, or its row cannot be stored. Is there another way to go on with it?"""
        grip = item.grip
        if isinstance(item.outcome, Returned):
            outcome = outcome_of(error, grip, self.desk.now)
            item.outcome = unrecorded(outcome) if item.outcome.begins else outcome
            return True
        if not ran_code or item.goes_on:
            return False
        # A hook on the way to an end that is not success: the move is not made, and tried again for as long as we hold the job.
        grip.failures += 1
        self.desk.events.emit(events.HookFailed(grip.job.id, grip.job.kind, move.state, error))
        if grip.failures == 1:
            self.remark(grip, "hook_failed", f"the hook for {move.state} raised {headline(error)}; the worker retries it")
        item.again = None if item.once else grip.declaration.backoff.delay(grip.failures, self.desk.draw())
        return False

    # ------------------------------------------------------------ what came of it
    def decided(self, item: Item) -> Move:
        """The move that this outcome means. What the lifecycle cannot do with it fails the job, with that sentence."""
        grip, outcome = item.grip, item.outcome
        if isinstance(outcome, Cancelled):
            self._hear(grip)
            by = grip.job.cancel_requested_by
            outcome = Cancelled(grip.job.cancel_reason, by) if by else Released("its stop was taken back")
        try:
            move = self._decide(grip, outcome)
        except TransitionRefused as error:
            if item.goes_on or isinstance(outcome, Released):
                raise
            move = self._decide(grip, Failed(clean(str(error))))
        move.progress, move.usage = grip.shown()
        item.move = move
        return move

    def _hear(self, grip: Grip) -> None:
        """Was it asked to stop meanwhile? Only that is taken over: whatever else stands there now may be another's attempt, and not ours to move."""
        job, found = grip.job, self.desk.persistently(lambda: self.desk.store.get(grip.job.id), "report")
        if found.attempt == job.attempt:
            job.cancel_requested_at, job.cancel_requested_by, job.cancel_reason = found.cancel_requested_at, found.cancel_requested_by, found.cancel_reason

    def _decide(self, grip: Grip, outcome: Outcome) -> Move:
        return decide(grip.lifecycle, grip.job, grip, outcome, grip.declaration.policy, self.desk.draw(), actor=grip.owner)

    def _carried_out(self, item: Item, move: Move) -> None:
        grip, emit = item.grip, self.desk.events.emit
        grip.moved(move)
        if self.desk.events.wants(events.Transition):
            for arrow in move.path:
                job = grip.job
                emit(events.Transition(job.id, job.kind, job.lifecycle, arrow.event, arrow.source, arrow.target, job.attempt, move.actor))
        handed = move.external_id is not None
        if (handed or move.ended_by is not None) and self.desk.events.wants(events.AttemptEnded):
            job = grip.job
            ran = None if grip.elsewhere else self.desk.waits.monotonic() - grip.began
            waited = None if grip.elsewhere else max((job.updated_at - job.due_at).total_seconds(), 0.0)
            outcome = "handed" if handed else move.ended_by or ""
            why = move.error.strip().rpartition("\n")[2][:200] if move.error else None
            raised = grip.raised if move.error else None
            emit(events.AttemptEnded(job.id, job.kind, job.queue, job.attempt, outcome, waited, ran, why, raised, final=move.phase == "failed"))

    def _refused(self, item: Item, move: Move, refusal: Refusal) -> None:
        grip = item.grip
        failed = isinstance(item.outcome, Failed) and item.outcome.reason.startswith("unstorable")
        if refusal.error is not None and not refusal.collided and not failed:
            item.outcome = Failed(clean(f"unstorable: {refusal.error}"))
            self.alone(item)
            return
        if _only_unheard(move, refusal):
            # Still ours: it was asked to stop since the job was read, and must not wait again without that being heard.
            self._hear(grip)
            self.alone(item)
            return
        stands = refusal.error or f"attempt {refusal.attempt}, holder {refusal.holder}, {refusal.status}, in {refusal.state}"
        wanted = f"{move.to_status} in {move.state}"
        self.desk.events.emit(events.MoveRefused(grip.job.id, grip.job.kind, move.attempt, wanted, stands))
        self.remark(grip, "refused", f"holder {move.holder} of attempt {move.attempt} wanted {wanted}; there stands {stands}")
        grip.halt("lost")
        item.error = LeaseLost(f"Job {grip.job.id} was not moved to {move.state}: there stands {stands}.")

    def remark(self, grip: Grip, event: str, reason: str) -> None:
        """Best effort: the event was emitted whatever becomes of it."""
        try:
            self.desk.store.remark(grip.job.id, attempt=grip.job.attempt, event=event, actor=grip.owner, reason=clean(reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job itself is settled
            _log.warning("job %s: %s could not be remarked: %s", grip.job.id, event, error)


def _guarded(item: Item, work: Callable[[], None]) -> None:
    """Keep the error of one item with that item, so that the rest of its batch is settled."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the item carries it
        item.error = error


def _only_unheard(move: Move, refusal: Refusal) -> bool:
    """Whether nothing stands in a move's place but a request to stop that its decider had not heard of."""
    mine = (move.attempt, move.holder, move.from_status, move.source)
    return not move.heard and move.phase == "pending" and (refusal.attempt, refusal.holder, refusal.status, refusal.state) == mine
