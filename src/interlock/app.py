"""The app: a database, the kinds of job in it, and every verb on them."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from typing_extensions import TypeVar as DefaultTypeVar

from .backoff import Backoff
from .boot import Plan, emptied, running, target_of
from .call import Call
from .clock import Seconds, SystemClock, seconds
from .database import Database
from .declaration import Declaration
from .enqueue import aenqueue, enqueue, enqueue_foreign, handle_of
from .errors import UsageError
from .events import Events
from .explain import Explanation
from .explain import explain as explain_job
from .job import AuditEntry, Execution, Job, Phase
from .keeper.prune import RETENTION
from .kind import JobDecorator, Kind
from .lifecycle import Lifecycle, builtin
from .notify import KIND as WEBHOOK
from .notify import Notices
from .operate import Operator, decision_of
from .payload import check_name, clean
from .records import Enqueued, KindFacts
from .schedule import Schedule
from .signature import Signature
from .status import Status
from .status import status as status_of
from .store import Tx
from .stores import OpenStore
from .stores.inside import open_transactions, refuse_inside
from .taxonomy import Taxonomy
from .user_code import Around, run
from .verify import Report, verify
from .webhook import Webhook
from .worker.worker import Worker

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
TxT = DefaultTypeVar("TxT", default=Tx)
AroundT = TypeVar("AroundT", bound=Around)
Lifespan = Callable[[], AbstractAsyncContextManager[None]]

_LEASE = 30.0
_MAX_RUNTIME = 3600.0
_BACKOFF = Backoff()


def _retention(given: Mapping[Phase, Seconds | None] | None) -> dict[Phase, float]:
    chosen: dict[Phase, Seconds | None] = {**RETENTION, **(given or {})}
    for phase in chosen:
        if phase not in ("succeeded", "failed"):
            raise UsageError(f"retention names {phase!r}: only jobs that succeeded or failed are ever deleted.")
    return {phase: seconds(age, f"retention of {phase}") for phase, age in chosen.items() if age is not None}


def _hop(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The verb's `a` twin: the same, over one thread hop."""

    @functools.wraps(verb)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if open_transactions():
            # The open transaction belongs to this thread, so the verb runs here and can join it.
            return verb(self, *args, **kwargs)
        return await asyncio.to_thread(verb, self, *args, **kwargs)

    return twin


