"""The worker's connection to its database: checked when the loop starts, and again after an outage."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from ..engine.context import WorkerContext, call_soon
from ..store.contract import Subscription
from ..store.types import ClaimRule
from ..telemetry import events
from .lost_claims import return_lost_claims
from .slots import Slots
from .worker_parts import MaintenanceTasks

T = TypeVar("T")


class DatabaseConnection:
    """Checks the database, loads what the worker may claim, and listens for new jobs. Use it in the event loop only."""

    def __init__(
        self,
        context: WorkerContext,
        slots: Slots,
        maintenance: MaintenanceTasks,
        claimer: Executor,
        *,
        on_notification: Callable[[], None] | None,
        wake: Callable[[], None],
    ) -> None:
        """Without `on_notification`, the worker only polls."""
        self.claim_rules: list[ClaimRule] = []
        self.open = False
        """Whether the database has answered, and is migrated, since the worker started or had an error."""
        self._context = context
        self._slots = slots
        self._maintenance = maintenance
        self._claimer = claimer
        self._on_notification = on_notification
        self._wake = wake
        self._listener: Subscription | None = None

    async def check(self) -> None:
        """Check the database. After an outage, return lost claims and give other workers time to renew.

        Raises `NotMigrated`.
        """
        was_down = self._context.database_down.is_set()
        if not self.claim_rules or was_down:
            await self._connect(was_down=was_down)
        self.open = True

    async def _connect(self, *, was_down: bool) -> None:
        await self.call(self._context.now)
        self.claim_rules = await self.call(self._load_claim_rules)
        if was_down:
            self._context.database_down.clear()
            self._context.events.emit(events.DatabaseReachable(self._context.owner))
            self._maintenance.note_unreachable()
            owned = [execution.fence for execution in self._slots.executions.values()]
            await self.call(partial(return_lost_claims, self._context, owned, self._slots.abandoned))
        if self._on_notification is not None and self._listener is None:
            # A listener that has just opened knows of no new job: it may even get no notifications at all.
            loop = asyncio.get_running_loop()
            notify, opened = partial(call_soon, loop, self._on_notification), partial(call_soon, loop, self._wake)
            self._listener = await self.call(lambda: self._context.store.queue.listen(notify, opened))

    def _load_claim_rules(self) -> list[ClaimRule]:
        store = self._context.store
        return [rule for spec in self._context.kinds.values() for rule in spec.claim_rules(spec.version(store))]

    def lost(self) -> None:
        """Note an unexpected error: the next check connects again."""
        self.open = False
        self.close_listener()
        self._context.database_down.set()

    def close_listener(self) -> None:
        if listener := self._listener:
            self._listener = None
            threading.Thread(target=listener.close, daemon=True).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Call the database in the claim thread."""
        return await asyncio.get_running_loop().run_in_executor(self._claimer, work)
