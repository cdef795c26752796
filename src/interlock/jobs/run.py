"""The run that a handler receives: `Run` for async def, `SyncRun` for def. The worker implements both."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Never, ParamSpec, Protocol, TypeVar, overload

from ..core.clock import Seconds
from .question import Question

Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Doubt = Literal["retry", "hold"]


class RunFacts(Protocol):
    """The attributes and methods that `Run` and `SyncRun` share."""

    job_id: str
    exec_id: str
    attempt: int
    cancelled: bool
    payload: Mapping[str, Any]

    @overload
    def ask(self, *, timeout: Seconds) -> Question[Never]: ...
    @overload
    def ask(self, *, timeout: Seconds, default: T) -> Question[T]:
        """Make a question for a person or another system. Put its token into a link, and return it from the handler.

        The job then waits, without a slot, until `app.answer` gets the token and a value. After `timeout` it succeeds
        with the default or, without one, fails. The time counts from the end of the handler.
        """
        ...

    def measure(self, name: str, value: float) -> None:
        """Add to a usage figure of this execution. The next renewal of the lease stores it."""
        ...


class ResultOf(Protocol[T_co]):
    """A kind, whose results are read as a T."""

    name: str

    def load_result(self, value: object, /) -> T_co:
        """Return a stored result as the type that the handler declares."""
        ...


class Effect(Protocol):
    """An external call with a receipt. Once the receipt is stored, the job never makes the call again."""

    key: str
    """The same in every attempt: pass it to the external system as its idempotency key."""

    @overload
    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class SkipEffect(Protocol):
    """An external call that happens at most once. If it may have happened, it is skipped and returns None."""

    key: str

    @overload
    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T | None: ...
    @overload
    async def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T | None: ...


class LookupEffect(Protocol[T]):
    """An external call. If it may have happened, `on_doubt` looks up its result in the external system."""

    key: str

    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class SyncEffect(Protocol):
    """`Effect`, without await."""

    key: str

    def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class SyncSkipEffect(Protocol):
    """`SkipEffect`, without await."""

    key: str

    def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T | None: ...


class Step(Protocol):
    """A step whose saved value is used only up to an age."""

    @overload
    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class SyncStep(Protocol):
    """`Step`, without await."""

    def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class Run(RunFacts, Protocol):
    """The run of an `async def` handler."""

    def progress(self, done: float, total: float | None = None, note: str = "") -> Awaitable[None]:
        """Report how far the work is. The worker stores the last report within a second. It need not be awaited."""
        ...

    @overload
    async def step(self, name: str, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    def step(self, name: str, /, *, max_age: Seconds) -> Step:
        """Call `fn` and save its value, or return the value that an earlier attempt saved.

        `run.step(name, max_age=300)(fn, …)` calls `fn` again if the saved value is older than that.
        """
        ...

    async def results(self, kind: ResultOf[T], /) -> list[T]:
        """Return the results of the jobs of this kind that the job waited for, in the order of their creation.

        Failed jobs have no result. If the job waited for a batch or a flow, this includes all its jobs of this kind.
        """
        ...

    async def advance(self, stage: str, /) -> None:
        """Advance the job to a stage. `TransitionRefused` if the lifecycle does not allow it."""
        ...

    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> Effect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> SkipEffect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Callable[[str], Awaitable[T | None]]) -> LookupEffect[T]:
        """Prepare an external call.

        `on_doubt` says what to do if an earlier attempt made the call and got no answer.
        """
        ...


class SyncRun(RunFacts, Protocol):
    """The run of a `def` handler, in a thread or a process: the same methods, without await."""

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the work is. The worker stores the last report within a second."""
        ...

    @overload
    def step(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    def step(self, name: str, /, *, max_age: Seconds) -> SyncStep:
        """Call `fn` and save its value, or return the value that an earlier attempt saved.

        `run.step(name, max_age=300)(fn, …)` calls `fn` again if the saved value is older than that.
        """
        ...

    def results(self, kind: ResultOf[T], /) -> list[T]:
        """Return the results of the jobs of this kind that the job waited for, in the order of their creation.

        Failed jobs have no result. If the job waited for a batch or a flow, this includes all its jobs of this kind.
        """
        ...

    def advance(self, stage: str, /) -> None:
        """Advance the job to a stage. `TransitionRefused` if the lifecycle does not allow it."""
        ...

    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> SyncEffect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> SyncSkipEffect:
        """Prepare an external call.

        `on_doubt` says what to do if an earlier attempt made the call and got no answer.
        """
        ...
