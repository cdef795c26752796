"""The methods of an app that read jobs and operate on them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from ..core.job import AuditEntry, Execution, Job
from ..core.job_filter import JobFilter
from ..core.limits import Limit
from ..core.payload import check_name, clean
from ..engine.context import SettleContext
from ..jobs.async_twin import async_twin
from ..jobs.backend import Backend
from ..jobs.batch import Batch
from ..jobs.declarations import Declarations
from ..jobs.handle import JobHandle
from ..store import OpenStore
from ..store.contract import Tx
from ..store.database import Database
from ..store.flow_types import LimitSeen, Operation
from ..store.open_transactions import refuse_inside
from ..store.types import Enqueued
from ..telemetry.events import Events
from .bulk import Bulk
from .controls import KindControls, QueueControls
from .explain import Explanation
from .explain import explain as explain_job
from .operator import Operator, decision_of, operator_name
from .schedules import Schedules
from .status import Status
from .status import status as status_of
from .verify import Report, verify

TxT = TypeVar("TxT", default=Tx)


class OperatedApp(Declarations[TxT], Generic[TxT]):
    """An app that can be read and operated. `App` adds the methods that enqueue and run jobs."""

    database: Database
    events: Events

    def __init__(
        self,
        backend: Backend,
        now: Callable[[], float],
        queues: Mapping[str, Limit],
        transaction: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        super().__init__(backend, now, queues)
        self._transaction = transaction

    def _store_outside(self, verb: str, instead: str | None = None) -> OpenStore:
        """Return the store, for a method that needs its own transaction. `UsageError` inside an open one."""
        store = self.database.store()
        refuse_inside(store, verb, *([instead] if instead else []))
        return store

    def _handle(self, stored: Enqueued) -> JobHandle[Any]:
        return JobHandle(stored, self._backend)

    # ------------------------------------------------------------ read
    def get(self, id: str, /) -> Job:
        """Read the job as it is now. `NotFound` if no job has this id."""
        return self.database.store().inspect.get(id)

    def jobs(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        phase: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_like: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Job]:
        """Return the jobs that match every given filter, newest first. `after` is the last id of the previous page.

        `since` and `until` compare the time at which a job ended or, if it has not ended, was created.
        """
        chosen = JobFilter(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, since=since, until=until, error_like=error_like
        )
        return self.database.store().inspect.jobs(matching=chosen, limit=limit, after=after)

    def executions(self, id: str, /) -> list[Execution]:
        """Return all executions of a job, by attempt."""
        return self.database.store().inspect.executions(id)

    def history(self, id: str, /) -> list[AuditEntry]:
        """Return the audit entries of a job, in order. They remain after retention has deleted the job."""
        return self.database.store().inspect.history(id)

    def verify(self) -> Report:
        """Recompute every job's state from its executions and check every rule on the whole database."""
        return verify(self._store_outside("app.verify"))

    # ------------------------------------------------------------ operate
    def cancel(self, id: str, /, *, by: str, reason: str = "") -> Job:
        """End a waiting job, or ask a running one to stop; the job's phase says which.

        A running job may still succeed.
        """
        return self._operator(by, "app.cancel").cancel(id, clean(reason) or None)

    def reject(self, id: str, /, *, by: str, reason: str) -> Job:
        """Reject a waiting job, if its lifecycle has a `reject` transition from its state."""
        return self._operator(by, "app.reject").reject(id, clean(reason))

    def release(
        self,
        id: str,
        /,
        *,
        by: str,
        reason: str,
        effect: Literal["happened", "did_not"] | None = None,
        receipt: Any = None,
    ) -> Job:
        """End a job's hold.

        `effect` says whether the external call in doubt happened, and `receipt` what it returned.
        """
        return self._operator(by, "app.release").release(id, clean(reason), decision_of(effect, receipt))

    def redrive(self, id: str, /, *, by: str, reason: str = "", fresh: bool = False) -> JobHandle[object]:
        """Enqueue a failed job again, as a new job, even if it was redriven before; its history says so.

        It keeps the results of steps and effects, unless it starts `fresh`.
        """
        return self._handle(self._operator(by, "app.redrive").redrive(id, clean(reason) or None, fresh=fresh))

    def delete(self, id: str, /, *, by: str, reason: str = "") -> Job:
        """Delete a job that has ended, and return it as it was. Its history stays, with a note of the deletion."""
        return self._operator(by, "app.delete").delete(id, clean(reason) or None)

    @property
    def bulk(self) -> Bulk:
        """Cancel, reject, redrive or delete all jobs that match a filter."""
        return Bulk(self._operator)

    @property
    def schedules(self) -> Schedules:
        """The schedules: list, create, change, pause, resume or delete them at run time, or run one now."""
        return Schedules(self._store_outside, self._backend, self.declared_schedules, self.kinds, self._check_request)

    def explain(self, id: str, /) -> Explanation:
        """Explain why the job is in its state, and what happens next."""
        return explain_job(self.database.store(), id)

    def status(self) -> Status:
        """Return the number of jobs per state, the stuck and held ones, and the kinds that no worker serves."""
        return status_of(self.database.store())

    def _operator(self, by: str, verb: str) -> Operator:
        store, kinds = self._store_outside(verb), {name: kind.spec for name, kind in self.kinds.items()}
        return Operator(SettleContext(operator_name(by), lambda: store, kinds, self._transaction, self.events))

    # ------------------------------------------------------------ queues, kinds and batches
    def queue(self, name: str, /) -> QueueControls:
        """Return the limits of a queue, and the verbs that pause and resume it."""
        return QueueControls(check_name("queue", name), self._store_outside)

    def kind(self, name: str, /) -> KindControls:
        """Return the limits of a kind, and the verbs that pause and resume it."""
        return KindControls(check_name("kind", name), self._store_outside)

    def limits(self) -> list[LimitSeen]:
        """Return every limit and pause, with how many jobs run and when the rate allows the next start."""
        return self.database.store().limits.all()

    def operations(
        self, *, scope: str | None = None, name: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Operation]:
        """Return the changes of limits, pauses and schedules, newest first: who made them, and why.

        `after` is the last id of the previous page.
        """
        return self.database.store().limits.operations(scope=scope, name=name, limit=limit, after=after)

    def batch(self, id: str, /) -> Batch:
        """Return the batch or flow with this id. `NotFound` if there is none."""
        found = self.database.store().flow.batch(id)
        return Batch(found.id, found.name, self._backend)

    def batches(self, *, parent: str | None = None, limit: int = 100, after: str | None = None) -> list[Batch]:
        """Return the flows, or the batches of one flow, newest first. `after` is the last id of the previous page."""
        found = self.database.store().flow.batches(parent=parent, limit=limit, after=after)
        return [Batch(each.id, each.name, self._backend) for each in found]

    aget = async_twin(get)
    ajobs = async_twin(jobs)
    aexecutions = async_twin(executions)
    ahistory = async_twin(history)
    averify = async_twin(verify)
    acancel = async_twin(cancel)
    areject = async_twin(reject)
    arelease = async_twin(release)
    aredrive = async_twin(redrive)
    adelete = async_twin(delete)
    aexplain = async_twin(explain)
    astatus = async_twin(status)
    alimits = async_twin(limits)
    aoperations = async_twin(operations)
    abatch = async_twin(batch)
    abatches = async_twin(batches)