class App(Generic[TxT]):
    """A database, the kinds of job in it, and every verb on them. It opens nothing before its first verb."""

    @overload
    def __init__(
        self: "App[Tx]", url: str | None = None, *, imports: Sequence[str] = (), schema: str = "interlock", lifespan: Lifespan | None = None,
        retention: Mapping[Phase, Seconds | None] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self, url: str | None = None, *, transaction: Callable[[], AbstractContextManager[TxT]], imports: Sequence[str] = (), schema: str = "interlock",
        lifespan: Lifespan | None = None, retention: Mapping[Phase, Seconds | None] | None = None,
    ) -> None: ...
    def __init__(
        self, url: str | None = None, *, transaction: Callable[[], AbstractContextManager[Any]] | None = None, imports: Sequence[str] = (),
        schema: str = "interlock", lifespan: Lifespan | None = None, retention: Mapping[Phase, Seconds | None] | None = None,
    ) -> None:
        """`url` falls back to INTERLOCK_DATABASE_URL, DATABASE_URL, then sqlite:///interlock.db. `transaction` opens your own one on that database.

        `retention` says how long jobs are kept after they ended, by phase; None keeps them. Those that succeeded are kept for seven days, others for ever.
        """
        self.imports = tuple(imports)
        self.lifespan = lifespan
        self.events = Events()
        self.target: str | None = None
        """The app by name, `module:app`, where it was loaded by it."""
        self.retention = _retention(retention)
        self.kinds: dict[str, Kind[..., Any, TxT]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.database = Database(url, check_name("schema", schema), SystemClock(), self._declared)
        self._transaction = transaction
        self._around: list[Around] = []
        self._notices = Notices(lambda: self.database.clock.now().timestamp())

    # ------------------------------------------------------------ declare
    def job(
        self, *, kind: str | None = None, lifecycle: Lifecycle | None = None, tries: int = 3, lease: Seconds = _LEASE, queue: str = "default",
        max_runtime: Seconds | None = _MAX_RUNTIME, process: bool = False, backoff: Backoff = _BACKOFF,
        on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun", key_until: Sequence[str] = (), commit_timeout: Seconds | None = None,
        taxonomy: Taxonomy | None = None,
    ) -> JobDecorator[TxT]:
        """Make a kind of job of a function. `UsageError`, in one sentence, for what can never work."""

        def declare(fn: Callable[..., Any], /) -> Kind[..., Any, TxT]:
            name = check_name("The name of a kind", kind or fn.__name__)
            return self._add(Declaration(
                name=name, signature=Signature(name, fn), lifecycle=lifecycle or builtin("standard"), tries=tries, lease=seconds(lease, "lease"),
                queue=check_name("queue", queue), max_runtime=None if max_runtime is None else seconds(max_runtime, "max_runtime"), process=process,
                backoff=backoff, on_lost_lease=on_lost_lease, key_until=frozenset([key_until] if isinstance(key_until, str) else key_until),
                commit_timeout=seconds(lease if commit_timeout is None else commit_timeout, "commit_timeout"), taxonomy=taxonomy,
                around=self._around,
            ))

        return cast("JobDecorator[TxT]", declare)

    def _add(self, declaration: Declaration) -> Kind[..., Any, TxT]:
        if declaration.name in self.kinds:
            raise UsageError(f"This app has a kind {declaration.name} already: give one of the two another name with job(kind=…).")
        for other in self._lifecycles():
            if other.name == declaration.lifecycle.name and other != declaration.lifecycle:
                raise UsageError(f"{declaration.name} brings a lifecycle {other.name} unlike the one this app knows by that name: rename one of the two.")
        made: Kind[..., Any, TxT] = Kind(declaration, self.database.store, transaction=self._transaction)
        self.kinds[declaration.name] = made
        self._listen_to(declaration)
        return made

    def _lifecycles(self) -> list[Lifecycle]:
        """`standard` and what the kinds follow, each name once."""
        every = [builtin("standard"), *(kind.declaration.lifecycle for kind in self.kinds.values())]
        return list({lifecycle.name: lifecycle for lifecycle in every}.values())

    def _declared(self) -> tuple[list[Lifecycle], list[KindFacts]]:
        return self._lifecycles(), [kind.facts() for kind in self.kinds.values()]

    def around_attempt(self, fn: AroundT, /) -> AroundT:
        """Register `fn`, which returns a context manager that workers enter around every function of a job.

        The thread or task that runs the function enters it. Use it for cleanup that a framework does around a request,
        such as Django's `close_old_connections`. If it raises, the function counts as failed.
        """
        self._around.append(fn)
        return fn

    def schedule(self, name: str, cron: str, call: Call, /, *, tz: str = "UTC", catch_up: Literal["last", "none", "all"] = "last") -> None:
        """Declare a call that is made at every tick of a cron line."""
        if name in self.schedules:
            raise UsageError(f"This app has a schedule {name} already: give one of the two another name.")
        self.schedules[name] = Schedule(name, cron, self._mine(call), tz, catch_up)

    def webhook(self, name: str, url: str, /, *, secret: str, kinds: Sequence[str] | None = None, allow_private: bool = False) -> None:
        """Tell this address, in signed messages, of every job of these kinds, or of all, that ends; each message is a job stored with that end."""
        self._notices.add(name, Webhook(url, secret, allow_private), kinds)
        if WEBHOOK not in self.kinds:
            self.job(kind=WEBHOOK, tries=12, backoff=Backoff(5.0, cap=3600.0))(self._notices.deliver)
        for kind in self.kinds.values():
            self._listen_to(kind.declaration)

    def _listen_to(self, declaration: Declaration) -> None:
        if self._notices.of(declaration.name):
            declaration.notify = self._notices.teller(self.kinds)

    # ------------------------------------------------------------ enqueue
    def enqueue_many(self, calls: Iterable[Call], /, *, conn: Any = None) -> list[Enqueued]:
        """Store all of these jobs, or none; answers stand in the order of the calls."""
        mine = [self._mine(call) for call in calls]
        return enqueue(self.database.store(), mine, conn=conn, transaction=self._transaction)

    async def aenqueue_many(self, calls: Iterable[Call], /, *, conn: Any = None) -> list[Enqueued]:
        """`enqueue_many` for asyncio. `conn` may be an async connection, and is used in this thread."""
        conn = handle_of(self.database.store) if conn is None else conn
        if conn is None:
            return await asyncio.to_thread(self.enqueue_many, calls)
        mine = [self._mine(call) for call in calls]
        return await aenqueue(await asyncio.to_thread(self.database.store), mine, conn)

    def enqueue_named(self, kind: str, payload: Mapping[str, Any], /) -> Enqueued:
        """Store a job of the kind of this name, from its payload by name. The kind may be another program's: then the payload is not checked here."""
        if kind in self.kinds:
            return self.enqueue_many([self.kinds[kind].named(payload)])[0]
        return enqueue_foreign(self.database.store(), kind, payload)

    def _mine(self, call: Call) -> Call:
        kind = self.kinds.get(call.declaration.name)
        if kind is None or kind.declaration is not call.declaration:
            raise UsageError(f"The call of {call.declaration.name} belongs to another app: give it to that one.")
        return call

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction on the app's database: it commits at the end of the block, and rolls back if the block raises.

        Jobs that you enqueue in the block are part of it.
        """
        return self._alone("app.transaction()", "use the one that is open").transaction()

    def _alone(self, verb: str, instead: str | None = None) -> OpenStore:
        """The store, for a verb that needs its own transaction. `UsageError` inside an open one."""
        store = self.database.store()
        refuse_inside(store, verb, *([instead] if instead else []))
        return store

    # ------------------------------------------------------------ read
    def get(self, id: str, /) -> Job:
        """The job as it is now. `NotFound` if there is none."""
        return self.database.store().get(id)

    def jobs(
        self, *, kind: str | None = None, state: str | None = None, phase: str | None = None, queue: str | None = None, tags: Mapping[str, str] | None = None,
        limit: int = 100, after: str | None = None,
    ) -> list[Job]:
        """Jobs that fit every given filter, newest first; `after` is the id of the last one of the page before."""
        return self.database.store().jobs(kind=kind, state=state, phase=phase, queue=queue, tags=tags, limit=limit, after=after)

    def executions(self, id: str, /) -> list[Execution]:
        """All executions of a job, by attempt."""
        return self.database.store().executions(id)

    def history(self, id: str, /) -> list[AuditEntry]:
        """The audit of a job, in order, also after the job is pruned."""
        return self.database.store().history(id)

    def verify(self) -> Report:
        """Recompute every job's state from its executions, and check every rule over the whole database."""
        return verify(self._alone("app.verify"))

    # ------------------------------------------------------------ operate
    def cancel(self, id: str, /, *, by: str, reason: str = "") -> Job:
        """End a waiting job, or ask a running one to stop; the job's phase says which. A job that was asked may still succeed."""
        return self._operator(by, "app.cancel").cancel(id, clean(reason) or None)

    def reject(self, id: str, /, *, by: str, reason: str) -> Job:
        """Turn a waiting job away, where its lifecycle draws that."""
        return self._operator(by, "app.reject").reject(id, clean(reason))

    def release(self, id: str, /, *, by: str, reason: str, effect: Literal["happened", "did_not"] | None = None, receipt: Any = None) -> Job:
        """End a job's hold. `effect` says what became of the outside call in doubt, and `receipt` what it answered."""
        return self._operator(by, "app.release").release(id, clean(reason), decision_of(effect, receipt))

    def redrive(self, id: str, /, *, by: str, reason: str = "", fresh: bool = False) -> Enqueued:
        """Make a new job of one that ended without success. What its outside calls answered is remembered, unless it starts `fresh`."""
        return self._operator(by, "app.redrive").redrive(id, clean(reason) or None, fresh=fresh)

    def explain(self, id: str, /) -> Explanation:
        """Why the job is where it is, and what happens next."""
        return explain_job(self.database.store(), id)

    def status(self) -> Status:
        """How many jobs are where, what is stuck, and which kinds nobody serves."""
        return status_of(self.database.store())

    def _operator(self, by: str, verb: str) -> Operator:
        return Operator(self._alone(verb), {name: kind.declaration for name, kind in self.kinds.items()}, self._transaction, by)

    # ------------------------------------------------------------ work
    @asynccontextmanager
    async def worker(self, *, queues: Sequence[str] = (), slots: int = 100, listen: bool = True) -> AsyncGenerator[Worker]:
        """A worker in this event loop, for as long as the block runs; then it drains. `listen=False` only polls, as behind a transaction pooler."""
        if open_transactions():
            self._alone("app.worker")
        async with running(self.plan(queues=queues, slots=slots, listen=listen)) as worker:
            yield worker

    def run_until_idle(self, *, timeout: Seconds = 60.0) -> int:
        """Carry out all that is due, here and now; answers how many attempts ended. What is due later stays."""
        return run(self.arun_until_idle(timeout=timeout))

    async def arun_until_idle(self, *, timeout: Seconds = 60.0) -> int:  # noqa: ASYNC109 - the same verb as `run_until_idle`
        """`run_until_idle` in this event loop."""
        if open_transactions():
            self._alone("app.run_until_idle")
        return await emptied(self.plan(until_idle=True), seconds(timeout, "timeout"))

    def plan(self, *, only: Sequence[str] = (), **chosen: Any) -> Plan:
        """What a worker of this app is to be, for whoever runs it: the app's own parts, `only` these kinds if any are named, and what else a `Plan` takes."""
        if unknown := [name for name in only if name not in self.kinds]:
            raise UsageError(f"This app has no kind {', '.join(unknown)}: it has {', '.join(sorted(self.kinds)) or 'none'}.")
        kinds = {name: kind.declaration for name, kind in self.kinds.items() if not only or name in only}
        return Plan(
            self.database.store, kinds, target=self.target or target_of(self), database=self.database.url, transaction=self._transaction,
            lifespan=self.lifespan, schedules=self.schedules, retention=self.retention, events=self.events, **chosen)

    # ------------------------------------------------------------ its own life
    def migrate(self) -> None:
        """Bring the database to this code's version, and register the lifecycles and kinds of this app. Running it again changes nothing."""
        if open_transactions():
            self._alone("app.migrate")
        self.database.migrate()

    def close(self) -> None:
        """Give back every connection of this process. The next verb opens new ones."""
        self.database.close()

    @contextmanager
    def bound_to(self, url: str, /) -> Generator["App[TxT]"]:
        """Point the app and its kinds at another database until the block ends."""
        with self.database.bound_to(url):
            yield self

    aenqueue_named = _hop(enqueue_named)
    aget = _hop(get)
    ajobs = _hop(jobs)
    aexecutions = _hop(executions)
    ahistory = _hop(history)
    averify = _hop(verify)
    acancel = _hop(cancel)
    areject = _hop(reject)
    arelease = _hop(release)
    aredrive = _hop(redrive)
    aexplain = _hop(explain)
    astatus = _hop(status)
    amigrate = _hop(migrate)
    aclose = _hop(close)
