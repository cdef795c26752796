"""The store contract: what a database must do for Interlock.

A store is composed of parts, one small protocol for each group of callers. Each docstring is a requirement, which the
tests in `tests/contract` check on every store. A store makes no decisions: it carries out the moves that `decide` made
and reports the result. Four rules hold for every method:

- A method is one transaction: all of it is stored, or none. Only `claim`, `move`, `take` and `remove_archived` may use
  several. Each job, move, take or month is still stored as a whole, and a move that was stored already is not refused
  when it is sent again.
- `move`, `commit` and `renew` match the fence `(job_id, attempt, holder)` in their own WHERE clause. They check who
  owns the execution, never the time.
- After insert, only `claim`, `move`, `commit` and `commit_group` (moves with functions in their transaction), and
  `take` assign a job's state.
- Only `adopt` and `recall` take over another owner's execution.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from ..tx import Cursor, Tx
from .flow_parts import FlowPart, LimitsPart
from .operating import BulkPart
from .reading import ExternalPart, InspectPart
from .records import ControlPart, ReceiptsPart, RegistryPart, RetentionPart, WorkersPart
from .running import LeasesPart, QueuePart, Subscription, TransitionsPart
from .scheduling import SchedulesPart

__all__ = [
    "PARTS",
    "BulkPart",
    "ControlPart",
    "Cursor",
    "ExternalPart",
    "FlowPart",
    "InspectPart",
    "LeasesPart",
    "LimitsPart",
    "QueuePart",
    "ReceiptsPart",
    "RegistryPart",
    "RetentionPart",
    "SchedulesPart",
    "Store",
    "Subscription",
    "TransitionsPart",
    "Tx",
    "WorkersPart",
]


class Store(Protocol):
    """One database that stores jobs, composed of parts."""

    @property
    def registry(self) -> RegistryPart: ...
    @property
    def queue(self) -> QueuePart: ...
    @property
    def transitions(self) -> TransitionsPart: ...
    @property
    def leases(self) -> LeasesPart: ...
    @property
    def control(self) -> ControlPart: ...
    @property
    def bulk(self) -> BulkPart: ...
    @property
    def receipts(self) -> ReceiptsPart: ...
    @property
    def inspect(self) -> InspectPart: ...
    @property
    def external(self) -> ExternalPart: ...
    @property
    def workers(self) -> WorkersPart: ...
    @property
    def schedules(self) -> SchedulesPart: ...
    @property
    def retention(self) -> RetentionPart: ...
    @property
    def limits(self) -> LimitsPart: ...
    @property
    def flow(self) -> FlowPart: ...

    @property
    def journal(self) -> str | None:
        """The journal mode of a SQLite file; None on a server."""
        ...

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction on this database: committed at the end of the block, rolled back if the block raises.

        It can be passed as `conn` to `enqueue`.
        """
        ...

    def close(self) -> None:
        """Close every connection. The next call opens new ones."""
        ...


PARTS = {
    "registry": RegistryPart,
    "queue": QueuePart,
    "transitions": TransitionsPart,
    "leases": LeasesPart,
    "control": ControlPart,
    "bulk": BulkPart,
    "receipts": ReceiptsPart,
    "inspect": InspectPart,
    "external": ExternalPart,
    "workers": WorkersPart,
    "schedules": SchedulesPart,
    "retention": RetentionPart,
    "limits": LimitsPart,
    "flow": FlowPart,
}
"""The parts of a store by attribute name."""
