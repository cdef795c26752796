"""The context that settling and a worker share: the store, the kinds, the events and the database retries."""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from ..core.sleeper import Sleeper, SystemSleeper
from ..errors import Unavailable
from ..jobs.enqueue import Transaction
from ..jobs.spec import KindSpec
from ..store import OpenStore
from ..store.retry import retry
from ..store.types import Lease
from ..telemetry.events import Events, WorkerError
from .failpoints import Failpoints, no_failpoints
from .held_execution import HeldExecution

T = TypeVar("T")
_system_random = random.random
FIRST_PAUSE = 0.05
LONGEST = 2.0
"""The longest pause, in seconds before jitter, between two calls of an unreachable database."""


def call_soon(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *args: object) -> None:
    """Run a function in an event loop, from any thread. Does nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *args)


@dataclass(eq=False)
class SettleContext:
    """Everything that settling a job needs. An operator and a completion callback use it without a worker."""

    in_worker: ClassVar[bool] = False
    """Whether this is a worker. A worker enters `around_attempt` and retries while the database is unreachable."""

    owner: str
    """The name of the caller. A worker's name ends with a random suffix, so that no other worker has the same one."""
    find_store: Callable[[], OpenStore]
    kinds: Mapping[str, KindSpec]
    transaction: Transaction | None = None
    events: Events = field(default_factory=Events)
    sleeper: Sleeper = field(default_factory=SystemSleeper)
    failpoints: Failpoints = no_failpoints
    random: Callable[[], float] = _system_random
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when the worker ends, so that its threads stop waiting for the database."""

    @property
    def store(self) -> OpenStore:
        return self.find_store()

    def now(self) -> datetime:
        """Return the time of the store's clock, which decides when leases expire."""
        return self.store.inspect.now()

    def execution_of(self, lease: Lease, asked_at: float | None = None) -> HeldExecution:
        """Return the execution of a lease, with its kind and the lifecycle version that its job is pinned to."""
        lifecycle = self.store.registry.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
        asked_at = self.sleeper.monotonic() if asked_at is None else asked_at
        return HeldExecution(lease, self.kinds[lease.job.kind], lifecycle, asked_at=asked_at)

    def retry_while_unavailable(self, work: Callable[[], T], where: str) -> T:
        """Call `work` once. Outside a worker, the caller handles `Unavailable`."""
        del where
        return work()


@dataclass(eq=False)
class WorkerContext(SettleContext):
    """The context of one worker. It also records whether the worker can reach the database."""

    in_worker: ClassVar[bool] = True

    database_down: threading.Event = field(default_factory=threading.Event)
    """Set when a thread could not reach the database. The worker's loop clears it."""
    loop_task: asyncio.Task[Any] | None = None
    """The task of the worker's loop."""

    @property
    def is_closing(self) -> bool:
        """Whether the event loop of the worker closes, which cancels all of its tasks at once."""
        task = self.loop_task
        return self.stopped.is_set() or (task is not None and (task.done() or task.cancelling() > 0))

    def retry_while_unavailable(self, work: Callable[[], T], where: str) -> T:
        """Call `work` again until the database is reachable.

        If the reply was lost, the same write is sent twice; its fence makes that safe.
        """

        def should_retry(error: Exception) -> bool:
            if not isinstance(error, Unavailable):
                return False
            self.database_down.set()
            if self.stopped.is_set():
                return False
            self.events.emit(WorkerError(self.owner, where, error))
            return True

        def pause(failures: int) -> None:
            self.stopped.wait(min(FIRST_PAUSE * 2 ** min(failures - 1, 10), LONGEST) * (0.5 + self.random()))

        return retry(work, should_retry, pause=pause)
