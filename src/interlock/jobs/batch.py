"""A batch: a named set of jobs, which other jobs can wait for."""

import asyncio
from collections.abc import Iterator

from ..core.clock import Seconds, seconds
from ..core.job import Job
from ..core.sleeper import pauses
from ..store.flow_types import BatchProgress
from ..store.open_transactions import open_transactions, refuse_inside
from .async_twin import async_twin
from .backend import Backend


class Batch:
    """A named set of jobs. Pass it in `after` to make a job wait until all of them have ended."""

    id: str
    name: str

    def __init__(self, id: str, name: str, backend: Backend) -> None:
        self.id = id
        self.name = name
        self._backend = backend

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.id}>"

    def progress(self) -> BatchProgress:
        """Count the jobs by phase. A job that was redriven counts once. `NotFound` if retention has deleted it."""
        return self._backend.store().flow.batch(self.id)

    def jobs(self, *, phase: str | None = None, limit: int = 100, after: str | None = None) -> list[Job]:
        """Return jobs of the batch, in the order of their creation. `after` is the last id of the previous page."""
        return self._backend.store().flow.members(self.id, phase=phase, limit=limit, after=after)

    def wait(self, *, timeout: Seconds = 60.0) -> BatchProgress:
        """Wait until all jobs have ended. `TimeoutError` if they do not in time; they continue."""
        self._refuse_inside("wait")
        for pause in self._pauses(timeout):
            if (found := self.progress()).ended:
                return found
            self._backend.sleeper.sleep(pause)
        raise self._timed_out(timeout)

    async def await_end(self, *, timeout: Seconds = 60.0) -> BatchProgress:  # noqa: ASYNC109 - the twin of `wait`
        """`wait` for asyncio."""
        self._refuse_inside("await_end")
        for pause in self._pauses(timeout):
            if (found := await asyncio.to_thread(self.progress)).ended:
                return found
            await self._backend.sleeper.asleep(pause)
        raise self._timed_out(timeout)

    aprogress = async_twin(progress)
    ajobs = async_twin(jobs)

    def _refuse_inside(self, verb: str) -> None:
        if open_transactions():
            refuse_inside(self._backend.store(), f"batch.{verb}")

    def _pauses(self, timeout: Seconds) -> Iterator[float]:
        """Yield a pause after each read. The last read happens at the end of the timeout."""
        yield from pauses(self._backend.sleeper, seconds(timeout, "timeout"))
        yield 0.0

    def _timed_out(self, timeout: Seconds) -> TimeoutError:
        return TimeoutError(
            f"The jobs of batch {self.name} have not ended within {seconds(timeout):g} s. They continue: wait again "
            "later, or give a longer timeout."
        )
