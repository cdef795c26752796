"""The SQLite store: one file, one machine, one writer at a time. The clock it is given decides about leases."""

from contextlib import AbstractContextManager
from typing import Self

from ...core.clock import Clock
from ..listener import Listeners
from ..open_transactions import OpenTransaction
from ..tx import Tx
from .bulk import SqliteBulk
from .control import SqliteControl
from .external import SqliteExternal
from .file import File
from .flow import SqliteFlow
from .inspect import SqliteInspect
from .leases import SqliteLeases
from .library import Library, locate
from .limits import SqliteLimits
from .queue import SqliteQueue
from .receipts import SqliteReceipts
from .registry import SqliteRegistry
from .retention import SqliteRetention
from .schedules import SqliteSchedules
from .session import SqliteSession
from .transitions import SqliteTransitions
from .workers import SqliteWorkers


class SqliteStore:
    """Jobs in one SQLite file, in tables whose names begin with the schema's."""

    def __init__(self, path: str, library: Library, schema: str, clock: Clock) -> None:
        self.session = session = SqliteSession(path, library, schema, clock)
        self.listeners = Listeners()
        self.registry = SqliteRegistry(session)
        self.control = SqliteControl(session)
        self.limits = SqliteLimits(session)
        self.flow = SqliteFlow(session)
        self.queue = SqliteQueue(session, self.control, self.flow, self.listeners)
        self.transitions = SqliteTransitions(session, self.flow)
        self.leases = SqliteLeases(session)
        self.bulk = SqliteBulk(session)
        self.receipts = SqliteReceipts(session)
        self.inspect = SqliteInspect(session)
        self.external = SqliteExternal(session)
        self.workers = SqliteWorkers(session)
        self.schedules = SqliteSchedules(session)
        self.retention = SqliteRetention(session)

    @classmethod
    def at(cls, url: str, *, schema: str = "interlock", clock: Clock) -> Self:
        """The store that a URL names."""
        path, library = locate(url)
        return cls(path, library, schema, clock)

    @property
    def file(self) -> File:
        return self.session.file

    @property
    def journal(self) -> str:
        """The file's journal mode: `wal`, or `truncate` if the library is not safe for a write-ahead log."""
        return self.file.journal

    def joined(self) -> OpenTransaction | None:
        return self.session.joined()

    def transaction(self) -> AbstractContextManager[Tx]:
        return self.session.transaction()

    def close(self) -> None:
        self.listeners.close()
        self.session.close()
