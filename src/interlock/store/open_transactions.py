"""Transactions that users' functions run in. A call of the app joins the open transaction, or refuses to run in it."""

import asyncio
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import UsageError


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


@dataclass(eq=False, slots=True)
class OpenTransaction:
    """A transaction that is open while a user's function runs: commit, hook, `admit`, or `app.transaction()` block."""

    store: Any
    """The session of the store."""
    handle: Any
    """The function's argument: a `Tx`, or a connection or session of the user's own."""
    ended: bool = False
    _thread: int = field(default_factory=threading.get_ident)
    _pid: int = field(default_factory=os.getpid)
    _task: asyncio.Task[Any] | None = field(default_factory=_current_task)

    @property
    def live(self) -> bool:
        """Whether it can still be joined. A task may outlive the transaction; a fork does not own the connection."""
        return not self.ended and self._pid == os.getpid()

    @property
    def here(self) -> bool:
        """Whether this thread and task opened it.

        A thread or task that the block starts inherits the context, but must not use the transaction: the block may
        roll back after the enqueue of the other thread has returned.
        """
        return self._thread == threading.get_ident() and (self._task is None or self._task is _current_task())


_open: ContextVar[tuple[OpenTransaction, ...]] = ContextVar("interlock_open_transactions", default=())


@contextmanager
def inside(store: Any, handle: Any) -> Generator[None]:
    """Register the transaction for calls of the app that the block makes."""
    entry = OpenTransaction(store, handle)
    _open.set((*_open.get(), entry))
    try:
        yield
    finally:
        entry.ended = True
        # Not reset by a token: a framework may leave the block in another context than it entered it in.
        _open.set(tuple(each for each in _open.get() if each is not entry))


def open_transactions() -> list[OpenTransaction]:
    """The transactions that this code runs in, the innermost first."""
    return [each for each in reversed(_open.get()) if each.live]


class Joinable(Protocol):
    """The part of a store that joining a transaction needs."""

    def joined(self) -> OpenTransaction | None:
        """The open transaction on this store's database that this code runs in."""
        ...


def handle_here(store: Joinable) -> Any | None:
    """The handle of the open transaction that this code runs in, for an enqueue without `conn=`; None without one."""
    found = store.joined() if _open.get() else None
    if found is not None and not found.here:
        raise UsageError(
            "A transaction of this app is open in the thread or task that started this one, and only that one may use "
            "it: enqueue there, or after the transaction has ended."
        )
    return found.handle if found is not None else None


def refuse_inside(
    store: Joinable, verb: str, instead: str = "call it after the transaction has ended, or enqueue a job that calls it"
) -> None:
    """`UsageError` if this code runs inside a transaction on the store's database, since the call needs its own."""
    if _open.get() and store.joined() is not None:
        raise UsageError(
            f"{verb} cannot run inside a transaction of this app (a commit function, a hook, admit, or "
            f"app.transaction()): {instead}."
        )
