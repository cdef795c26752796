"""A kind of job: the object that `@app.job` returns for a handler."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, overload

from typing_extensions import TypeVar

from ..core.blocked_jobs import OnFailed
from ..core.clock import Seconds, seconds
from ..core.job import Job
from ..errors import InvalidToken, UsageError
from ..store.contract import Tx
from ..store.open_transactions import open_transactions, refuse_inside
from ..store.types import Enqueued, KindFacts, OnConflict
from .backend import Backend
from .dependencies import Needed, check_cancellable, dependencies
from .enqueue import aenqueue, current_connection, enqueue
from .handle import JobHandle
from .options import Options, check_options, check_type
from .request import JobRequest
from .results import Completed, Failed, Gone, InProgress
from .run import Run, SyncRun
from .signature import check_run, with_job
from .spec import KindSpec, Reconcile

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
TxT = TypeVar("TxT", default=Tx)


class Ask(Protocol[R_co]):
    """Asks an external system about a batch of external ids. An id that the answer leaves out is *missing*."""

    def __call__(
        self, external_ids: Sequence[str], /
    ) -> Awaitable[Mapping[str, InProgress[R_co] | Completed[R_co] | Failed[R_co] | Gone[R_co]]]: ...


class Kind(Generic[P, R, TxT]):
    """A kind of job: enqueue it, wait for results, and register its other functions. Calling it calls the handler."""

    name: str

    def __init__(
        self,
        spec: KindSpec,
        backend: Backend,
        *,
        options: Options | None = None,
    ) -> None:
        self.name = spec.name
        self.spec = spec
        self._backend = backend
        self._options = options or Options()

    def __repr__(self) -> str:
        return f"<Kind {self.name} of lifecycle {self.spec.lifecycle.name}>"

    @overload
    def __call__(self, run: object, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the handler as a plain function, with a run if it takes one."""
        return self.spec.signature.fn(*args, **kwargs)

    # ------------------------------------------------------------ enqueue
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job with these arguments, or find the job that has its key. `PayloadError` if they do not fit."""
        return self._enqueue(self._request(args, kwargs), self._options.conn)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for asyncio. With `using(conn=…)` the connection may be async; it is used in this thread."""
        request, backend = self._request(args, kwargs), self._backend
        conn = self._options.conn if self._options.conn is not None else current_connection(backend.store)
        if conn is None:
            return await asyncio.to_thread(self._enqueue, request, None)
        store = await asyncio.to_thread(backend.store)
        return JobHandle((await aenqueue(store, [request], conn))[0], backend, self.name)

    def _enqueue(self, request: JobRequest[R], conn: Any) -> JobHandle[R]:
        backend = self._backend
        stored = enqueue(backend.store(), [request], conn=conn, transaction=backend.transaction)[0]
        return JobHandle(stored, backend, self.name)

    def request(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """Check these arguments and return a request for `enqueue_many` or `schedule`, with the current options."""
        if self._options.conn is not None:
            raise UsageError("A request has no connection: leave conn out of using(), and pass it to enqueue_many.")
        return self._request(args, kwargs)

    def request_from_payload(self, payload: Mapping[str, Any]) -> JobRequest[R]:
        """Return a request for a payload that maps argument names to values."""
        self._options.check_unique()
        signature = self.spec.signature
        arguments = signature.check(payload)
        return JobRequest(self.spec, arguments, signature.dump(arguments), self._options)

    def using(
        self,
        *,
        idempotency_key: str | None = None,
        unique_key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        ttl: Seconds | None = None,
        tags: Mapping[str, str] | None = None,
        conn: Any = None,
        concurrency_key: str | None = None,
        after: Sequence[Needed] | None = None,
        on_failed: OnFailed = "cancel",
        unique_for: Seconds | None = None,
        on_conflict: OnConflict | None = None,
    ) -> "Kind[P, R, TxT]":
        """Return the same kind, enqueued with these options. The kind itself does not change."""
        needed = None if after is None else dependencies(after, on_failed)
        check_cancellable(self.spec, needed or ())
        given = check_options(
            self.spec,
            idempotency_key=idempotency_key,
            unique_key=unique_key,
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            ttl=ttl,
            tags=tags,
            conn=conn,
            concurrency_key=concurrency_key,
            after=needed,
            unique_for=unique_for,
            on_conflict=on_conflict,
        )
        return Kind(self.spec, self._backend, options=self._options.merge(given))

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest[R]:
        self._options.check_unique()
        signature = self.spec.signature
        arguments = signature.bind(args, kwargs)
        return JobRequest(self.spec, arguments, signature.dump(arguments), self._options)

    # ------------------------------------------------------------ results
    def result(self, id: str, /, *, timeout: Seconds = 60.0) -> R:
        """Wait for the result of a job.

        `JobFailed` if it ends without one, `TimeoutError` if it does not end in time.
        """
        return self._handle(id).result(timeout=timeout)

    async def aresult(self, id: str, /, *, timeout: Seconds = 60.0) -> R:  # noqa: ASYNC109 - the twin of `result`
        """`result` for asyncio."""
        return await self._handle(id).aresult(timeout=timeout)

    def load_result(self, value: object, /) -> R:
        """Return a stored result as the type that the handler declares. `PayloadError` if it does not fit."""
        loaded: R = self.spec.signature.load_value(value)
        return loaded

    def _handle(self, id: str) -> JobHandle[R]:
        return JobHandle(Enqueued(id, created=False), self._backend, self.name)

    def complete(self, external_id: str, value: R, /) -> bool:
        """Complete the job that waits for this external id. Call it when a provider calls back.

        False if no job waits for this id.
        """
        if open_transactions():
            refuse_inside(self._backend.store(), f"{self.name}.complete")
        return self._backend.complete(self.spec, external_id, value)

    async def acomplete(self, external_id: str, value: R, /) -> bool:
        """`complete` for asyncio."""
        return await asyncio.to_thread(self.complete, external_id, value)

    def answer(self, token: str, value: R, /, *, by: str = "") -> bool:
        """Answer the question with this token; `by` is stored in the job's history. False if it was answered before.

        `InvalidToken` if this app did not sign the token, `TransitionRefused` if the deadline has passed or the job
        has ended, `TimeoutError` if the job does not wait for an answer yet. Nothing changes then.
        """
        kind, root = self.spec.tokens.read(token)
        if kind != self.name:
            raise InvalidToken(f"The token belongs to a job of kind {kind}, not {self.name}.")
        if open_transactions():
            refuse_inside(self._backend.store(), f"{self.name}.answer")
        return self._backend.answer(self.spec, root, value, by)

    async def aanswer(self, token: str, value: R, /, *, by: str = "") -> bool:
        """`answer` for asyncio."""
        return await asyncio.to_thread(self.answer, token, value, by=by)

    # ------------------------------------------------------------ the other functions of the job
    def commit(self, fn: Callable[[TxT, Job, R], None], /) -> Callable[[TxT, Job, R], None]:
        """Register the function that runs in the transaction that commits the job's result.

        Its writes are stored exactly once, together with the result, or not at all.
        """
        self._require_no_commit()
        self.spec.commit = self.spec.require_sync("commit", fn)
        return fn

    def commit_many(
        self, fn: Callable[[TxT, Sequence[Job], Sequence[R]], None], /
    ) -> Callable[[TxT, Sequence[Job], Sequence[R]], None]:
        """Register a commit function that takes several jobs and their values, at most `commit_batch` of them.

        Its writes are stored exactly once, together with the results of all these jobs, or not at all. If it raises,
        it is called again for each job alone.
        """
        self._require_no_commit()
        self.spec.commit_many = self.spec.require_sync("commit_many", fn)
        return fn

    def _require_no_commit(self) -> None:
        self.spec.require_unset("commit", self.spec.commit)
        self.spec.require_unset("commit_many", self.spec.commit_many)

    @overload
    def finish(self, fn: Callable[[Run, R], Awaitable[None]], /) -> Callable[[Run, R], Awaitable[None]]: ...
    @overload
    def finish(self, fn: Callable[[SyncRun, R], None], /) -> Callable[[SyncRun, R], None]: ...
    def finish(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the function that runs after the commit. It is retried until it returns."""
        self.spec.require_unset("finish", self.spec.finish)
        check_run(f"the finish function of {self.name}", fn)
        self.spec.finish = fn
        return fn

    def guard(
        self, fn: Callable[Concatenate[Job, P], Awaitable[None] | None], /
    ) -> Callable[Concatenate[Job, P], Awaitable[None] | None]:
        """Register the function that runs before the handler. It raises `Reject` or `Fail` to refuse the job."""
        self.spec.require_unset("guard", self.spec.guard)
        self.spec.guard = fn
        return fn

    @overload
    def admit(
        self, fn: Callable[Concatenate[TxT, Enqueued, P], None], /
    ) -> Callable[Concatenate[TxT, Enqueued, P], None]: ...
    @overload
    def admit(self, fn: Callable[Concatenate[TxT, P], None], /) -> Callable[Concatenate[TxT, P], None]: ...
    def admit(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the function that runs in the transaction that enqueues a new job.

        If it raises, the caller gets `Refused`. With a second parameter `job: Enqueued` it receives the new job's id.
        """
        self.spec.require_unset("admit", self.spec.admit)
        self.spec.admit = with_job(self.name, self.spec.require_sync("admit", fn))
        return fn

    def on_enter(self, state: str, /) -> Callable[[Callable[[TxT, Job], None]], Callable[[TxT, Job], None]]:
        """Register a function that runs in the transaction of every move into this state. For new jobs, use `admit`."""
        self.spec.check_hook(state)
        return lambda fn: self.spec.add_hook(state, fn)

    def reconcile(
        self, *, every: Seconds = 15.0, batch: int = 100, grace: Seconds = 60.0
    ) -> Callable[[Ask[R]], Ask[R]]:
        """Register the function that asks an external system about handed-over work, every `every` seconds.

        It receives a batch of ids, those checked longest ago first. An id that the answer leaves out is missing; if it
        stays missing for `grace` seconds, the job fails with `missing_external_job`. If the function raises, or
        answers after the kind's lease, no job changes, and the next check comes later.
        """

        def register(ask: Ask[R]) -> Ask[R]:
            self.spec.require_unset("reconcile", self.spec.reconcile)
            check_type("batch", batch, int, "a whole number, such as 100")
            if batch < 1:
                raise UsageError(f"The batch of {self.name}'s reconcile is {batch}: give a whole number from 1 on.")
            if seconds(every, "every") <= 0:
                raise UsageError(
                    f"every of {self.name}'s reconcile is zero, so it would ask the external system without a pause: "
                    "give seconds above zero."
                )
            self.spec.reconcile = Reconcile(
                self.spec.require_async("reconcile", ask), seconds(every, "every"), batch, seconds(grace, "grace")
            )
            return ask

        return register

    def on_cancel(self, fn: Callable[[str], Awaitable[None]], /) -> Callable[[str], Awaitable[None]]:
        """Register the function that cancels handed-over work, by its external id. The job ends when it returns.

        After a crash or an error, it is called again for the same work.
        """
        self.spec.require_unset("on_cancel", self.spec.on_cancel)
        self.spec.on_cancel = self.spec.require_async("on_cancel", fn)
        return fn

    # ------------------------------------------------------------ for workers
    def facts(self) -> KindFacts:
        """Return the facts about this kind that `migrate` stores."""
        return self.spec.facts()
