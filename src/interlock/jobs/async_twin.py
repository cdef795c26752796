"""Async twins of blocking methods: `aget` for `get`, `acancel` for `cancel`."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..store.open_transactions import open_transactions

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def async_twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that calls the blocking method in a thread."""

    @functools.wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if open_transactions():
            # The open transaction belongs to this thread, so the method runs here and can join it.
            return method(self, *args, **kwargs)
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return twin
