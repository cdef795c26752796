"""The parts of a store for limits and pauses, and for batches and dependencies."""

from collections.abc import Sequence
from typing import Protocol

from ...core.job import Job
from ...core.limits import Scope
from ..flow_types import BatchProgress, LimitChange, LimitSeen, Need, Operation


class LimitsPart(Protocol):
    """Limits and pauses of queues and kinds. Each change adds an operation, in the same transaction."""

    def change(self, scope: Scope, name: str, change: LimitChange, *, by: str, reason: str | None) -> None:
        """Change a limit at run time. It stays so until the next change or `reset`, whatever `migrate` declares.

        Claims that begin after this obey it. Jobs that run already continue.
        """
        ...

    def reset(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        """Return to the limit that the code declares. Return False if the limit was not changed at run time."""
        ...

    def pause(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        """Stop claims of a queue or kind. Return False if it is paused already.

        After this method has returned, no claim leases a job of it: it waits for claims that did not see the pause.
        """
        ...

    def resume(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        """End a pause. Return False if there is none."""
        ...

    def all(self) -> list[LimitSeen]:
        """Return every limit and pause, by scope and name."""
        ...

    def of_key(self, kind: str, key: str) -> tuple[int, float]:
        """Return how many jobs with this concurrency key run, and the seconds until its rate allows another start."""
        ...

    def operations(
        self, *, scope: str | None = None, name: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Operation]:
        """Return operations, the newest first. `after` is the last id of the previous page."""
        ...

    def forget_keys(self) -> int:
        """Delete what is stored about the rate of concurrency keys that may start as many jobs as a new one."""
        ...


class FlowPart(Protocol):
    """Batches, and jobs that wait for others."""

    def resolve(self) -> None:
        """Find blocked jobs whose dependencies have ended, and unblock, hold or cancel them.

        A job that a failure cancels gets a cancel request: a worker that knows its kind ends it. `claim`, and every
        method that ends jobs, calls this after its own transaction.
        """
        ...

    def to_cancel(self, kinds: Sequence[str], limit: int) -> list[Job]:
        """Return waiting jobs of these kinds with a cancel request, the longest requested first."""
        ...

    def reopenable(self, ids: Sequence[str]) -> list[Job]:
        """Return the cancelled dependents that can be redriven because the failed jobs were. `ids` are the new jobs.

        A failed dependency had cancelled them, none of their dependencies is failed any more, and they were not
        redriven before.
        """
        ...

    def needs(self, job_id: str, limit: int) -> list[Need]:
        """Return what the job waits for, or waited for: the open ones first, then the failed ones."""
        ...

    def count_needs(self, job_id: str) -> tuple[int, int]:
        """Return how many of the job's dependencies are open, and how many it has."""
        ...

    def results(self, job_id: str, kind: str) -> list[str | None]:
        """Return the results, as JSON, of the jobs of this kind that the job waited for and that succeeded.

        They are in the order in which the jobs were created. The jobs of a batch are included.
        """
        ...

    def batch(self, id: str) -> BatchProgress:
        """Return a batch. Raise `NotFound` if it does not exist. A flow includes the jobs of its batches."""
        ...

    def batches(self, *, parent: str | None = None, limit: int = 100, after: str | None = None) -> list[BatchProgress]:
        """Return the batches of a flow, or those that belong to no flow, the newest first."""
        ...

    def members(
        self,
        id: str,
        *,
        phase: str | None = None,
        limit: int = 100,
        after: str | None = None,
        redriven: bool = True,
    ) -> list[Job]:
        """Return jobs of a batch or a flow, in the order of their creation.

        With `redriven=False`, failed jobs that were redriven are left out.
        """
        ...
