"""Limits what runs at once: coroutines by slots, functions by threads, heavy kinds and suspects by processes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from ..declaration import Declaration
from ..records import Lease, Way
from ..suspects import runs_grouped
from .grip import Grip

Sort = Literal["loop", "threads", "processes"]


class Processes(Protocol):
    """Where executions run apart."""

    @property
    def importable(self) -> bool: ...

    @property
    def most(self) -> int: ...

    @property
    def warm(self) -> bool:
        """Whether a process for suspects runs."""
        ...

    @property
    def most_alone(self) -> int:
        """How many suspects that must run alone may run at once."""
        ...


class Busy(Protocol):
    """What runs."""

    @property
    def free(self) -> int: ...

    def running(self, chosen: Callable[[Grip], bool]) -> int: ...


class Rooms:
    """Decides how many jobs of which kinds to claim, and which of them run apart."""

    def __init__(self, kinds: Mapping[str, Declaration], slots: Busy, processes: Processes, threads: int) -> None:
        self._kinds = kinds
        self._slots = slots
        self._processes = processes
        self._threads = threads
        self._turn = 0

    def split(self, ways: Sequence[Way], free: int) -> list[tuple[Sequence[Way], int]]:
        """What to claim: ways, and how many jobs for them. With room for all, it is one entry and so one statement.

        Together the entries may ask for more than is free. Their order rotates, so that no sort starves another.
        """
        if self._lonely():
            return []
        sorts: dict[str, Sort] = {way.kind: self._sort(way.kind) for way in ways}
        room: dict[Sort, int] = {sort: min(free, self._room(sort)) for sort in set(sorts.values())}
        if all(left == free for left in room.values()):
            return [(ways, free)] if free > 0 else []
        parts = [([way for way in ways if sorts[way.kind] == sort], left) for sort, left in sorted(room.items()) if left > 0]
        first, self._turn = self._turn % max(len(parts), 1), self._turn + 1
        return [*parts[first:], *parts[:first]]

    def suspects(self, free: int) -> tuple[int, bool]:
        """How many suspects may be claimed, and whether suspects that must run alone may be among them.

        Never more than could all run alone, since only the claim shows which of them must.
        """
        if self._processes.importable and not self._processes.warm:
            # The first suspect starts a process, and the others follow once that runs. If the worker dies before, it
            # loses one of them only.
            return max(1 - self._slots.running(self._quarantined), 0), True
        most = self._processes.most_alone if self._processes.importable else 1
        # Counted from what is held: a process is busy only once its execution has come that far.
        alone = most - self._slots.running(self._alone)
        return (alone, True) if alone > 0 else (free, False)

    def left(self) -> int:
        """How many executions of other workers can be finished now. Thread-safe."""
        return 0 if self._lonely() else self._slots.free

    def apart(self, lease: Lease) -> bool:
        """Whether an execution runs in a process of its own."""
        return self._kinds[lease.job.kind].process or (suspicious(lease.job.lease_losses, lease.crashes) and self._processes.importable)

    def _quarantined(self, grip: Grip) -> bool:
        return suspicious(grip.job.lease_losses, grip.crashes) and not grip.declaration.process

    def _alone(self, grip: Grip) -> bool:
        return must_run_alone(grip) and not grip.declaration.process

    def _lonely(self) -> bool:
        """Whether a suspect that must run alone runs in this worker, because no child can be started."""
        return not self._processes.importable and self._slots.running(self._alone) > 0

    def _sort(self, kind: str) -> Sort:
        declaration = self._kinds[kind]
        if declaration.process:
            return "processes"
        return "loop" if declaration.signature.is_async else "threads"

    def _room(self, sort: Sort) -> int:
        if sort == "loop":
            return 1 << 30
        most = self._processes.most if sort == "processes" else self._threads
        return most - self._slots.running(lambda grip: self._sort(grip.job.kind) == sort)


def suspicious(lease_losses: int, crashes: int) -> bool:
    """A worker may have died of it: it lost a lease, or was adopted past its commit."""
    return lease_losses > 0 or crashes > 0


def must_run_alone(grip: Grip) -> bool:
    """Whether a suspect must not share its process: two processes died while it ran, or it has one try left."""
    if not suspicious(grip.job.lease_losses, grip.crashes):
        return False
    if grip.status == "COMMITTED":
        return grip.unpaid or grip.crashes > 1 or grip.job.lease_losses > 1 or grip.failures + 1 >= grip.declaration.tries
    return not runs_grouped(grip.job)
