"""Runs a task periodically, in a thread or in the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..telemetry.events import WorkerError
from .context import WorkerContext


@dataclass(frozen=True)
class Periodic:
    """A task that runs at once, and again after each pause. An error is reported and does not stop the next run."""

    context: WorkerContext
    name: str
    """The name of the task in the `WorkerError` of a failed run."""
    interval: Callable[[], float]
    """Returns the seconds until the next run. It is called after every run."""
    jitter: bool = False
    """Spread each pause by a quarter in both directions, so that workers do not run at the same time."""

    def pause(self) -> float:
        """Return the seconds to wait before the next run."""
        seconds = self.interval()
        return seconds * (0.75 + self.context.random() / 2) if self.jitter else seconds

    def run_in_thread(self, task: Callable[[], object]) -> None:
        """Run the task until the worker ends. This is the body of a thread."""
        while True:
            try:
                task()
            except Exception as error:  # noqa: BLE001 - the thread must outlive any error
                self._report(error)
            if self.context.stopped.wait(self.pause()):
                return

    async def run_in_loop(
        self,
        task: Callable[[], Awaitable[object]],
        stopped: asyncio.Event,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Run the task until `stopped` is set. This is the body of an asyncio task."""
        while not stopped.is_set():
            try:
                await task()
            except Exception as error:  # noqa: BLE001 - the task must outlive any error
                self._report(error)
            waiting = [asyncio.ensure_future(stopped.wait()), asyncio.ensure_future(sleep(self.pause()))]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()

    def _report(self, error: Exception) -> None:
        self.context.events.emit(WorkerError(self.context.owner, self.name, error))
