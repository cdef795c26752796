"""The state of the whole: how many jobs are where, what is stuck, and which kinds nobody serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .job import Execution, Job
from .records import Depth, Outside, WorkerSeen
from .store import Store

STUCK = 100


@dataclass(slots=True)
class Status:
    """What needs a look, and what does not."""

    counts: Mapping[str, Mapping[str, int]]
    """Jobs by lifecycle and state."""
    stuck: list[Execution]
    """Executions whose heartbeat is older than twice their lease."""
    orphaned_kinds: list[str]
    """Kinds that have waiting or running jobs and no live worker that knows them."""
    workers: list[WorkerSeen] = field(default_factory=list[WorkerSeen])
    depths: list[Depth] = field(default_factory=list[Depth])
    held: list[Job] = field(default_factory=list[Job])
    """Jobs that wait for an operator's decision."""
    outside: list[Outside] = field(default_factory=list[Outside])
    """How handed-over work stands, by kind, and whether the outside can be asked about it."""
    journal: str | None = None
    """How a SQLite file is kept whole."""

    @property
    def calm(self) -> bool:
        """Whether nothing needs a look."""
        return not (self.stuck or self.orphaned_kinds or self.held or any(one.error is not None or one.late for one in self.outside))


def status(store: Store) -> Status:
    """Look at everything once."""
    depths, workers = store.depths(), store.workers()
    served = {kind for worker in workers if worker.alive for kind in worker.facts.kinds}
    wanted = {depth.kind for depth in depths if depth.due or depth.later or depth.running}
    waiting = store.jobs(phase="pending", limit=1000) if any(depth.held for depth in depths) else []
    return Status(
        store.counts(), store.stuck(STUCK), sorted(wanted - served), workers, depths, [job for job in waiting if job.held_at is not None],
        store.outside(), journal=getattr(store, "journal", None))
