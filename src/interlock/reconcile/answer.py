"""Answers the question of a job, for the person or program that calls."""

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

from ..core.job import Job
from ..core.outcome import Looked, Returned
from ..core.payload import clean
from ..core.sleeper import pauses
from ..engine.context import SettleContext
from ..engine.held_execution import HeldExecution
from ..engine.settle import Settler
from ..engine.settle_events import add_note
from ..engine.settlement import Settlement
from ..errors import TransitionRefused, Unavailable
from ..jobs.question import is_question, question_id
from ..jobs.spec import KindSpec
from ..store.types import Lease
from .callback import take_over
from .deadline import Deadline, read_deadline

WAIT = 5.0
"""Seconds for which an answer waits until the handler has returned its question."""


def answer(context: SettleContext, kind: KindSpec, root: str, value: Any) -> bool:
    """Answer a job by `root`, the first job of its redrives; the newest one gets the answer. False if it has one.

    `PayloadError` if the value does not fit, `TransitionRefused` if the question can no longer be answered, and
    `TimeoutError` if the job does not wait for an answer yet. Nothing changes then, nor if the commit function raises.
    """
    return _answer(context, kind, lambda: _find_asking(context, root), value, None)


def answer_job(context: SettleContext, kind: KindSpec, id: str, value: Any, reason: str | None) -> bool:
    """Answer the question of this job, as `answer` does."""
    return _answer(context, kind, lambda: context.store.inspect.get(id), value, reason)


def _answer(context: SettleContext, kind: KindSpec, find: Callable[[], Job], value: Any, reason: str | None) -> bool:
    """Answer the question of the job that `find` returns."""
    text = kind.signature.dump_value(value, "got an answer")
    given = kind.signature.load_value(json.loads(text))
    outcome = Returned(text, boundary=kind.finish is not None, begins=True, reason=reason)
    for pause in chain(pauses(context.sleeper, WAIT), [0.0]):
        # At most one lease: the external id of a question is its job.
        for lease in take_over(context, kind, question_id(find().id), "answer"):
            if _answer_one(context, lease, outcome, given):
                return True
        if _was_answered(context, find()):
            return False
        context.sleeper.sleep(pause)
    job = find()
    raise TimeoutError(
        f"Job {job.id} does not wait for an answer yet: it is {job.phase} in {job.state}. Nothing was stored. Call "
        "answer again later."
    )


def _answer_one(context: SettleContext, lease: Lease, outcome: Returned, value: Any) -> bool:
    """Store the answer of one leased job. If that is not possible, the job still waits, and the error says why."""
    execution, settler = context.execution_of(lease), Settler(context)
    deadline = read_deadline(context, lease.job.id)
    try:
        _check_open(execution, deadline, lease)
        stored = settler.settle_or_raise(Settlement(execution, outcome, value=value))
    except Unavailable:
        # The answer may be stored. If it is not, the job waits again when this lease ends.
        raise
    except Exception:
        settler.settle_or_raise(Settlement(execution, Looked(deadline.check_in, seen=None)))
        raise
    if stored and outcome.boundary:
        # The transition is stored after the finish function, with the worker as its actor.
        job, why = execution.job, outcome.reason or "the worker runs the finish function next"
        add_note(context, job, "answer", why, actor=context.owner, attempt=job.attempt)
    return stored


def _check_open(execution: HeldExecution, deadline: Deadline, lease: Lease) -> None:
    """Raise `TransitionRefused` if the job that was leased can no longer be answered."""
    if execution.must_cancel:
        raise _too_late(execution.job, "it has a cancel request")
    if deadline.passed or not is_question(lease):
        raise _too_late(execution.job, "its deadline has passed")


def _find_asking(context: SettleContext, root: str) -> Job:
    """Return the job that a token answers now: one of `root` and its redrives. `NotFound` if all were deleted."""
    return context.store.inspect.get(context.store.external.asking_job(root) or root)


def _was_answered(context: SettleContext, job: Job) -> bool:
    """Whether the question has its answer. False if it may still get one, `TransitionRefused` if it cannot."""
    executions = context.store.inspect.executions(job.id)
    last = executions[-1] if executions else None
    if last is not None and last.external_id == question_id(job.id) and last.committed_at is not None:
        if last.next_check_at is not None and last.committed_at < last.next_check_at:
            return True
        raise _too_late(job, "nobody answered in time, and it succeeded with its default")
    if job.ended:
        why = (job.cancel_reason or job.last_error or "").strip().rpartition("\n")[2]
        raise _too_late(job, f"it ended in {job.state}" + (f": {why}" if why else ""))
    return False


def _too_late(job: Job, why: str) -> TransitionRefused:
    return TransitionRefused(clean(f"Job {job.id} cannot be answered: {why.rstrip('.')}. Nothing was stored."))
