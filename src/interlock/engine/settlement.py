"""Outcomes of executions, to be stored."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.outcome import Advanced, Outcome, Started
from ..core.transition import Move
from ..errors import LeaseLost, TransitionRefused, Unavailable
from .held_execution import HeldExecution

OnSettled = Callable[[Sequence["Settlement"]], None]
"""Called in the event loop with outcomes that were stored or refused together."""


@dataclass(slots=True, eq=False)
class Settlement:
    """One outcome of one execution, to be stored."""

    execution: HeldExecution
    outcome: Outcome
    on_settled: OnSettled | None = None
    value: Any = None
    """The value that the handler returned, for the commit function."""
    retry_hooks: bool = True
    """Whether the caller waits and retries a hook that raised. Maintenance and reconcilers retry in a later round."""
    error: Exception | None = None
    move: Move | None = None
    retry_in: float | None = None
    """Seconds until the settlement is tried again, because a hook raised."""

    @property
    def keeps_running(self) -> bool:
        """Whether the handler continues after this outcome."""
        return isinstance(self.outcome, Started | Advanced)

    @property
    def is_left_to_others(self) -> bool:
        """Whether the outcome was not stored and another worker continues the job. It is no internal error."""
        return self.retry_in is not None or isinstance(self.error, LeaseLost | TransitionRefused | Unavailable)


def take_batch(waiting: deque[Settlement], most: int) -> list[Settlement]:
    """Remove the next batch and return it: each job at most once, in order of arrival."""
    batch: dict[str, Settlement] = {}
    later: list[Settlement] = []
    while waiting and len(batch) < most:
        settlement = waiting.popleft()
        if settlement.execution.job.id in batch:
            later.append(settlement)
        else:
            batch[settlement.execution.job.id] = settlement
    waiting.extendleft(reversed(later))
    return list(batch.values())
