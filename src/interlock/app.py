"""The app: a database, the kinds of job in it, and the methods to enqueue, read, operate and run them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, Literal, TypeVar, overload

from typing_extensions import TypeVar as DefaultTypeVar

from .core.clock import Seconds, SystemClock, seconds
from .core.ids import uuid7
from .core.job import AuditEntry, Execution, Job, Phase
from .core.payload import check_name, clean
from .engine.context import SettleContext
from .errors import UsageError
from .jobs.async_twin import async_twin
from .jobs.backend import Backend
from .jobs.declarations import Declarations
from .jobs.enqueue import aenqueue, current_connection, enqueue, enqueue_foreign
from .jobs.handle import JobHandle
from .jobs.request import JobRequest
from .jobs.spec import KindSpec
from .jobs.user_code import run
from .maintenance.audit_retention import Archive, AuditRetention
from .maintenance.prune import RETENTION
from .operate.explain import Explanation
from .operate.explain import explain as explain_job
from .operate.operator import Operator, decision_of, operator_name
from .operate.status import Status
from .operate.status import status as status_of
from .operate.verify import Report, verify
from .reconcile.callback import complete
from .store import OpenStore
from .store.contract import Tx
from .store.database import Database
from .store.open_transactions import open_transactions, refuse_inside
from .store.types import Enqueued
from .telemetry.events import Events
from .worker.assembly import run_until_idle, run_worker, target_of
from .worker.plan import Plan
from .worker.worker import Worker

R = TypeVar("R")
TxT = DefaultTypeVar("TxT", default=Tx)
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


Retained = Literal["succeeded", "failed", "audit"]


def _retention(given: Mapping[Retained, Seconds | None]) -> dict[Phase, float]:
    jobs: dict[Phase, Seconds | None] = {
        **RETENTION,
        **{name: age for name, age in given.items() if name != "audit"},
    }
    for phase in jobs:
        if phase not in ("succeeded", "failed"):
            raise UsageError(
                f"retention has an unknown key {phase!r}. The keys are succeeded and failed (the age at which jobs are "
                "deleted) and audit (the age at which the history of deleted jobs is archived)."
            )
    return {phase: seconds(age, f"retention of {phase}") for phase, age in jobs.items() if age is not None}


def _audit_retention(age: Seconds | None, archive: Archive | None) -> AuditRetention | None:
    if (age is None) != (archive is None):
        raise UsageError(
            "retention['audit'] and archive= belong together: history is deleted only after archive= has stored it "
            "elsewhere. Give both, or run: interlock audit archive."
        )
    return None if age is None or archive is None else AuditRetention(seconds(age, "retention of audit"), archive)


class App(Declarations[TxT], Generic[TxT]):
    """A database and the kinds of job in it. The first method that needs the database opens it."""

    @overload
    def __init__(
        self: "App[Tx]",
        url: str | None = None,
        *,
        imports: Sequence[str] = (),
        schema: str = "interlock",
        lifespan: Lifespan | None = None,
        retention: Mapping[Retained, Seconds | None] | None = None,
        archive: Archive | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        url: str | None = None,
        *,
        transaction: Callable[[], AbstractContextManager[TxT]],
        imports: Sequence[str] = (),
        schema: str = "interlock",
        lifespan: Lifespan | None = None,
        retention: Mapping[Retained, Seconds | None] | None = None,
        archive: Archive | None = None,
    ) -> None: ...
    def __init__(
        self,
        url: str | None = None,
        *,
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        imports: Sequence[str] = (),
        schema: str = "interlock",
        lifespan: Lifespan | None = None,
        retention: Mapping[Retained, Seconds | None] | None = None,
        archive: Archive | None = None,
    ) -> None:
        """`url` falls back to INTERLOCK_DATABASE_URL, DATABASE_URL, then sqlite:///interlock.db.

        `transaction` opens a transaction of your own library on that database; commit functions, hooks and `admit`
        receive its handle. `retention` sets how long ended jobs are kept, by phase; None keeps them forever. By
        default, succeeded jobs are kept for seven days and failed jobs forever. With an age for `audit`, workers pass
        the history of deleted jobs to `archive` and then delete it.
        """
        self.imports = tuple(imports)
        self.lifespan = lifespan
        self.events = Events()
        self.target: str | None = None
        """The app as `module:app`, if it was loaded by that name."""
        self.retention = _retention(retention or {})
        self.audit_retention = _audit_retention((retention or {}).get("audit"), archive)
        self.database = Database(url, check_name("schema", schema), SystemClock(), self._declared)
        self._transaction = transaction
        backend = Backend(self.database.store, self._find_spec, self._complete, self.cancel, transaction)
        super().__init__(backend, lambda: self.database.clock.now().timestamp())

    def _complete(self, spec: KindSpec, external_id: str, value: Any) -> bool:
        backend, owner = self._backend, f"callback#{uuid7()}"
        context = SettleContext(
            owner, backend.store, {spec.name: spec}, backend.transaction, self.events, backend.sleeper
        )
        return complete(context, spec, external_id, value)

    # ------------------------------------------------------------ enqueue
    def enqueue_many(self, requests: Iterable[JobRequest[R]], /, *, conn: Any = None) -> list[JobHandle[R]]:
        """Store all of these jobs, or none. The handles are in the order of the requests."""
        checked = [self._check_request(request) for request in requests]
        stored = enqueue(self.database.store(), checked, conn=conn, transaction=self._transaction)
        return [self._handle(each) for each in stored]

    async def aenqueue_many(self, requests: Iterable[JobRequest[R]], /, *, conn: Any = None) -> list[JobHandle[R]]:
        """`enqueue_many` for asyncio. `conn` may be an async connection; it is used in this thread."""
        conn = current_connection(self.database.store) if conn is None else conn
        if conn is None:
            return await asyncio.to_thread(self.enqueue_many, requests)
        checked = [self._check_request(request) for request in requests]
        stored = await aenqueue(await asyncio.to_thread(self.database.store), checked, conn)
        return [self._handle(each) for each in stored]

    def enqueue_named(self, kind: str, payload: Mapping[str, Any], /) -> JobHandle[object]:
        """Store a job of the named kind. The payload maps argument names to values.

        If another program declares the kind, that program's worker checks the payload.
        """
        if kind in self.kinds:
            return self.enqueue_many([self.kinds[kind].request_from_payload(payload)])[0]
        return self._handle(enqueue_foreign(self.database.store(), kind, payload))

    def _handle(self, stored: Enqueued) -> JobHandle[Any]:
        return JobHandle(stored, self._backend)

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction on the app's database. It commits at the end of the block.

        If the block raises, it rolls back. Jobs that you enqueue in the block are part of it.
        """
        return self._store_outside("app.transaction()", "use the one that is open").transaction()

    def _store_outside(self, verb: str, instead: str | None = None) -> OpenStore:
        """Return the store, for a method that needs its own transaction. `UsageError` inside an open one."""
        store = self.database.store()
        refuse_inside(store, verb, *([instead] if instead else []))
        return store

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
        limit: int = 100,
        after: str | None = None,
    ) -> list[Job]:
        """Return the jobs that match every given filter, newest first. `after` is the last id of the previous page."""
        return self.database.store().inspect.jobs(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, limit=limit, after=after
        )

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
        """Enqueue a failed job again, as a new job.

        It keeps the results of steps and effects, unless it starts `fresh`.
        """
        return self._handle(self._operator(by, "app.redrive").redrive(id, clean(reason) or None, fresh=fresh))

    def explain(self, id: str, /) -> Explanation:
        """Explain why the job is in its state, and what happens next."""
        return explain_job(self.database.store(), id)

    def status(self) -> Status:
        """Return the number of jobs per state, the stuck and held ones, and the kinds that no worker serves."""
        return status_of(self.database.store())

    def _operator(self, by: str, verb: str) -> Operator:
        store, kinds = self._store_outside(verb), {name: kind.spec for name, kind in self.kinds.items()}
        return Operator(SettleContext(operator_name(by), lambda: store, kinds, self._transaction, self.events))

    # ------------------------------------------------------------ work
    @asynccontextmanager
    async def worker(
        self, *, queues: Sequence[str] = (), slots: int = 100, listen: bool = True
    ) -> AsyncGenerator[Worker]:
        """Run a worker in this event loop until the block ends; then it drains. With `listen=False` it only polls."""
        if open_transactions():
            self._store_outside("app.worker")
        async with run_worker(self.plan(queues=queues, slots=slots, listen=listen)) as worker:
            yield worker

    def run_until_idle(self, *, timeout: Seconds = 60.0) -> int:
        """Run all jobs that are due, in this process, and return the number of attempts.

        Jobs that are due later wait.
        """
        return run(self.arun_until_idle(timeout=timeout))

    async def arun_until_idle(self, *, timeout: Seconds = 60.0) -> int:  # noqa: ASYNC109 - the same verb as `run_until_idle`
        """`run_until_idle` in this event loop."""
        if open_transactions():
            self._store_outside("app.run_until_idle")
        return await run_until_idle(self.plan(until_idle=True), seconds(timeout, "timeout"))

    def plan(self, *, only: Sequence[str] = (), **chosen: Any) -> Plan:
        """Return the plan of a worker of this app, for `only` these kinds or all. `chosen` sets its other fields."""
        if unknown := [name for name in only if name not in self.kinds]:
            raise UsageError(
                f"This app has no kind {', '.join(unknown)}: it has {', '.join(sorted(self.kinds)) or 'none'}."
            )
        kinds = {name: kind.spec for name, kind in self.kinds.items() if not only or name in only}
        return Plan(
            self.database.store,
            kinds,
            target=self.target or target_of(self),
            database=self.database.url,
            transaction=self._transaction,
            lifespan=self.lifespan,
            schedules=self.schedules,
            retention=self.retention,
            audit_retention=self.audit_retention,
            events=self.events,
            **chosen,
        )

    # ------------------------------------------------------------ migrate and close
    def migrate(self) -> None:
        """Migrate the database to this version, and register the app's lifecycles and kinds. It is safe to repeat."""
        if open_transactions():
            self._store_outside("app.migrate")
        self.database.migrate()

    def close(self) -> None:
        """Close every connection of this process. The next method that needs the database opens new ones."""
        self.database.close()

    @contextmanager
    def bound_to(self, url: str, /) -> Generator["App[TxT]"]:
        """Use another database for the app and its kinds until the block ends."""
        with self.database.bound_to(url):
            yield self

    aenqueue_named = async_twin(enqueue_named)
    aget = async_twin(get)
    ajobs = async_twin(jobs)
    aexecutions = async_twin(executions)
    ahistory = async_twin(history)
    averify = async_twin(verify)
    acancel = async_twin(cancel)
    areject = async_twin(reject)
    arelease = async_twin(release)
    aredrive = async_twin(redrive)
    aexplain = async_twin(explain)
    astatus = async_twin(status)
    amigrate = async_twin(migrate)
    aclose = async_twin(close)
