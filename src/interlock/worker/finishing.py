"""Runs the finish function of a committed execution, again after an error or an outage."""

from collections.abc import Callable

from ..core.error_policy import describe
from ..core.outcome import Finished
from ..core.payload import clean
from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution
from ..telemetry import events
from .attempt import Attempts
from .subprocess.child_process import CannotStart, Died

RENEWAL_CHECK = 0.25
"""Seconds between two checks whether a lease was renewed."""


async def finish(
    context: WorkerContext, attempts: Attempts, execution: HeldExecution, *, stopped: Callable[[], bool]
) -> Finished | None:
    """Run the finish function until it succeeds or has used all tries of its kind. It never fails the job.

    Returns None if this worker must leave it to another one.
    """
    while True:
        outcome = await _finish(context, attempts, execution)
        if execution.stop is None:
            return outcome
        if not await _renewed(context, execution, stopped):
            return None


async def _finish(context: WorkerContext, attempts: Attempts, execution: HeldExecution) -> Finished:
    while execution.stop is None:
        error = await attempts.finish(execution)
        if error is None or execution.stop is not None:
            break
        if isinstance(error, Died) and error.others:
            # Any job in the process may have crashed it. The next run is alone and shows whether this job did.
            execution.shared_crash = execution.shared_crash or error.shared
            continue
        if not isinstance(error, CannotStart):
            execution.failures += 2 if isinstance(error, Died) and execution.shared_crash else 1
            context.events.emit(events.FinishFailed(execution.job.id, execution.job.kind, execution.failures, error))
        if execution.failures >= execution.spec.tries:
            return Finished(clean(describe(error)))
        await attempts.pause(execution, execution.spec.backoff.delay(max(execution.failures, 1), context.random()))
    return Finished()


async def _renewed(context: WorkerContext, execution: HeldExecution, stopped: Callable[[], bool]) -> bool:
    """Wait until a doubtful lease is renewed. Returns False if the lease is lost or the worker stops."""
    while execution.lease_doubtful and not stopped() and not context.stopped.is_set():
        if context.sleeper.monotonic() < execution.trusted_until():
            execution.resume_after_renewal()
            return True
        await context.sleeper.asleep(RENEWAL_CHECK)
    return False
