"""The status of the whole system: job counts, and the problems that need an operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.job import Execution, Job
from ..store.contract import Store
from ..store.flow_types import LimitSeen
from ..store.report_types import Depth, ExternalWork, Failures
from ..store.types import WorkerSeen
from .schedule_info import ScheduleInfo, schedule_infos

STUCK = 100
"""The most stuck executions to name for each kind."""
HELD = 100
"""The most held jobs to name for each kind and queue. The count includes all of them."""
DAY = 86_400.0
NEWEST = 3
"""The most failed jobs to name for each kind. The count includes all of the last day."""


@dataclass(slots=True)
class Status:
    """Job counts, workers, and the problems that need an operator."""

    counts: Mapping[str, Mapping[str, int]]
    """Jobs by lifecycle and state."""
    stuck: list[Execution]
    """Executions whose heartbeat is older than twice their lease: the oldest hundred of each kind."""
    orphaned_kinds: list[str]
    """Kinds that have waiting or running jobs and no live worker that knows them."""
    workers: list[WorkerSeen] = field(default_factory=list[WorkerSeen])
    depths: list[Depth] = field(default_factory=list[Depth])
    held: list[Job] = field(default_factory=list[Job])
    """Jobs that wait for an operator's decision, at most a hundred of each kind and queue. `held_count` counts all."""
    external: list[ExternalWork] = field(default_factory=list[ExternalWork])
    """Handed-over work by kind, and whether the external system answers questions about it."""
    journal: str | None = None
    """The journal mode of a SQLite file."""
    orphaned_queues: list[Depth] = field(default_factory=list[Depth])
    """Kinds with due jobs in a queue from which no live worker claims them, although a live worker knows the kind."""
    failures: list[Failures] = field(default_factory=list[Failures])
    """Jobs that failed in the last day and were not redriven, by kind."""
    paused: list[LimitSeen] = field(default_factory=list[LimitSeen])
    """Paused queues and kinds, whose jobs do not start until someone resumes them. A pause is not a problem."""
    paused_schedules: list[ScheduleInfo] = field(default_factory=list[ScheduleInfo])
    """Paused schedules, which enqueue no jobs until someone resumes them. A pause is not a problem."""

    @property
    def held_count(self) -> int:
        """How many jobs wait for an operator's decision."""
        return max(sum(depth.held for depth in self.depths), len(self.held))

    @property
    def healthy(self) -> bool:
        """Whether there is no problem that needs an operator."""
        unserved = self.orphaned_kinds or self.orphaned_queues
        unhealthy = any(one.error is not None or one.late for one in self.external)
        return not (self.stuck or unserved or self.held_count or self.failures or unhealthy)


def status(store: Store) -> Status:
    """Read the status from the store."""
    depths, workers = store.inspect.depths(), store.workers.all()
    kinds, pairs = _served(workers)
    wanted = {depth.kind for depth in depths if depth.due or depth.later or depth.running}
    held = [(depth.kind, depth.queue) for depth in depths if depth.held]
    known = [depth for depth in depths if depth.due and depth.kind in kinds]
    return Status(
        store.inspect.counts(),
        store.inspect.stuck(STUCK),
        sorted(wanted - kinds),
        workers,
        depths,
        store.inspect.held_jobs(held, HELD) if held else [],
        store.external.work(),
        journal=store.journal,
        orphaned_queues=[depth for depth in known if (depth.kind, depth.queue) not in pairs],
        failures=store.inspect.recent_failures(DAY, NEWEST),
        paused=[one for one in store.limits.all() if one.paused_at is not None],
        paused_schedules=schedule_infos(store, [one for one in store.schedules.all() if one.paused_at is not None]),
    )


def _served(workers: Sequence[WorkerSeen]) -> tuple[set[str], set[tuple[str, str]]]:
    """The kinds that live workers know, and the pairs of kind and queue from which they claim."""
    facts = [worker.facts for worker in workers if worker.alive]
    pairs = {(kind, queue) for one in facts for kind in one.kinds for queue in one.queues}
    return {kind for one in facts for kind in one.kinds}, pairs
