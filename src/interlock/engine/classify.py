"""From what a handler did to an outcome: the one place that reads exceptions."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..answers import External, Fail, Reject, Retry, Snooze
from ..effect import Doubtful
from ..errors import Cancelled as CancelledError
from ..errors import InterlockError, LeaseLost, PayloadError, UsageError
from ..outcome import Cancelled, Errored, Failed, Handed, Held, Looked, Outcome, Rejected, Released, Returned, Snoozed, Unrecorded
from ..payload import check_external_id, clean
from ..taxonomy import by_kind, describe, headline, judge
from .grip import WHY, Grip


def outcome_of(error: BaseException, grip: Grip, now: Callable[[], datetime]) -> Outcome:
    """The outcome for an exception of a job's function. `now` is the store's clock, whose errors propagate."""
    grip.raised = error
    try:
        return _outcome_of(error, grip, now)
    except InterlockError:
        raise
    except Exception as fault:  # noqa: BLE001 - an unreadable error counts as any other error
        return Errored(clean(describe(fault)), retryable=True)


def _outcome_of(error: BaseException, grip: Grip, now: Callable[[], datetime]) -> Outcome:  # noqa: PLR0911 - one answer per sort of exception
    match error:
        case Retry(reason=reason, after=after):
            return Errored(_told(reason) or "the handler asked for another try", retryable=True, after=after)
        case Snooze(reason=reason, after=after, until=until):
            return Snoozed(after if until is None else max((until - now()).total_seconds(), 0.0), _told(reason))
        case Fail(reason=reason):
            return Failed(_told(reason))
        case Reject(reason=reason):
            return Rejected(_told(reason))
        case Doubtful():
            return Held(clean(str(error)))
        case CancelledError() | LeaseLost() | asyncio.CancelledError() if grip.stop is not None:
            return stopped(grip)
        case PayloadError() | UsageError():
            return Failed(clean(describe(error)))
        case Exception():
            if (own := by_kind(error, grip.declaration.taxonomy)) is not None:
                return Errored(clean(describe(error)), own.retryable, own.after)
            verdict = judge(error)
            return Errored(clean(describe(error)), verdict.retryable, at_least=verdict.after or 0.0)
        case _:
            # SystemExit and the like end the attempt, never the worker.
            return Errored(clean(describe(error)), retryable=True)


def _told(reason: object) -> str:
    """A reason as text that can be stored. The handler may have given another object, such as an exception."""
    return clean(reason if isinstance(reason, str) else headline(reason) if isinstance(reason, BaseException) else str(reason))


def unrecorded(outcome: Outcome) -> Outcome:
    """What an error of a commit function means where the work itself was done elsewhere: it need not be done again, only written down."""
    match outcome:
        case Errored():
            return Unrecorded(outcome.error, outcome.retryable, outcome.after, outcome.at_least)
        case Snoozed(after=after):
            return Looked(after, seen=True)
        case _:
            return outcome


def stopped(grip: Grip) -> Outcome:
    """The outcome of a handler that was told to stop, and did."""
    match grip.stop:
        case "cancel":
            return Cancelled(None, grip.owner)
        case "runtime":
            return Errored(f"{WHY['runtime']} of {grip.declaration.max_runtime:g} s", retryable=True)
        case "release":
            return Released(WHY["release"])
        case _:
            # Trust ended, perhaps without a loss: whoever still holds it gives it back, and a loser is refused.
            return Released("its worker could not renew the lease in time")


def returned(grip: Grip, value: Any) -> tuple[Outcome, Any]:
    """What a returned value means: the end, or that the work goes on elsewhere. The value is given back as its commit function is to see it."""
    declaration = grip.declaration
    if isinstance(value, External):
        if declaration.reconcile is None:
            return Failed(f"{declaration.name} returned External, and nobody asks about it: give it a function with @{declaration.name}.reconcile."), None
        try:
            return Handed(check_external_id(str(value.external_id)), 0.0), None
        except PayloadError as error:
            return Failed(clean(str(error))), None
    try:
        text = declaration.signature.dump_value(value)
    except PayloadError as error:
        return Failed(clean(str(error))), None
    return Returned(text, boundary=declaration.finish is not None), value
