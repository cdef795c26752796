"""An app's database: a URL, opened at the first call, once per process."""

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from ..core.clock import Clock
from . import OpenStore, open_store
from .types import Declared, Migrated

VARIABLES = ("INTERLOCK_DATABASE_URL", "DATABASE_URL")
FALLBACK = "sqlite:///interlock.db"


def choose_url(given: str | None, environment: Mapping[str, str]) -> str:
    """The URL that was given, else the environment's, else a file beside the program."""
    return next((url for url in (given, *(environment.get(name) for name in VARIABLES)) if url), FALLBACK)


def migrate(store: OpenStore, declared: Declared) -> Migrated:
    return store.registry.migrate(declared.lifecycles, declared.kinds, declared.limits)


class Database:
    """Opens an app's store.

    A store belongs to the process that opened it. After a fork the child opens its own and leaves its parent's
    connections alone.
    """

    def __init__(
        self,
        url: str | None,
        schema: str,
        clock: Clock,
        declared: Callable[[], Declared],
    ) -> None:
        self.clock = clock
        self._url = url
        self._schema = schema
        self._declared = declared
        self._stores: dict[int, OpenStore] = {}
        self._locks: dict[int, threading.Lock] = {}

    @property
    def url(self) -> str:
        return choose_url(self._url, os.environ)

    @property
    def schema(self) -> str:
        return self._schema

    def store(self) -> OpenStore:
        """This process's store. A new, empty SQLite file is migrated at once; any other database only by `migrate`."""
        pid = os.getpid()
        if store := self._stores.get(pid):
            return store
        # A lock per process: a lock that a thread of the parent owned at the fork would stay locked here forever.
        with self._locks.setdefault(pid, threading.Lock()):
            if pid not in self._stores:
                url = self.url
                store = open_store(url, self._schema, self.clock)
                if store.registry.is_new():
                    migrate(store, self._declared())
                self._stores[pid] = store
            return self._stores[pid]

    def migrate(self) -> Migrated:
        """Bring the schema to this code's version, and register the app's lifecycles and kinds."""
        return migrate(self.store(), self._declared())

    def close(self) -> None:
        """Close this process's connections. The next call opens new ones."""
        if store := self._stores.pop(os.getpid(), None):
            store.close()

    @contextmanager
    def bound_to(self, url: str) -> Generator[None]:
        """Use another database instead, in all threads, until the block ends; then close it."""
        before = self._url, self._stores
        self._url, self._stores = url, {}
        try:
            yield
        finally:
            self.close()
            self._url, self._stores = before
