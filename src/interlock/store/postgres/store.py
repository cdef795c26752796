"""The PostgreSQL store: one schema of a database. The server's clock decides about leases."""

from contextlib import AbstractContextManager

from ..listener import Listeners
from ..open_transactions import OpenTransaction
from ..tx import Tx
from .bulk import PostgresBulk
from .control import PostgresControl
from .external import PostgresExternal
from .flow import PostgresFlow
from .inspect import PostgresInspect
from .leases import PostgresLeases
from .limits import PostgresLimits
from .queue import PostgresQueue
from .receipts import PostgresReceipts
from .registry import PostgresRegistry
from .retention import PostgresRetention
from .schedules import PostgresSchedules
from .session import PostgresSession
from .transitions import PostgresTransitions
from .workers import PostgresWorkers


class PostgresStore:
    """Jobs in one schema of a PostgreSQL database."""

    def __init__(self, url: str, *, schema: str = "interlock") -> None:
        self.session = session = PostgresSession(url, schema)
        self.listeners = Listeners()
        self.registry = PostgresRegistry(session)
        self.control = PostgresControl(session)
        self.limits = PostgresLimits(session)
        self.flow = PostgresFlow(session)
        self.queue = PostgresQueue(session, self.control, self.flow, self.listeners)
        self.transitions = PostgresTransitions(session, self.flow)
        self.leases = PostgresLeases(session)
        self.bulk = PostgresBulk(session)
        self.receipts = PostgresReceipts(session)
        self.inspect = PostgresInspect(session)
        self.external = PostgresExternal(session)
        self.workers = PostgresWorkers(session)
        self.schedules = PostgresSchedules(session)
        self.retention = PostgresRetention(session)

    def joined(self) -> OpenTransaction | None:
        return self.session.joined()

    @property
    def journal(self) -> None:
        return None

    def transaction(self) -> AbstractContextManager[Tx]:
        return self.session.transaction()

    def close(self) -> None:
        self.listeners.close()
        self.session.close()
