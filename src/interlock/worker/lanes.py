"""Lanes: executions that the event loop runs, and those that need a thread.

In each lane, executions wait for a slot, and short ones are claimed in advance. So jobs that wait for a thread do not
delay those that need none.
"""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from ..engine.held_execution import HeldExecution
from ..jobs.spec import KindSpec
from .prefetch import Prefetch
from .slot_queue import SlotQueue

Runner = Literal["loop", "threads", "processes"]
"""What runs a handler: the event loop, a thread, or a child process."""
RUNNERS: tuple[Runner, ...] = ("loop", "processes", "threads")


def runner_of(spec: KindSpec) -> Runner:
    """Return what runs the handlers of this kind."""
    if spec.process:
        return "processes"
    return "loop" if spec.signature.is_async else "threads"


class Lane:
    """Executions with the same needs: which of them wait, and how many run."""

    def __init__(
        self, most_running: int, prefetch: Prefetch, on_late: Callable[["Lane"], None], context: contextvars.Context
    ) -> None:
        self.most_running = most_running
        self.running = 0
        self.prefetch = prefetch
        self.queue = SlotQueue(lambda: on_late(self), context)

    def room(self, free_slots: int, *, in_advance: bool) -> int:
        """Return how many jobs to claim: for free slots and, `in_advance`, for those that will be free in a moment."""
        waiting = len(self.queue)
        free = max(min(free_slots, self.most_running - self.running - waiting), 0)
        return free + (max(self.prefetch.most - waiting, 0) if in_advance else 0)

    @property
    def starting(self) -> int:
        """How many of the waiting executions this lane could start now."""
        return min(len(self.queue), self.most_running - self.running)

    @property
    def next_ready(self) -> HeldExecution | None:
        """The next execution to run, if another one may run."""
        return self.queue.first if self.running < self.most_running else None

    @property
    def batch(self) -> int:
        """The number of free places from which the worker claims while handlers run."""
        return max((self.most_running + self.prefetch.most) // 4, 1)


class Lanes:
    """The lanes of a worker. Use it in the event loop only."""

    def __init__(
        self,
        slots: int,
        threads: int,
        lease: float,
        on_late: Callable[[Lane], None],
        context: contextvars.Context,
        *,
        prefetches: bool,
    ) -> None:
        self._loop = Lane(slots, Prefetch(lease, allowed=prefetches), on_late, context)
        self._threads = Lane(min(threads, slots), Prefetch(lease, allowed=prefetches), on_late, context)

    def __iter__(self) -> Iterator[Lane]:
        return iter((self._loop, self._threads))

    @property
    def waiting(self) -> int:
        """How many executions wait for a slot."""
        return len(self._loop.queue) + len(self._threads.queue)

    @property
    def starting(self) -> int:
        """How many of them take a free slot if there is one."""
        return self._loop.starting + self._threads.starting

    def room(self, runner: Runner, free_slots: int, *, in_advance: bool) -> int:
        """Return how many jobs to claim for this runner.

        A lane of short handlers may take every slot that becomes free. So that it does not delay the others for as long
        as it has jobs, each of them may claim one job, which then waits for its turn.
        """
        lane = self.find(runner)
        room = free_slots if lane is None else lane.room(free_slots, in_advance=in_advance)
        turn = in_advance and (lane is None or (not lane.queue and lane.running < lane.most_running))
        return 1 if room == 0 and turn and any(other.prefetch.most for other in self) else room

    def find(self, runner: Runner) -> Lane | None:
        """Return the lane of these handlers. Child processes have none: nothing is claimed in advance for them."""
        return {"loop": self._loop, "threads": self._threads}.get(runner)

    def batch_of(self, runner: Runner) -> int:
        """Return the number of free places from which the worker claims while handlers run."""
        lane = self.find(runner)
        return 1 if lane is None else lane.batch

    def of(self, execution: HeldExecution) -> Lane:
        """Return the lane of an execution. One that runs in a child process needs no thread of this process."""
        runner = "processes" if execution.separate_process else runner_of(execution.spec)
        return self._threads if runner == "threads" else self._loop

    def handlers_ended(self, ended: Sequence[HeldExecution], now: float) -> None:
        """Take into account how long these handlers ran."""
        for lane in self:
            seconds = [now - execution.began for execution in ended if self.of(execution) is lane]
            if seconds:
                lane.prefetch.handlers_ended(len(seconds), sum(seconds), now)

    def next(self) -> HeldExecution | None:
        """Remove the execution that may run and has waited longest, and return it."""
        first, second = self._loop.next_ready, self._threads.next_ready
        if first is None or (second is not None and second.queued_at < first.queued_at):
            return None if second is None else self._threads.queue.next()
        return self._loop.queue.next()
