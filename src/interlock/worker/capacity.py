"""Limits how many handlers run at once: async ones by slots, sync ones by threads, others by child processes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..core.suspects import runs_grouped
from ..engine.held_execution import HeldExecution
from ..jobs.spec import KindSpec
from ..store.types import ClaimRule, Lease
from .lanes import RUNNERS, Runner, runner_of


class ProcessLimits(Protocol):
    """The limits of the child processes."""

    @property
    def importable(self) -> bool: ...

    @property
    def most(self) -> int: ...

    @property
    def warm(self) -> bool:
        """Whether a child process for suspects is running."""
        ...

    @property
    def most_alone(self) -> int:
        """How many suspects that must run alone may run at once."""
        ...


class SlotCounts(Protocol):
    """Counts of the worker's slots and executions."""

    @property
    def free(self) -> int: ...

    def room(self, runner: Runner, *, in_advance: bool) -> int: ...

    def running(self, chosen: Callable[[HeldExecution], bool]) -> int: ...

    def running_suspects(self, chosen: Callable[[HeldExecution], bool]) -> int: ...


class Capacity:
    """Decides how many jobs of which kinds to claim, and which of them run in a child process."""

    def __init__(self, kinds: Mapping[str, KindSpec], slots: SlotCounts, processes: ProcessLimits) -> None:
        self._kinds = kinds
        self._runners: dict[str, Runner] = {name: runner_of(spec) for name, spec in kinds.items()}
        self._slots = slots
        self._processes = processes
        self._rotation = 0

    def room_by_runner(self, *, in_advance: bool) -> dict[Runner, int]:
        """Return how many jobs to claim for each runner, also `in_advance` of a free slot where that is allowed."""
        if self._runs_exclusively():
            return {}
        used = {*self._runners.values()}
        return {runner: self._room(runner, in_advance=in_advance) for runner in RUNNERS if runner in used}

    def split(self, claim_rules: Sequence[ClaimRule], *, in_advance: bool) -> list[Sequence[ClaimRule]]:
        """Return groups of claim rules that have room. Each group is one statement.

        If every runner has the same room, there is one group. The room of several groups may add up to more than the
        free slots. The order of the groups rotates, so that none of them starves.
        """
        by_runner = self.room_by_runner(in_advance=in_advance)
        if len({*by_runner.values()}) == 1:
            return [claim_rules] if any(by_runner.values()) else []
        groups = [
            [rule for rule in claim_rules if self._runners[rule.kind] == runner]
            for runner, room in by_runner.items()
            if room > 0
        ]
        first, self._rotation = self._rotation % max(len(groups), 1), self._rotation + 1
        return [*groups[first:], *groups[:first]]

    def room(self, claim_rules: Sequence[ClaimRule], *, in_advance: bool) -> int:
        """Return how many jobs to claim by a group of `split`."""
        by_runner = self.room_by_runner(in_advance=in_advance)
        return min(by_runner[self._runners[rule.kind]] for rule in claim_rules) if by_runner else 0

    def suspects(self, free: int) -> tuple[int, bool]:
        """Return how many suspects may be claimed, and whether suspects that must run alone may be among them.

        The number is limited to what could all run alone, because only the claim shows which suspects must.
        """
        if self._processes.importable and not self._processes.warm:
            # Claim one suspect until its child process runs. If the worker dies before that, it loses only one.
            return max(1 - self._slots.running_suspects(self._quarantined), 0), True
        most = self._processes.most_alone if self._processes.importable else 1
        # Count executions, not busy processes, because an execution reaches its process only after a while.
        alone = most - self._slots.running_suspects(self._alone)
        return (alone, True) if alone > 0 else (free, False)

    def free_slots(self) -> int:
        """Return how many executions of other workers can be finished now. Thread-safe."""
        return 0 if self._runs_exclusively() else self._slots.free

    def needs_child(self, lease: Lease) -> bool:
        """Whether an execution runs in a child process."""
        return self._kinds[lease.job.kind].process or (
            is_suspect(lease.job.lease_losses, lease.crashes) and self._processes.importable
        )

    def _quarantined(self, execution: HeldExecution) -> bool:
        return is_suspect(execution.job.lease_losses, execution.crashes) and not execution.spec.process

    def _alone(self, execution: HeldExecution) -> bool:
        return must_run_alone(execution) and not execution.spec.process

    def _runs_exclusively(self) -> bool:
        """Whether a suspect runs alone in this worker, because no child process can be started."""
        return not self._processes.importable and self._slots.running_suspects(self._alone) > 0

    def _room(self, runner: Runner, *, in_advance: bool) -> int:
        room = self._slots.room(runner, in_advance=in_advance)
        if runner != "processes":
            return room
        running = self._slots.running(lambda execution: not execution.settling and execution.spec.process)
        return max(min(room, self._processes.most - running), 0)


def is_suspect(lease_losses: int, crashes: int) -> bool:
    """Whether the job may have crashed a worker: it lost a lease, or was adopted after its commit."""
    return lease_losses > 0 or crashes > 0


def must_run_alone(execution: HeldExecution) -> bool:
    """Whether a suspect must not share its process: it was in two crashes, or has one try left."""
    if not is_suspect(execution.job.lease_losses, execution.crashes):
        return False
    if execution.status == "COMMITTED":
        return (
            execution.shared_crash
            or execution.crashes > 1
            or execution.job.lease_losses > 1
            or execution.failures + 1 >= execution.spec.tries
        )
    return not runs_grouped(execution.job)
