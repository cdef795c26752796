"""A kind of job: what `@app.job` makes of a function."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, cast, overload

from typing_extensions import TypeVar

from .answers import Complete, External, Failed, Going, Gone
from .call import Call, Options, options
from .callback import complete
from .clock import Seconds, seconds
from .declaration import Declaration, Reconcile
from .enqueue import Transaction, aenqueue, enqueue, handle_of
from .errors import JobFailed, NotFound, UsageError
from .job import Job
from .move import Policy
from .records import Enqueued, KindFacts, Way
from .run import Run, SyncRun
from .signature import admission, check_run
from .store import Tx
from .stores import OpenStore
from .stores.inside import open_transactions, refuse_inside
from .waits import SystemWaits, Waits, pauses

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
TxT = TypeVar("TxT", default=Tx)


class Ask(Protocol[R_co]):
    """Asks the outside about a batch of external ids; one that it does not name is *missing*."""

    def __call__(self, external_ids: Sequence[str], /) -> Awaitable[Mapping[str, Going[R_co] | Complete[R_co] | Failed[R_co] | Gone[R_co]]]: ...


class Kind(Generic[P, R, TxT]):
    """A function as a kind of job: enqueue it, wait for its value, and give it its other functions. Called, it is the plain function."""

    name: str

    def __init__(
        self, declaration: Declaration, store: Callable[[], OpenStore], *, transaction: Transaction | None = None, waits: Waits | None = None,
        options: Options | None = None,
    ) -> None:
        self.name = declaration.name
        self.declaration = declaration
        self._store = store
        self._transaction = transaction
        self._waits = waits or SystemWaits()
        self._options = options or Options()

    def __repr__(self) -> str:
        return f"<Kind {self.name} of lifecycle {self.declaration.lifecycle.name}>"

    def __call__(self, run: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.declaration.signature.fn(run, *args, **kwargs)

    # ------------------------------------------------------------ enqueue
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Store a job with these arguments, or find the one that holds its key. `PayloadError` if they do not fit the signature; nothing is stored then."""
        call = self._call(args, kwargs)
        return enqueue(self._store(), [call], conn=self._options.conn, transaction=self._transaction)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` for asyncio. With `using(conn=…)` the connection may be an async one, and is used in this thread."""
        call = self._call(args, kwargs)
        conn = self._options.conn if self._options.conn is not None else handle_of(self._store)
        if conn is not None:
            store = await asyncio.to_thread(self._store)
            return (await aenqueue(store, [call], conn))[0]
        return await asyncio.to_thread(lambda: enqueue(self._store(), [call], conn=None, transaction=self._transaction)[0])

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """These arguments, checked, with the present options: for `enqueue_many` and `schedule`."""
        if self._options.conn is not None:
            raise UsageError("A call keeps no connection: leave conn out of using(), and give it to enqueue_many.")
        return self._call(args, kwargs)

    def named(self, payload: Mapping[str, Any]) -> Call:
        """A call from a payload by name, as one who has no Python function writes it."""
        signature = self.declaration.signature
        arguments = signature.check(payload)
        return Call(self.declaration, arguments, signature.dump(arguments), self._options)

    def using(
        self, *, idempotency_key: str | None = None, unique_key: str | None = None, queue: str | None = None, priority: int | None = None,
        delay: Seconds | None = None, run_at: datetime | None = None, ttl: Seconds | None = None, tags: Mapping[str, str] | None = None, conn: Any = None,
    ) -> "Kind[P, R, TxT]":
        """The same kind, enqueued with these options. The kind itself stays as it is."""
        given = options(
            self.declaration, idempotency_key=idempotency_key, unique_key=unique_key, queue=queue, priority=priority,
            delay=delay, run_at=run_at, ttl=ttl, tags=tags, conn=conn,
        )
        return Kind(self.declaration, self._store, transaction=self._transaction, waits=self._waits, options=self._options.with_(given))

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        signature = self.declaration.signature
        arguments = signature.bind(args, kwargs)
        return Call(self.declaration, arguments, signature.dump(arguments), self._options)

    # ------------------------------------------------------------ its value
    def result(self, id: str, /, *, timeout: Seconds = 60.0) -> R:
        """Wait for the job's value. `JobFailed` if it ended without one, `TimeoutError` if it has not ended in time; the job goes on then."""
        self._alone("result")
        for pause in self._looks(timeout):
            if self._ended(job := self._store().get(id)):
                return self._value(job)
            self._waits.sleep(pause)
        raise self._late(id, timeout)

    async def aresult(self, id: str, /, *, timeout: Seconds = 60.0) -> R:  # noqa: ASYNC109 - the same verb as `result`, which cannot be cancelled
        """`result` for asyncio."""
        self._alone("aresult")
        for pause in self._looks(timeout):
            if self._ended(job := await asyncio.to_thread(lambda: self._store().get(id))):
                return self._value(job)
            await self._waits.asleep(pause)
        raise self._late(id, timeout)

    def _looks(self, timeout: Seconds) -> Iterator[float]:
        """One pause per look at the job, the last of them none: there is always a look, and one at the very end."""
        yield from pauses(self._waits, seconds(timeout, "timeout"))
        yield 0.0

    def _ended(self, job: Job) -> bool:
        if job.kind != self.name:
            raise NotFound(f"Job {job.id} is a {job.kind}, not a {self.name}: ask {job.kind} for its result.")
        return job.ended

    def _value(self, job: Job) -> R:
        if job.phase != "succeeded":
            raise JobFailed(job)
        return cast("R", self.declaration.signature.load_value(job.result))

    def _late(self, id: str, timeout: Seconds) -> TimeoutError:
        return TimeoutError(f"Job {id} has not ended within {seconds(timeout):g} s. It goes on: ask again later, or give a longer timeout.")

    def complete(self, external_id: str, value: R, /) -> bool:
        """A provider that calls back: the work that it knows by this id is done, and this is its value. False if no job waits for it."""
        self._alone("complete")
        return complete(self._store, self.declaration, external_id, value, transaction=self._transaction, waits=self._waits)

    async def acomplete(self, external_id: str, value: R, /) -> bool:
        """`complete` for asyncio."""
        return await asyncio.to_thread(self.complete, external_id, value)

    def _alone(self, verb: str) -> None:
        """Refuse a verb inside a transaction of the app, since it would wait for that transaction to end."""
        if open_transactions():
            refuse_inside(self._store(), f"{self.name}.{verb}")

    # ------------------------------------------------------------ the other functions of the job
    def commit(self, fn: Callable[[TxT, Job, R], None], /) -> Callable[[TxT, Job, R], None]:
        """Called in the transaction that marks the job's value as committed: once, or not at all."""
        self.declaration.once("commit", self.declaration.commit)
        self.declaration.commit = self.declaration.plain("commit", fn)
        return fn

    @overload
    def finish(self, fn: Callable[[Run, R], Awaitable[None]], /) -> Callable[[Run, R], Awaitable[None]]: ...
    @overload
    def finish(self, fn: Callable[[SyncRun, R], None], /) -> Callable[[SyncRun, R], None]: ...
    def finish(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Called after the commit until it returns, and never before it."""
        self.declaration.once("finish", self.declaration.finish)
        check_run(f"the finish function of {self.name}", fn)
        self.declaration.finish = fn
        return fn

    def guard(self, fn: Callable[Concatenate[Job, P], Awaitable[None] | None], /) -> Callable[Concatenate[Job, P], Awaitable[None] | None]:
        """Called when work begins, with the lease held: raises `Reject` or `Fail` to turn the job away."""
        self.declaration.once("guard", self.declaration.guard)
        self.declaration.guard = fn
        return fn

    @overload
    def admit(self, fn: Callable[Concatenate[TxT, Enqueued, P], None], /) -> Callable[Concatenate[TxT, Enqueued, P], None]: ...
    @overload
    def admit(self, fn: Callable[Concatenate[TxT, P], None], /) -> Callable[Concatenate[TxT, P], None]: ...
    def admit(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Called in the transaction of the enqueue, for a job that is new: raises to refuse it, and the caller gets `Refused`.

        With a second parameter `job: Enqueued` it is told the new job's id, under which it may keep what belongs to the job.
        """
        self.declaration.once("admit", self.declaration.admit)
        self.declaration.admit = admission(self.name, self.declaration.plain("admit", fn))
        return fn

    def on_enter(self, state: str, /) -> Callable[[Callable[[TxT, Job], None]], Callable[[TxT, Job], None]]:
        """Called in the transaction of every move into this state. Not for the insert of a new job, which `admit` sees."""
        self.declaration.check_hook(state)
        return lambda fn: self.declaration.hook(state, fn)

    def reconcile(self, *, every: Seconds = 15.0, batch: int = 100, grace: Seconds = 60.0) -> Callable[[Ask[R]], Ask[R]]:
        """Asks the outside about handed-over work: every so often, about a batch of ids at once, those looked at longest ago first.

        What it does not name is missing; the job fails with `missing_external_job` if that lasts for as long as `grace`. If it raises, or answers too
        late for the kind's lease, no job changes, and the next question comes later.
        """

        def register(ask: Ask[R]) -> Ask[R]:
            self.declaration.once("reconcile", self.declaration.reconcile)
            if batch < 1:
                raise UsageError(f"The batch of {self.name}'s reconcile is {batch}: give a whole number from 1 on.")
            if seconds(every, "every") <= 0:
                raise UsageError(f"{self.name} would ask the outside without a pause: give reconcile(every=…) in seconds, above zero.")
            self.declaration.reconcile = Reconcile(self.declaration.awaited("reconcile", ask), seconds(every, "every"), batch, seconds(grace, "grace"))
            return ask

        return register

    def on_cancel(self, fn: Callable[[str], Awaitable[None]], /) -> Callable[[str], Awaitable[None]]:
        """Called with the external id of handed-over work that is to be cancelled: tells the outside. The job is cancelled when it has returned.

        It may be called again for the same work, after a crash or after it raised.
        """
        self.declaration.once("on_cancel", self.declaration.on_cancel)
        self.declaration.on_cancel = self.declaration.awaited("on_cancel", fn)
        return fn

    # ------------------------------------------------------------ for those who carry jobs
    def ways(self, version: int) -> list[Way]:
        """How a claimer takes jobs of this kind, from each state that they wait in, under this version of its lifecycle."""
        return self.declaration.ways(version)

    def facts(self) -> KindFacts:
        """What `migrate` writes down about this kind."""
        return self.declaration.facts()

    @property
    def policy(self) -> Policy:
        """What `decide` needs to know of this kind."""
        return self.declaration.policy


class JobDecorator(Protocol[TxT]):
    """What `app.job(…)` gives: it makes a kind of a handler, typed by the handler's own signature."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], Awaitable[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncRun, P], External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncRun, P], R], /) -> Kind[P, R, TxT]: ...
