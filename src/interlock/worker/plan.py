"""The plan of a worker: all its settings."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from ..core.clock import seconds
from ..core.job import Phase
from ..core.payload import check_name
from ..core.sleeper import Sleeper, SystemSleeper
from ..engine.failpoints import Failpoints, no_failpoints
from ..errors import UsageError
from ..jobs.enqueue import Transaction
from ..jobs.schedule import Schedule
from ..jobs.spec import KindSpec
from ..maintenance.audit_retention import AuditRetention
from ..store import OpenStore
from ..telemetry.events import Events
from .recycle import RecycleLimits

DRAIN = 25.0
"""Seconds that running jobs have to end after the worker was asked to stop, unless the plan says otherwise."""


@dataclass(frozen=True)
class Plan:
    """The settings of one worker."""

    find_store: Callable[[], OpenStore]
    kinds: Mapping[str, KindSpec]
    queues: Sequence[str] = ()
    """The queues to serve. If empty, the worker serves the queues of its kinds and `default`."""
    slots: int = 100
    threads: int = min(32, (os.cpu_count() or 1) + 4)
    child_processes: int | None = None
    """How many jobs of kinds with `process=True` run at once, each in a child process. None: one for each core."""
    drain: float = DRAIN
    """Seconds that running jobs have to end after the worker was asked to stop."""
    limits: RecycleLimits = field(default_factory=RecycleLimits)
    on_limit: Callable[[str], None] | None = None
    """Called in the event loop when the worker has reached a limit. It then works until its `retire` is called.

    None means that it retires at once.
    """
    name: str | None = None
    target: str | None = None
    """The name of the app, `module:app`, which child processes import."""
    database: str | None = None
    """The database URL that the app uses in child processes."""
    transaction: Transaction | None = None
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    retention: Mapping[Phase, float] = field(default_factory=dict[Phase, float])
    audit_retention: AuditRetention | None = None
    events: Events = field(default_factory=Events)
    listen: bool = True
    until_idle: bool = False
    on_hang: Callable[[float], None] | None = None
    hang_timeout: float | None = None
    """Seconds without a response of the event loop after which the worker counts as hung.

    None means ten times the longest lease, and at least a minute.
    """
    sleeper: Sleeper = field(default_factory=SystemSleeper)
    failpoints: Failpoints = no_failpoints

    def checked(self) -> "Plan":
        if not self.kinds:
            raise UsageError(
                "This app has no kinds, so a worker would have nothing to do. Import the modules that declare them "
                "(imports=[…])."
            )
        numbers = {"slots": self.slots, "threads": self.threads, "child_processes": self.child_processes}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise UsageError(f"{name} is {number}: it must be at least 1.")
        apart = sorted(kind.name for kind in self.kinds.values() if kind.process)
        if apart and self.target is None:
            raise UsageError(
                f"{', '.join(apart)} runs in a child process, which must import the app by name. Put the app into a "
                "module, and start the worker with interlock worker -A module:app."
            )
        for name in sorted(kind.name for kind in self.kinds.values() if kind.signature.asks):
            self.kinds[name].tokens.check(name)
        named = self.queues or sorted({"default", *(kind.queue for kind in self.kinds.values())})
        queues = tuple(check_name("queue", queue) for queue in named)
        return replace(self, queues=queues, drain=seconds(self.drain, "drain"), limits=self.limits.checked())
