"""What a handler holds while it works: the contracts, which the worker fulfils."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

Q = ParamSpec("Q")
T = TypeVar("T")
Doubt = Literal["retry", "hold"]


class RunFacts(Protocol):
    """What `Run` and `SyncRun` share."""

    job_id: str
    exec_id: str
    attempt: int
    cancelled: bool
    payload: Mapping[str, Any]

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the work is. It travels with the next renewal of the lease; the last word holds."""
        ...

    def measure(self, name: str, value: float) -> None:
        """Keep a figure about this execution. It travels with the next renewal of the lease."""
        ...


class Effect(Protocol):
    """An outside call with a receipt: once applied, never called again for its job."""

    key: str
    """The same in every attempt: hand it to the outside as its idempotency key."""

    @overload
    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...


class SkipEffect(Protocol):
    """An outside call that happens at most once: in doubt it is skipped, and its value is None."""

    key: str

    @overload
    async def __call__(self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T | None: ...
    @overload
    async def __call__(self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T | None: ...


class LookupEffect(Protocol[T]):
    """An outside call whose doubt is settled by looking the truth up."""

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


class Run(RunFacts, Protocol):
    """For `async def` handlers."""

    @overload
    async def step(self, name: str, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Call `fn`, or give back the value that an earlier attempt got from it."""
        ...

    async def advance(self, stage: str, /) -> None:
        """Go on to a named stage, fenced and audited. `TransitionRefused` where it is not drawn."""
        ...

    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> Effect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> SkipEffect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Callable[[str], Awaitable[T | None]]) -> LookupEffect[T]:
        """Prepare an outside call. `on_doubt` says what to do where an earlier attempt asked and no receipt came back."""
        ...


class SyncRun(RunFacts, Protocol):
    """For `def` handlers (threads, processes): the same verbs, without await."""

    def step(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Call `fn`, or give back the value that an earlier attempt got from it."""
        ...

    def advance(self, stage: str, /) -> None:
        """Go on to a named stage, fenced and audited. `TransitionRefused` where it is not drawn."""
        ...

    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> SyncEffect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> SyncSkipEffect:
        """Prepare an outside call. `on_doubt` says what to do where an earlier attempt asked and no receipt came back."""
        ...
