"""Bounds the outcomes that wait to be stored, so that a slow database slows the handlers down.

If a worker dies, each job that it has run and not stored loses a try.
"""

from ..engine.held_execution import HeldExecution

MOST_UNSTORED = 1000
"""How many outcomes may wait to be stored, besides one for each slot. With more, no handler starts."""
MOST_ALONE = 100
"""How many outcomes may wait that need a function of their kind, such as a commit function, which may be slow. If the
worker has more slots than that, one for each slot.
"""
MOST_RETRIED = 1000
"""How many outcomes may wait for a retry of their hook. They count only here, because a hook may raise for hours."""


class UnstoredOutcomes:
    """The executions whose handler has ended and whose outcome is not stored. Use it in the event loop only."""

    def __init__(self, slots: int, *, may_lose: bool) -> None:
        """`may_lose` is false if the death of a worker could fail or hold a job.

        Then a job that is not stored counts like a running one.
        """
        self._most_started = slots + (MOST_UNSTORED if may_lose else 0)
        self._most_alone = max(slots, MOST_ALONE)
        self._alone: dict[int, HeldExecution] = {}
        """Those whose outcome needs a function of their kind."""
        self._retried: dict[int, HeldExecution] = {}
        """Those whose hook has raised."""

    def add(self, execution: HeldExecution) -> None:
        if execution.spec.settles_alone:
            self._alone[id(execution)] = execution

    def hook_raised(self, execution: HeldExecution) -> None:
        self._alone.pop(id(execution), None)
        self._retried[id(execution)] = execution

    def remove(self, execution: HeldExecution) -> None:
        self._alone.pop(id(execution), None)
        self._retried.pop(id(execution), None)

    def allow_start(self, started: int) -> bool:
        """Whether another handler may start, if this many executions have started and are not stored."""
        retried = len(self._retried)
        return started - retried < self._most_started and len(self._alone) < self._most_alone and retried < MOST_RETRIED

    def withdraw(self) -> None:
        """Return to the queue the jobs whose outcome no thread has begun to store.

        Their functions could take too long.
        """
        for execution in self._alone.values():
            execution.withdrawn = True
