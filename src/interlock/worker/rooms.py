"""How much of what may run at once: coroutines share the slots, functions the threads, heavy ones the processes, and suspects go one by one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from ..declaration import Declaration
from ..records import Lease, Way
from .grip import Grip

Sort = Literal["loop", "threads", "processes"]


class Processes(Protocol):
    """Where executions run apart."""

    @property
    def importable(self) -> bool: ...

    @property
    def most(self) -> int: ...


class Busy(Protocol):
    """What runs."""

    @property
    def busy(self) -> int: ...

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
        """What to claim: ways, and how many jobs by them; one entry, and so one statement, wherever there is room for all.

        Together the entries may ask for more than is free: who comes first takes turns, so that no sort starves another.
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

    def suspects(self) -> int:
        """How many jobs that have lost a lease may come along: one, where it can run alone."""
        # Counted from what is held: a process is busy only once its execution has come that far.
        alone = not self._slots.running(_suspect) if self._processes.importable else self._slots.busy == 0
        return int(alone)

    def left(self) -> int:
        """How many executions of others can be finished now. From any thread."""
        return 0 if self._lonely() else self._slots.free

    def apart(self, lease: Lease) -> bool:
        """Whether an execution runs in a process of its own."""
        return self._kinds[lease.job.kind].process or (suspicious(lease.job.lease_losses, lease.crashes) and self._processes.importable)

    def _lonely(self) -> bool:
        """A suspect that cannot run elsewhere has the worker to itself."""
        return not self._processes.importable and self._slots.running(_suspect) > 0

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


def _suspect(grip: Grip) -> bool:
    return suspicious(grip.job.lease_losses, grip.crashes)


def suspicious(lease_losses: int, crashes: int) -> bool:
    """A worker may have died of it: it lost a lease, or was adopted past its commit."""
    return lease_losses > 0 or crashes > 0
