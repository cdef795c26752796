"""The status of the whole system: how many jobs are in each state, and what needs a look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .job import Execution, Job
from .records import Depth, Failures, Outside, WorkerSeen
from .store import Store

STUCK = 100
"""The most stuck executions to name for each kind."""
HELD = 100
"""The most held jobs to name for each kind and queue. The count includes all of them."""
DAY = 86_400.0
NEWEST = 3
"""The most failed jobs to name for each kind. The count includes all of the last day."""


@dataclass(slots=True)
class Status:
    """What needs a look, and what does not."""

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
    outside: list[Outside] = field(default_factory=list[Outside])
    """How handed-over work stands, by kind, and whether the outside can be asked about it."""
    journal: str | None = None
    """How a SQLite file is kept whole."""
    orphaned_queues: list[Depth] = field(default_factory=list[Depth])
    """Kinds with due jobs in a queue that no live worker serves for them, though a live worker knows the kind."""
    failures: list[Failures] = field(default_factory=list[Failures])
    """Jobs that failed in the last day and that no operator has redriven, by kind."""

    @property
    def held_count(self) -> int:
        """How many jobs wait for an operator's decision."""
        return max(sum(depth.held for depth in self.depths), len(self.held))

    @property
    def calm(self) -> bool:
        """Whether nothing needs a look."""
        unserved = self.orphaned_kinds or self.orphaned_queues
        outside = any(one.error is not None or one.late for one in self.outside)
        return not (self.stuck or unserved or self.held_count or self.failures or outside)


def status(store: Store) -> Status:
    """Look at everything once."""
    depths, workers = store.depths(), store.workers()
    kinds, pairs = _served(workers)
    wanted = {depth.kind for depth in depths if depth.due or depth.later or depth.running}
    held = [(depth.kind, depth.queue) for depth in depths if depth.held]
    known = [depth for depth in depths if depth.due and depth.kind in kinds]
    return Status(
        store.counts(), store.stuck(STUCK), sorted(wanted - kinds), workers, depths,
        store.held(held, HELD) if held else [], store.outside(), journal=getattr(store, "journal", None),
        orphaned_queues=[depth for depth in known if (depth.kind, depth.queue) not in pairs],
        failures=store.failures(DAY, NEWEST))


def _served(workers: Sequence[WorkerSeen]) -> tuple[set[str], set[tuple[str, str]]]:
    """The kinds that live workers know, and the pairs of kind and queue from which they claim."""
    facts = [worker.facts for worker in workers if worker.alive]
    pairs = {(kind, queue) for one in facts for kind in one.kinds for queue in one.queues}
    return {kind for one in facts for kind in one.kinds}, pairs
