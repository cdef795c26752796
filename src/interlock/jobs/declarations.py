"""The declarations of an app: kinds of job, schedules, webhooks, and context managers around attempts."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast, overload

from typing_extensions import TypeVar as DefaultTypeVar

from ..core.backoff import Backoff
from ..core.clock import Seconds, seconds
from ..core.error_policy import ErrorPolicy
from ..core.lifecycle import Lifecycle, builtin
from ..core.limits import Limit
from ..core.payload import check_name
from ..errors import UsageError
from ..store.contract import Tx
from ..store.flow_types import DeclaredLimit
from ..store.types import Declared
from .backend import Backend
from .decorator import JobDecorator, NeedsSyncRun
from .kind import Kind
from .notification import KIND as WEBHOOK
from .notification import Webhooks
from .options import check_type
from .request import JobRequest
from .results import External
from .run import Run, SyncRun
from .schedule import Schedule
from .signature import Signature
from .spec import KindSpec
from .user_code import Around
from .webhook import Webhook

P = ParamSpec("P")
R = TypeVar("R")
TxT = DefaultTypeVar("TxT", default=Tx)
AroundT = TypeVar("AroundT", bound=Around)

_LEASE = 30.0
_MAX_RUNTIME = 3600.0
_BACKOFF = Backoff()


class Declarations(Generic[TxT]):
    """The declarations of an app. A declaration that can never work raises `UsageError`."""

    def __init__(self, backend: Backend, now: Callable[[], float], queues: Mapping[str, Limit]) -> None:
        self.queues = dict(queues)
        self.kinds: dict[str, Kind[..., Any, TxT]] = {}
        self.declared_schedules: dict[str, Schedule] = {}
        """What `schedule` declares. `app.schedules` also shows what was created or changed at run time."""
        self._backend = backend
        self._around: list[Around] = []
        self._webhooks = Webhooks(now)

    # ------------------------------------------------------------ kinds
    # The fifth overload catches the `def` handlers that the first two refuse: the overlap is intended.
    @overload
    def job(self, fn: Callable[Concatenate[Run, P], Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, fn: Callable[Concatenate[Run, P], Awaitable[External[R] | R]], /) -> Kind[P, R, TxT]: ...  # type: ignore[overload-overlap]
    @overload
    def job(self, fn: Callable[Concatenate[SyncRun, P], External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[Concatenate[SyncRun, P], External[R] | R], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[Concatenate[Run, P], object], /) -> NeedsSyncRun: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def job(self, fn: Callable[P, Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[P, Awaitable[External[R] | R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[P, External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[P, External[R] | R], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self,
        /,
        *,
        kind: str | None = None,
        lifecycle: Lifecycle | str | None = None,
        tries: int = 3,
        lease: Seconds = _LEASE,
        queue: str = "default",
        max_runtime: Seconds | None = _MAX_RUNTIME,
        process: bool = False,
        backoff: Backoff = _BACKOFF,
        on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun",
        key_until: Sequence[str] = (),
        commit_timeout: Seconds | None = None,
        commit_batch: int = 25,
        error_policy: ErrorPolicy | None = None,
        max_running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running_per_key: int | None = None,
        rate_per_key: str | None = None,
        burst_per_key: int | None = None,
    ) -> JobDecorator[TxT]: ...
    def job(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        kind: str | None = None,
        lifecycle: Lifecycle | str | None = None,
        tries: int = 3,
        lease: Seconds = _LEASE,
        queue: str = "default",
        max_runtime: Seconds | None = _MAX_RUNTIME,
        process: bool = False,
        backoff: Backoff = _BACKOFF,
        on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun",
        key_until: Sequence[str] = (),
        commit_timeout: Seconds | None = None,
        commit_batch: int = 25,
        error_policy: ErrorPolicy | None = None,
        max_running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running_per_key: int | None = None,
        rate_per_key: str | None = None,
        burst_per_key: int | None = None,
    ) -> Any:
        """Make a function a kind of job: `@app.job`, or `@app.job(…)` with options.

        The handler may take a run first: a `Run` for async def, a `SyncRun` for def. `lifecycle` is a `Lifecycle`, or
        the name of a built-in one. `max_running`, `rate` and `burst` limit the kind over all workers, and the options
        with `_per_key` limit each concurrency key: see `Limit`.
        """

        def declare(fn: Callable[..., Any], /) -> Kind[..., Any, TxT]:
            name = _check_kind(kind, fn)
            _check_job_options(queue, process, backoff, key_until, error_policy)
            signature, states = Signature(name, fn), [key_until] if isinstance(key_until, str) else key_until
            durations = _check_durations(lease, max_runtime, commit_timeout)
            key_limit = Limit(max_running_per_key, rate_per_key, burst_per_key)
            return self._add(
                KindSpec(
                    name, signature, _find_lifecycle(lifecycle), tries=tries, queue=check_name("queue", queue),
                    process=process, backoff=backoff, on_lost_lease=on_lost_lease, key_until=frozenset(states),
                    commit_batch=commit_batch, error_policy=error_policy, tokens=self._backend.tokens,
                    around=self._around, **durations,
                    limit=Limit(max_running, rate, burst), key_limit=None if key_limit.unlimited else key_limit,
                )
            )  # fmt: skip

        return declare if fn is None else declare(fn)

    def _add(self, spec: KindSpec) -> Kind[..., Any, TxT]:
        if spec.name in self.kinds:
            raise UsageError(
                f"This app already has a kind {spec.name}: give one of the two another name with job(kind=…)."
            )
        for other in self._lifecycles():
            if other.name == spec.lifecycle.name and other != spec.lifecycle:
                raise UsageError(
                    f"The lifecycle {other.name} of {spec.name} differs from the one that this app knows by that name: "
                    "rename one of the two."
                )
        kind: Kind[..., Any, TxT] = Kind(spec, self._backend)
        self.kinds[spec.name] = kind
        self._subscribe(spec)
        return kind

    def _find_spec(self, kind: str) -> KindSpec | None:
        return self.kinds[kind].spec if kind in self.kinds else None

    def _lifecycles(self) -> list[Lifecycle]:
        """Return `standard` and the lifecycles of the kinds, each name once."""
        every = [builtin("standard"), *(kind.spec.lifecycle for kind in self.kinds.values())]
        return list({lifecycle.name: lifecycle for lifecycle in every}.values())

    def declared(self) -> Declared:
        """Return the lifecycles, kinds and limits that `migrate` registers."""
        of_kinds = [limit for kind in self.kinds.values() for limit in kind.spec.declared_limits()]
        of_queues = [DeclaredLimit("queue", name, limit) for name, limit in self.queues.items()]
        return Declared(self._lifecycles(), [kind.facts() for kind in self.kinds.values()], [*of_kinds, *of_queues])

    # ------------------------------------------------------------ around attempts, schedules, webhooks
    def around_attempt(self, fn: AroundT, /) -> AroundT:
        """Register `fn`, which returns a context manager that workers enter around every function of a job.

        The thread or task that runs the function enters it. Use it for cleanup that a framework does around a request,
        such as Django's `close_old_connections`. If it raises, the function counts as failed.
        """
        self._around.append(fn)
        return fn

    def schedule(
        self,
        name: str,
        cron: str,
        request: JobRequest[object],
        /,
        *,
        tz: str = "UTC",
        catch_up: Literal["last", "none", "all"] = "last",
    ) -> None:
        """Enqueue a job at every tick of a cron line. Each tick enqueues one job, however many workers run."""
        if name in self.declared_schedules:
            raise UsageError(f"This app already has a schedule {name}: give one of the two another name.")
        self.declared_schedules[name] = Schedule(name, cron, self._check_request(request), tz, catch_up)

    def webhook(
        self, name: str, url: str, /, *, secret: str, kinds: Sequence[str] | None = None, allow_private: bool = False
    ) -> None:
        """Send a signed message to this URL when a job of these kinds ends; without `kinds`, when any job ends.

        Each message is itself a job, stored in the transaction that ends the reported job.
        """
        self._webhooks.add(name, Webhook(url, secret, allow_private), kinds)
        if WEBHOOK not in self.kinds:
            self.job(kind=WEBHOOK, tries=12, backoff=Backoff(5.0, cap=3600.0))(self._webhooks.deliver)
        for kind in self.kinds.values():
            self._subscribe(kind.spec)

    def _subscribe(self, spec: KindSpec) -> None:
        if self._webhooks.names_for(spec.name):
            spec.notify = self._webhooks.hook(cast("Mapping[str, Kind[..., Any, Any]]", self.kinds))

    def _check_request(self, request: JobRequest[R]) -> JobRequest[R]:
        check_type("request", request, JobRequest, "the value of kind.request(…)")
        kind = self.kinds.get(request.spec.name)
        if kind is None or kind.spec is not request.spec:
            raise UsageError(f"The request for {request.spec.name} belongs to another app: pass it to that app.")
        return request


def _check_kind(kind: str | None, fn: Callable[..., Any]) -> str:
    check_type("kind", kind, str, "a string")
    if not callable(fn):
        raise UsageError(f"app.job got {fn!r}: give options by keyword, such as @app.job(kind='greet').")
    name = kind or getattr(fn, "__name__", None)
    if name is None:
        raise UsageError(f"{fn!r} has no name: give the kind one with @app.job(kind=…).")
    return check_name("The name of a kind", name)


def _check_job_options(
    queue: object, process: object, backoff: object, key_until: object, error_policy: object
) -> None:
    check_type("queue", queue, str, "a string")
    check_type("process", process, bool, "True or False")
    check_type("backoff", backoff, Backoff, "a Backoff, such as Backoff(5)")
    check_type("key_until", key_until, (Sequence, frozenset, set), "a list of states, such as ['FAILED']")
    if error_policy is not None and not callable(error_policy):
        raise UsageError(f"error_policy is {error_policy!r}: give a function that takes the exception.")


class _Durations(TypedDict):
    lease: float
    max_runtime: float | None
    commit_timeout: float


def _check_durations(lease: Seconds, max_runtime: Seconds | None, commit_timeout: Seconds | None) -> _Durations:
    return {
        "lease": seconds(lease, "lease"),
        "max_runtime": None if max_runtime is None else seconds(max_runtime, "max_runtime"),
        "commit_timeout": seconds(lease if commit_timeout is None else commit_timeout, "commit_timeout"),
    }


def _find_lifecycle(lifecycle: Lifecycle | str | None) -> Lifecycle:
    check_type("lifecycle", lifecycle, (Lifecycle, str), "a Lifecycle, or the name of a built-in one")
    return lifecycle if isinstance(lifecycle, Lifecycle) else builtin(lifecycle or "standard")
