"""Opens the store that a database URL names."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..core.clock import Clock
from ..errors import UsageError
from .contract import QueuePart, RegistryPart, Store
from .flow_types import NewBatch
from .open_transactions import OpenTransaction
from .types import Enqueued, NewJob


class OpenRegistry(RegistryPart, Protocol):
    """The registry, with the checks that opening a database needs."""

    def is_empty(self) -> bool:
        """Return whether the database has no Interlock schema yet."""
        ...

    def is_new(self) -> bool:
        """Return whether this is an empty SQLite file, which the app migrates itself. Always False on PostgreSQL."""
        ...


class OpenQueue(QueuePart, Protocol):
    """The queue, with the method for async connections."""

    async def aenqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        conn: object,
        admit: Callable[[Any, NewJob], None] | None = None,
        batches: Sequence[NewBatch] = (),
    ) -> list[Enqueued]:
        """Enqueue in the caller's own transaction on an async connection, in the caller's thread and event loop."""
        ...


class OpenStore(Store, Protocol):
    """A store as an app uses it: the contract, and the methods that only its own process needs."""

    @property
    def registry(self) -> OpenRegistry: ...
    @property
    def queue(self) -> OpenQueue: ...

    def joined(self) -> OpenTransaction | None:
        """Return the open transaction on this database that the caller runs in; None if there is none.

        It is the transaction of a commit function, a hook, an `admit` function or a `transaction()` block.
        """
        ...


SQLITE = ("sqlite", "sqlite+pysqlite3")
POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


class _Importing:
    """Delays forks during imports: a child would wait forever for a module that another thread was importing."""

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
        before=_importing.before, after_in_parent=_importing.after_in_parent, after_in_child=_importing.after_in_child
    )


def open_store(url: str, schema: str, clock: Clock) -> OpenStore:
    """Return the store that a database URL names. It connects when it is first used.

    Raise `UsageError` if the scheme is unknown, or if the packages that it needs are not installed.
    """
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
            raise UsageError(
                f"A {scheme} URL needs {error.name}, which is not installed: run pip install 'interlock[postgres]'."
            ) from None
        return PostgresStore(url, schema=schema)
    # Show only the scheme: the rest may contain a password.
    shown = f"starts with {scheme!r}" if separator else "has no scheme"
    raise UsageError(
        f"The database URL {shown}: write sqlite:///jobs.db for a file, or postgresql://user@host/name for a server."
    )
