"""The app: a database, the kinds of job in it, and the methods to enqueue, read, operate and run them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar, overload

from typing_extensions import TypeVar as DefaultTypeVar

from .core.clock import Seconds, SystemClock, seconds
from .core.ids import uuid7
from .core.job import Job
from .core.limits import Limit
from .core.payload import check_name, clean
from .engine.context import SettleContext
from .errors import TransitionRefused, UsageError
from .jobs.async_twin import async_twin
from .jobs.backend import Backend
from .jobs.enqueue import aenqueue, current_connection, enqueue, enqueue_foreign
from .jobs.flow import Flow, FlowStore, Part
from .jobs.flow_store import aenqueue_flow, enqueue_flow
from .jobs.handle import JobHandle
from .jobs.kind import Kind
from .jobs.request import JobRequest
from .jobs.spec import KindSpec
from .jobs.tokens import Tokens
from .jobs.user_code import run
from .maintenance.audit_retention import Archive
from .maintenance.retention_options import Retained, audit_retention_of, retention_of
from .operate.operated_app import OperatedApp
from .operate.operator import operator_name
from .reconcile.answer import answer, answer_job
from .reconcile.callback import complete
from .store.contract import Tx
from .store.database import Database
from .store.flow_types import NewBatch
from .store.open_transactions import open_transactions
from .store.types import Enqueued
from .telemetry.events import Events
from .worker.app_loader import target_of
from .worker.assembly import run_until_idle, run_worker
from .worker.plan import DRAIN, Plan
from .worker.worker import Worker

R = TypeVar("R")
TxT = DefaultTypeVar("TxT", default=Tx)
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


class App(OperatedApp[TxT], Generic[TxT]):
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
        queues: Mapping[str, Limit] | None = None,
        secret: str | Sequence[str] | None = None,
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
        queues: Mapping[str, Limit] | None = None,
        secret: str | Sequence[str] | None = None,
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
        queues: Mapping[str, Limit] | None = None,
        secret: str | Sequence[str] | None = None,
    ) -> None:
        """`url` falls back to INTERLOCK_DATABASE_URL, DATABASE_URL, then sqlite:///interlock.db.

        `transaction` opens a transaction of your own library on that database; commit functions, hooks and `admit`
        receive its handle. `retention` sets how long ended jobs are kept, by phase; None keeps them forever. By
        default, succeeded jobs are kept for seven days and failed jobs forever. With an age for `audit`, workers pass
        the history of deleted jobs to `archive` and then delete it. `queues` declares the limits of queues. `secret`
        signs the tokens of questions; in a list of secrets, the first one signs and all are accepted. It falls back to
        INTERLOCK_SECRET.
        """
        self.imports = tuple(imports)
        self.lifespan = lifespan
        self.events = Events()
        self.target: str | None = None
        """The app as `module:app`, if it was loaded by that name."""
        self.retention = retention_of(retention or {})
        self.audit_retention = audit_retention_of((retention or {}).get("audit"), archive)
        self.database = Database(url, check_name("schema", schema), SystemClock(), self.declared)
        backend = Backend(
            self.database.store, self._find_spec, self._complete, self._answer, self.cancel, Tokens(secret), transaction
        )
        super().__init__(backend, lambda: self.database.clock.now().timestamp(), queues or {}, transaction)

    def _complete(self, spec: KindSpec, external_id: str, value: Any) -> bool:
        return complete(self._acting(f"callback#{uuid7()}", spec), spec, external_id, value)

    def _answer(self, spec: KindSpec, root: str, value: Any, by: str) -> bool:
        return answer(self._acting(f"answer:{by}" if by else "answer", spec), spec, root, value)

    def _acting(self, actor: str, spec: KindSpec) -> SettleContext:
        backend, kinds = self._backend, {spec.name: spec}
        return SettleContext(clean(actor, 255), backend.store, kinds, backend.transaction, self.events, backend.sleeper)

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

    def flow(self, name: str, /, *, conn: Any = None) -> Flow:
        """Build a graph of jobs: `with app.flow("import") as flow:`. The end of the block stores it in one transaction.

        With `conn`, the flow is stored in the caller's own transaction.
        """
        return Flow(name, FlowStore(self._backend, self._check_request, self._store_flow, self._astore_flow), conn)

    def _store_flow(self, parts: Sequence[Part], batches: Sequence[NewBatch], conn: Any) -> list[Enqueued]:
        return enqueue_flow(self.database.store(), parts, batches, conn=conn, transaction=self._transaction)

    async def _astore_flow(self, parts: Sequence[Part], batches: Sequence[NewBatch], conn: Any) -> list[Enqueued]:
        conn = current_connection(self.database.store) if conn is None else conn
        if conn is None:
            return await asyncio.to_thread(self._store_flow, parts, batches, None)
        return await aenqueue_flow(await asyncio.to_thread(self.database.store), parts, batches, conn)

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction on the app's database. It commits at the end of the block.

        If the block raises, it rolls back. Jobs that you enqueue in the block are part of it.
        """
        return self._store_outside("app.transaction()", "use the one that is open").transaction()

    # ------------------------------------------------------------ answer
    def answer(self, token: str, value: object, /, *, by: str = "") -> bool:
        """Answer the question with this token, of any kind. With `kind.answer`, type checkers also check the value."""
        return self._find_kind(self._backend.tokens.read(token)[0]).answer(token, value, by=by)

    def answer_job(self, id: str, value: object, /, *, by: str, reason: str = "") -> Job:
        """Answer the question of a job by its id, as an operator who has no token."""
        job = self._store_outside("app.answer_job").inspect.get(id)
        spec = self._find_kind(job.kind).spec
        context = self._acting(operator_name(by), spec)
        if job.ended or not answer_job(context, spec, id, value, clean(reason) or None):
            why = f"has ended in {job.state}" if job.ended else "was answered before"
            raise TransitionRefused(f"Job {id} cannot be answered: it {why}. Nothing was stored.")
        return self.get(id)

    def _find_kind(self, name: str) -> Kind[..., Any, TxT]:
        if name not in self.kinds:
            raise UsageError(f"This app has no kind {name}, whose job asked. Answer in the app that declares the kind.")
        return self.kinds[name]

    # ------------------------------------------------------------ work
    @asynccontextmanager
    async def worker(
        self,
        *,
        queues: Sequence[str] = (),
        slots: int = 100,
        child_processes: int | None = None,
        listen: bool = True,
        drain: Seconds = DRAIN,
    ) -> AsyncGenerator[Worker]:
        """Run a worker in this event loop until the block ends. With `listen=False` it only polls.

        At the end of the block, running jobs have `drain` seconds to end; then the worker returns them. At most
        `child_processes` jobs of kinds with `process=True` run at once; by default one for each core.
        """
        if open_transactions():
            self._store_outside("app.worker")
        wait = seconds(drain, "drain")
        plan = self.plan(queues=queues, slots=slots, child_processes=child_processes, listen=listen, drain=wait)
        async with run_worker(plan) as worker:
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
            schedules=self.declared_schedules,
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
    aanswer = async_twin(answer)
    aanswer_job = async_twin(answer_job)
    amigrate = async_twin(migrate)
    aclose = async_twin(close)
