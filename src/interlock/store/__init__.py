"""The stores, and how a URL chooses one."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..clock import Clock
from ..errors import UsageError
from ..records import Enqueued, NewJob
from ..store import Store
from .inside import OpenTransaction


class OpenStore(Store, Protocol):
    """A store as an app holds it: the contract, and what only its own process needs."""

    def is_empty(self) -> bool:
        """Whether nothing of ours is in the database yet."""
        ...

    def is_new(self) -> bool:
        """Whether this is a file that nobody has put anything into, so that ours may be put there unasked. A server's database never is."""
        ...

    def joined(self) -> OpenTransaction | None:
        """The open transaction on this database that the caller runs in: commit, hook, `admit` or `transaction()`."""
        ...

    async def aenqueue(self, jobs: Sequence[NewJob], *, conn: object, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        """`enqueue` in the caller's own transaction, where its connection is an async one: in the caller's thread and loop."""
        ...


SQLITE = ("sqlite", "sqlite+pysqlite3")
POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


class _Importing:
    """Prevents forks during imports: a child would wait for ever for a module that another thread was importing."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def before(self) -> None:
        self.lock.acquire()

    def after_in_parent(self) -> None:
        self.lock.release()

    def after_in_child(self) -> None:
        self.lock = threading.RLock()


_importing = _Importing()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.before, after_in_parent=_importing.after_in_parent, after_in_child=_importing.after_in_child)


def open_store(url: str, schema: str, clock: Clock) -> OpenStore:
    """The store that a database URL names. It connects at its first verb. `UsageError` if no store goes by that scheme, or its extra is not installed."""
    with _importing.lock:
        return _open_store(url, schema, clock)


def _open_store(url: str, schema: str, clock: Clock) -> OpenStore:
    scheme, separator, _ = url.partition("://")
    if scheme in SQLITE and separator:
        from .sqlite.store import SqliteStore

        return SqliteStore.at(url, schema=schema, clock=clock)
    if scheme in POSTGRES and separator:
        try:
            from .postgres.store import PostgresStore
        except ModuleNotFoundError as error:
            if error.name not in ("psycopg", "psycopg_pool"):
                raise
            raise UsageError(f"A {scheme} URL needs {error.name}, which is not installed: run pip install 'interlock[postgres]'.") from None
        return PostgresStore(url, schema=schema)
    # The scheme alone: what follows it may hold a password.
    shown = f"starts with {scheme!r}" if separator else "has no scheme"
    raise UsageError(f"The database URL {shown}: write sqlite:///jobs.db for a file, or postgresql://user@host/name for a server.")
