"""The deadline of a question. The store's clock decides whether it has passed; the question says what happens then."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.outcome import FailedFinally, Looked, Returned
from ..core.payload import clean
from ..engine.context import SettleContext
from ..engine.held_execution import HeldExecution
from ..engine.settlement import Settlement
from ..errors import PayloadError
from ..jobs.question import Terms
from ..store.types import Lease


def check_questions(context: SettleContext, executions: Sequence[tuple[HeldExecution, Lease]]) -> list[Settlement]:
    """Return the outcomes of adopted questions. Before its deadline, a question stays open."""
    return [_settlement(context, execution, lease) for execution, lease in executions]


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadline of a question, by the store's clock."""

    passed: bool
    check_in: float
    """Seconds until the next check: the deadline or, after it, the next try to commit the default."""


def read_deadline(context: SettleContext, job_id: str) -> Deadline:
    """Return the deadline of a job's question. The caller has the lease, so no other process changes it."""
    execution = context.store.inspect.executions(job_id)[-1]
    checked_at = execution.next_check_at
    left = 0.0 if checked_at is None else max((checked_at - context.now()).total_seconds(), 0.0)
    # Only a default that could not be committed leaves an error.
    return Deadline(passed=left == 0 or execution.error is not None, check_in=left)


def _settlement(context: SettleContext, execution: HeldExecution, lease: Lease) -> Settlement:
    deadline = read_deadline(context, execution.job.id)
    if not deadline.passed:
        # The process that tried to store an answer has died.
        return Settlement(execution, Looked(deadline.check_in, seen=None), retry_hooks=False)
    terms = Terms.load(lease.result or "")
    if terms.default is None:
        return Settlement(execution, FailedFinally(terms.unanswered), retry_hooks=False)
    spec = execution.spec
    try:
        value = spec.signature.load_value(json.loads(terms.default))
    except PayloadError as error:
        # The default was checked when it was stored, so the code has changed since then.
        return Settlement(execution, FailedFinally(clean(str(error))), retry_hooks=False)
    outcome = Returned(terms.default, spec.finish is not None, begins=True, reason=terms.unanswered)
    return Settlement(execution, outcome, value=value, retry_hooks=False)
