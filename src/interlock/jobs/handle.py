"""A handle on a stored job: read it, wait for its end or its result, cancel it."""

import asyncio
from collections.abc import Iterator
from typing import Generic, cast

from typing_extensions import TypeVar

from ..core.clock import Seconds, seconds
from ..core.job import Job
from ..core.sleeper import pauses
from ..errors import JobFailed, NotFound
from ..store.open_transactions import open_transactions, refuse_inside
from ..store.types import Enqueued
from .async_twin import async_twin
from .backend import Backend

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """A stored job. `created` is False if the enqueue found an existing job under the same key.

    `replaced` is True if that job got the payload of this enqueue.
    """

    id: str
    created: bool
    replaced: bool

    def __init__(self, stored: Enqueued, backend: Backend, kind: str | None = None) -> None:
        self.id = stored.id
        self.created = stored.created
        self.replaced = stored.replaced
        self._backend = backend
        self._kind = kind

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    # ------------------------------------------------------------ read and cancel
    def job(self) -> Job:
        """Read the job as it is now. `NotFound` if retention has deleted it."""
        job = self._backend.store().inspect.get(self.id)
        if self._kind not in (None, job.kind):
            raise NotFound(f"Job {job.id} is of kind {job.kind}, not {self._kind}: use {job.kind} to read its result.")
        return job

    def cancel(self, *, by: str, reason: str = "") -> Job:
        """Cancel the job, as `app.cancel` does: end a waiting job, or ask a running one to stop."""
        return self._backend.cancel(self.id, by=by, reason=reason)

    ajob = async_twin(job)
    acancel = async_twin(cancel)

    # ------------------------------------------------------------ wait
    def wait(self, *, timeout: Seconds = 60.0) -> Job:
        """Wait until the job ends, in any final state. `TimeoutError` if it does not end in time; the job continues."""
        self._refuse_inside("wait")
        for pause in self._pauses(timeout):
            if (job := self.job()).ended:
                return job
            self._backend.sleeper.sleep(pause)
        raise self._timed_out(timeout)

    async def await_end(self, *, timeout: Seconds = 60.0) -> Job:  # noqa: ASYNC109 - the twin of `wait`
        """`wait` for asyncio. (`await` is a keyword.)"""
        self._refuse_inside("await_end")
        for pause in self._pauses(timeout):
            if (job := await asyncio.to_thread(self.job)).ended:
                return job
            await self._backend.sleeper.asleep(pause)
        raise self._timed_out(timeout)

    def result(self, *, timeout: Seconds = 60.0) -> R_co:
        """Wait for the job's result.

        `JobFailed` if the job ends without one, `TimeoutError` if it does not end in time.
        """
        self._refuse_inside("result")
        return self._value(self.wait(timeout=timeout))

    async def aresult(self, *, timeout: Seconds = 60.0) -> R_co:  # noqa: ASYNC109 - the twin of `result`
        """`result` for asyncio."""
        self._refuse_inside("aresult")
        return self._value(await self.await_end(timeout=timeout))

    def _refuse_inside(self, verb: str) -> None:
        """Refuse to wait inside an open transaction: a worker sees the job only after that transaction commits."""
        if open_transactions():
            refuse_inside(self._backend.store(), f"{self._kind or 'handle'}.{verb}")

    def _pauses(self, timeout: Seconds) -> Iterator[float]:
        """Yield a pause after each read of the job. The last read happens at the end of the timeout."""
        yield from pauses(self._backend.sleeper, seconds(timeout, "timeout"))
        yield 0.0

    def _value(self, job: Job) -> R_co:
        if job.phase != "succeeded":
            raise JobFailed(job)
        spec = self._backend.spec(job.kind)
        return cast("R_co", job.result if spec is None else spec.signature.load_value(job.result))

    def _timed_out(self, timeout: Seconds) -> TimeoutError:
        return TimeoutError(
            f"Job {self.id} has not ended within {seconds(timeout):g} s. It continues: wait again later, or give a "
            "longer timeout."
        )
