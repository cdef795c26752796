"""The ledger of an execution. It stores the handler's steps, effects and stages under the execution's lease."""

from collections.abc import Callable
from typing import Protocol

from ..core.outcome import Advanced
from ..errors import LeaseLost
from ..store.open_transactions import refuse_inside
from ..store.types import Receipt
from .context import WorkerContext
from .held_execution import HeldExecution
from .settle import Settler
from .settlement import Settlement

BEFORE_OR_AFTER = "it is stored at once, even if the transaction rolls back, so call it before or after the block"


class Ledger(Protocol):
    """Stores steps, effects and stages. Writes raise `LeaseLost` if the worker no longer owns the lease."""

    def check(self) -> None:
        """Raise `LeaseLost` or `Cancelled` if the handler must stop."""
        ...

    def refuse_open_transaction(self, verb: str) -> None:
        """Raise `UsageError` if the handler has an open transaction, which could block the ledger's own write."""
        ...

    def advance(self, stage: str) -> None: ...

    def receipts(self) -> list[Receipt]: ...

    def results(self, kind: str) -> list[str | None]:
        """Return the results, as JSON, of the jobs of this kind that the job has waited for."""
        ...

    def record_step(self, name: str, args_hash: str, value: str) -> None: ...

    def begin_effect(self, name: str, args_hash: str) -> None: ...

    def record_effect(self, name: str, value: str | None, decided_by: str) -> None: ...

    def discard_effect(self, name: str) -> None: ...


class StoreLedger:
    """A ledger that writes to the store, fenced by the execution's lease."""

    def __init__(self, context: WorkerContext, settler: Settler, execution: HeldExecution) -> None:
        self._context = context
        self._settler = settler
        self._execution = execution

    def check(self) -> None:
        self._execution.check()

    def refuse_open_transaction(self, verb: str) -> None:
        refuse_inside(self._context.store, verb, BEFORE_OR_AFTER)

    def advance(self, stage: str) -> None:
        self.check()
        settlement = Settlement(self._execution, Advanced(stage))
        self._settler.settle_one(settlement)
        if settlement.error is not None:
            raise settlement.error

    def receipts(self) -> list[Receipt]:
        return self._context.retry_while_unavailable(
            lambda: self._context.store.receipts.for_job(self._execution.job.id), "receipts"
        )

    def results(self, kind: str) -> list[str | None]:
        return self._context.retry_while_unavailable(
            lambda: self._context.store.flow.results(self._execution.job.id, kind), "results"
        )

    def record_step(self, name: str, args_hash: str, value: str) -> None:
        self._write(lambda: self._context.store.receipts.record_step(self._execution.fence, name, args_hash, value))

    def begin_effect(self, name: str, args_hash: str) -> None:
        self.check()
        self._write(lambda: self._context.store.receipts.begin_effect(self._execution.fence, name, args_hash))

    def record_effect(self, name: str, value: str | None, decided_by: str) -> None:
        # No check here: the call has happened, so its receipt is stored even if the handler must stop.
        self._write(
            lambda: self._context.store.receipts.record_effect(
                self._execution.fence, name, value, decided_by=decided_by
            )
        )

    def discard_effect(self, name: str) -> None:
        self._context.retry_while_unavailable(
            lambda: self._context.store.receipts.discard_effect(self._execution.fence, name), "receipts"
        )

    def _write(self, write: Callable[[], bool]) -> None:
        if not self._context.retry_while_unavailable(write, "receipts"):
            self._execution.halt("lost")
            raise LeaseLost(
                f"Job {self._execution.job.id}, attempt {self._execution.job.attempt}, lost its lease. Nothing was "
                "stored; another worker may run the job."
            )
