"""The type of `app.job(…)`: a decorator that turns a handler into a kind, typed by the handler's own signature."""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, Protocol, overload

from typing_extensions import TypeVar

from ..store.contract import Tx
from .kind import Kind
from .results import External
from .run import Run, SyncRun

P = ParamSpec("P")
R = TypeVar("R")
TxT = TypeVar("TxT", default=Tx)


class NeedsSyncRun:
    """The type of a wrong declaration: a `def` handler that takes a `Run`. It must take a `SyncRun`."""


class JobDecorator(Protocol[TxT]):
    """Turns a handler into a kind. The handler may take a run first, or leave it out."""

    # The fifth overload catches the `def` handlers that the first two refuse: the overlap is intended.
    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], Awaitable[External[R] | R]], /) -> Kind[P, R, TxT]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncRun, P], External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncRun, P], External[R] | R], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Run, P], object], /) -> NeedsSyncRun: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[External[R] | R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[P, External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[P, External[R] | R], /) -> Kind[P, R, TxT]: ...
