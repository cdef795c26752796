"""Numbers the slots of a worker, and reports their changes of state."""

from ..core.outcome import Finished, Handed, Outcome, Returned
from ..engine.context import WorkerContext
from ..engine.held_execution import HeldExecution
from ..telemetry import events
from .states import check


class SlotStates:
    """Gives numbers to executions and emits an event for each change of state. Use it in the event loop only.

    An execution keeps its number until its outcome is stored, so there may be more numbers than slots.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._free: list[int] = []
        self._most = 0

    def take_number(self) -> int:
        if self._free:
            return self._free.pop()
        self._most += 1
        return self._most - 1

    def give_back(self, number: int) -> None:
        self._free.append(number)

    def go(self, execution: HeldExecution, target: str, why: str) -> None:
        """Move the slot of an execution to another state."""
        source, execution.state = execution.state, target
        self._moved(execution.slot, execution.job.id, source, target, why)

    def report_outcome(self, execution: HeldExecution, outcome: Outcome) -> None:
        """Move the slot of an execution whose outcome is about to be stored."""
        if execution.state == "Processing":
            good = isinstance(outcome, Returned | Handed) or (isinstance(outcome, Finished) and outcome.error is None)
            self.go(execution, "ReportingSuccess" if good else "ReportingFailure", type(outcome).__name__)

    def report_missed_claim(self) -> None:
        """Report that a job was due, but another worker claimed it first."""
        number = self.take_number()
        self._moved(number, None, "Polling", "Claiming", "a job is due")
        self._moved(number, None, "Claiming", "Polling", "another worker was faster")
        self.give_back(number)

    def _moved(self, number: int, job_id: str | None, source: str, target: str, why: str) -> None:
        check(source, target)
        if self._context.events.wants(events.SlotStateChanged):
            self._context.events.emit(events.SlotStateChanged(self._context.owner, number, source, target, why, job_id))
