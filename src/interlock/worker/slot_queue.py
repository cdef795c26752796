"""The executions that wait for a slot, and how long they may wait."""

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from ..engine.held_execution import HeldExecution

LONGEST_WAIT = 1.0
"""Seconds after which a job that was claimed in advance and has not started returns to the database."""


class SlotQueue:
    """Executions that wait for a slot. Committed ones, jobs on their last try and jobs that lost a lease come first.

    Among these, and among the others, the one that has waited longest comes first. Use it in the event loop only.
    """

    def __init__(self, on_late: Callable[[], None], context: contextvars.Context) -> None:
        self._on_late = on_late
        self._context = context
        self._urgent: deque[HeldExecution] = deque()
        self._ordinary: deque[HeldExecution] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ordinary)

    def add(self, execution: HeldExecution) -> None:
        execution.queued_at = self._loop.time()
        job = execution.job
        urgent = execution.status == "COMMITTED" or job.lease_losses or job.tries_left <= 1
        (self._urgent if urgent else self._ordinary).append(execution)

    @property
    def first(self) -> HeldExecution | None:
        """The next execution."""
        waiting = self._urgent or self._ordinary
        return waiting[0] if waiting else None

    def next(self) -> HeldExecution:
        """Remove the next execution and return it."""
        return (self._urgent or self._ordinary).popleft()

    def remove_unstarted(self, *, late: bool = False) -> list[HeldExecution]:
        """Remove the jobs that can return to the database, and return them; if `late`, only those that waited long."""
        until = self._loop.time() - LONGEST_WAIT if late else math.inf
        removed = [execution for execution in self._all() if execution.queued_at <= until and _can_return(execution)]
        gone = {id(execution) for execution in removed}
        self._urgent = deque(execution for execution in self._urgent if id(execution) not in gone)
        self._ordinary = deque(execution for execution in self._ordinary if id(execution) not in gone)
        return removed

    def watch(self) -> None:
        """Call `on_late` if a job is still here after `LONGEST_WAIT`."""
        if len(self) and self._timer is None:
            self._timer = self._loop.call_later(LONGEST_WAIT, self._check, context=self._context.copy())

    def _check(self) -> None:
        self._timer = None
        # Jobs that must not wait come first, so the first one need not have waited longest.
        since = min((execution.queued_at for execution in self._all() if _can_return(execution)), default=None)
        if since is None:
            return
        left = since + LONGEST_WAIT - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check, context=self._context.copy())
        else:
            self._on_late()
            self.watch()

    def _all(self) -> Iterator[HeldExecution]:
        return chain(self._urgent, self._ordinary)


def _can_return(execution: HeldExecution) -> bool:
    """Whether the lifecycle allows a job that has not started to return to a waiting state."""
    return (
        execution.status != "COMMITTED"
        and execution.lifecycle.return_path(execution.job.state, "lose", "retry") is not None
    )
