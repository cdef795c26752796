"""The app: a database, the kinds of job in it, and every verb on them."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from typing_extensions import TypeVar as DefaultTypeVar

from .backoff import Backoff
from .call import Call
from .clock import Seconds, SystemClock, seconds
from .database import Database
from .declaration import Declaration
from .enqueue import aenqueue, enqueue, enqueue_foreign
from .errors import UsageError
from .job import AuditEntry, Execution, Job
from .kind import JobDecorator, Kind
from .lifecycle import Lifecycle, builtin
from .operate import Operator
from .payload import check_name, clean
from .records import Enqueued, KindFacts
from .schedule import Schedule
from .signature import Signature
from .store import Tx
from .verify import Report, verify

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
TxT = DefaultTypeVar("TxT", default=Tx)
Lifespan = Callable[[], AbstractAsyncContextManager[None]]

_LEASE = 30.0
_MAX_RUNTIME = 3600.0
_BACKOFF = Backoff()


def _hop(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The verb's `a` twin: the same, over one thread hop."""

    @functools.wraps(verb)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self, *args, **kwargs)

    return twin


class App(Generic[TxT]):
    """A database, the kinds of job in it, and every verb on them. It opens nothing before its first verb."""

    @overload
    def __init__(
        self: "App[Tx]", url: str | None = None, *, imports: Sequence[str] = (), schema: str = "interlock", lifespan: Lifespan | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self, url: str | None = None, *, transaction: Callable[[], AbstractContextManager[TxT]], imports: Sequence[str] = (), schema: str = "interlock",
        lifespan: Lifespan | None = None,
    ) -> None: ...
    def __init__(
        self, url: str | None = None, *, transaction: Callable[[], AbstractContextManager[Any]] | None = None, imports: Sequence[str] = (),
        schema: str = "interlock", lifespan: Lifespan | None = None,
    ) -> None:
        """`url` falls back to INTERLOCK_DATABASE_URL, DATABASE_URL, then sqlite:///interlock.db. `transaction` opens your own one on that database."""
        self.imports = tuple(imports)
        self.lifespan = lifespan
        self.kinds: dict[str, Kind[..., Any, TxT]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.database = Database(url, check_name("schema", schema), SystemClock(), self._declared)
        self._transaction = transaction

    # ------------------------------------------------------------ declare
    def job(
        self, *, kind: str | None = None, lifecycle: Lifecycle | None = None, tries: int = 3, lease: Seconds = _LEASE, queue: str = "default",
        max_runtime: Seconds | None = _MAX_RUNTIME, process: bool = False, backoff: Backoff = _BACKOFF,
        on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun", key_until: Sequence[str] = (), commit_timeout: Seconds | None = None,
    ) -> JobDecorator[TxT]:
        """Make a kind of job of a function. `UsageError`, in one sentence, for what can never work."""

        def declare(fn: Callable[..., Any], /) -> Kind[..., Any, TxT]:
            name = check_name("The name of a kind", kind or fn.__name__)
            return self._add(Declaration(
                name=name, signature=Signature(name, fn), lifecycle=lifecycle or builtin("standard"), tries=tries, lease=seconds(lease, "lease"),
                queue=check_name("queue", queue), max_runtime=None if max_runtime is None else seconds(max_runtime, "max_runtime"), process=process,
                backoff=backoff, on_lost_lease=on_lost_lease, key_until=frozenset([key_until] if isinstance(key_until, str) else key_until),
                commit_timeout=seconds(lease if commit_timeout is None else commit_timeout, "commit_timeout"),
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
        return made

    def _lifecycles(self) -> list[Lifecycle]:
        """`standard` and what the kinds follow, each name once."""
        every = [builtin("standard"), *(kind.declaration.lifecycle for kind in self.kinds.values())]
        return list({lifecycle.name: lifecycle for lifecycle in every}.values())

    def _declared(self) -> tuple[list[Lifecycle], list[KindFacts]]:
        return self._lifecycles(), [kind.facts() for kind in self.kinds.values()]

    def schedule(self, name: str, cron: str, call: Call, /, *, tz: str = "UTC", catch_up: Literal["last", "none", "all"] = "last") -> None:
        """Declare a call that is made at every tick of a cron line."""
        if name in self.schedules:
            raise UsageError(f"This app has a schedule {name} already: give one of the two another name.")
        self.schedules[name] = Schedule(name, cron, self._mine(call), tz, catch_up)

    # ------------------------------------------------------------ enqueue
    def enqueue_many(self, calls: Iterable[Call], /, *, conn: Any = None) -> list[Enqueued]:
        """Store all of these jobs, or none; answers stand in the order of the calls."""
        mine = [self._mine(call) for call in calls]
        return enqueue(self.database.store(), mine, conn=conn, transaction=self._transaction)

    async def aenqueue_many(self, calls: Iterable[Call], /, *, conn: Any = None) -> list[Enqueued]:
        """`enqueue_many` for asyncio. `conn` may be an async connection, and is used in this thread."""
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
        """A transaction on the app's database: good for `using(conn=tx)`, committed at the end of the block, rolled back if it raises."""
        return self.database.store().transaction()

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
        return verify(self.database.store())

    # ------------------------------------------------------------ operate
    def cancel(self, id: str, /, *, by: str, reason: str = "") -> Job:
        """End a waiting job, or ask a running one to stop; the job's phase says which. A job that was asked may still succeed."""
        return self._operator(by).cancel(id, clean(reason) or None)

    def reject(self, id: str, /, *, by: str, reason: str) -> Job:
        """Turn a waiting job away, where its lifecycle draws that."""
        return self._operator(by).reject(id, clean(reason))

    def _operator(self, by: str) -> Operator:
        return Operator(self.database.store(), {name: kind.declaration for name, kind in self.kinds.items()}, self._transaction, by)

    # ------------------------------------------------------------ its own life
    def migrate(self) -> None:
        """Bring the database to this code's version, and register the lifecycles and kinds of this app. Running it again changes nothing."""
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
    amigrate = _hop(migrate)
    aclose = _hop(close)
