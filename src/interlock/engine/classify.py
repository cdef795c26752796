"""Turns a handler's return value or exception into an outcome. Only this module classifies exceptions."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..core.error_policy import decide_by_kind, decide_retry, describe, headline
from ..core.outcome import (
    CancelRequested,
    Errored,
    FailedFinally,
    Handed,
    Held,
    Looked,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Unrecorded,
)
from ..core.payload import check_external_id, clean
from ..errors import Cancelled, InterlockError, LeaseLost, PayloadError, UsageError
from ..jobs.question import Question
from ..jobs.results import External, Fail, Reject, Retry, Snooze
from .held_execution import WHY, HeldExecution


class EffectInDoubt(Exception):
    """An effect may have happened. The job is held until an operator decides."""


def outcome_of(error: BaseException, execution: HeldExecution, now: Callable[[], datetime]) -> Outcome:
    """Return the outcome for an exception of a job's function. `now` is the store's clock; its errors propagate."""
    execution.last_exception = error
    try:
        return _outcome_of(error, execution, now)
    except InterlockError:
        raise
    except Exception as fault:  # noqa: BLE001 - an exception that cannot be read is retried like any other
        return Errored(clean(describe(fault)), retryable=True)


def _outcome_of(error: BaseException, execution: HeldExecution, now: Callable[[], datetime]) -> Outcome:  # noqa: PLR0911 - one return per kind of exception
    match error:
        case Retry(reason=reason, after=after):
            return Errored(_reason_text(reason) or "the handler asked for a retry", retryable=True, after=after)
        case Snooze(reason=reason, after=after, until=until):
            return Snoozed(after if until is None else max((until - now()).total_seconds(), 0.0), _reason_text(reason))
        case Fail(reason=reason):
            return FailedFinally(_reason_text(reason))
        case Reject(reason=reason):
            return Rejected(_reason_text(reason))
        case EffectInDoubt():
            return Held(clean(str(error)))
        case Cancelled() | LeaseLost() | asyncio.CancelledError() if execution.stop is not None:
            return outcome_of_stop(execution)
        case PayloadError() | UsageError():
            return FailedFinally(clean(describe(error)))
        case Exception():
            if (own := decide_by_kind(error, execution.spec.error_policy)) is not None:
                return Errored(clean(describe(error)), own.retryable, own.after)
            decision = decide_retry(error)
            return Errored(clean(describe(error)), decision.retryable, at_least=decision.after or 0.0)
        case _:
            # SystemExit and similar exceptions end the attempt, not the worker.
            return Errored(clean(describe(error)), retryable=True)


def _reason_text(reason: object) -> str:
    """Return the reason as text for the database. A handler may pass any object, such as an exception."""
    if isinstance(reason, BaseException):
        return clean(headline(reason))
    return clean(reason if isinstance(reason, str) else str(reason))


def as_unrecorded(outcome: Outcome) -> Outcome:
    """Return the outcome for a commit function that raised after an external system did the work.

    Only the commit is retried.
    """
    match outcome:
        case Errored():
            return Unrecorded(outcome.error, outcome.retryable, outcome.after, outcome.at_least)
        case Snoozed(after=after):
            return Looked(after, seen=True)
        case _:
            return outcome


def outcome_of_stop(execution: HeldExecution, *, started: bool = True) -> Outcome:
    """Return the outcome of a handler that stopped on request, or that was not `started` because of it."""
    match execution.stop:
        case "cancel":
            return CancelRequested(None, execution.owner)
        case "runtime":
            return Errored(f"{WHY['runtime']} of {execution.spec.max_runtime:g} s", retryable=True)
        case "shutdown":
            return Requeued(WHY["shutdown"], started)
        case _:
            # The worker may still own the lease. If another worker has taken the job, the store refuses this outcome.
            return Requeued("its worker could not renew the lease in time", started)


def outcome_of_value(execution: HeldExecution, value: Any) -> tuple[Outcome, Any]:
    """Return the outcome for a handler's return value, and the value for the commit function."""
    spec = execution.spec
    if isinstance(value, Question):
        terms = value.terms
        return Handed(value.external_id, terms.timeout, terms.dump()), None
    if isinstance(value, External):
        if spec.reconcile is None:
            return FailedFinally(
                f"{spec.name} returned External but has no reconcile function. Add one with @{spec.name}.reconcile."
            ), None
        try:
            return Handed(check_external_id(str(value.external_id)), 0.0), None
        except PayloadError as error:
            return FailedFinally(clean(str(error))), None
    try:
        text = spec.signature.dump_value(value)
    except PayloadError as error:
        return FailedFinally(clean(str(error))), None
    return Returned(text, boundary=spec.finish is not None), value
