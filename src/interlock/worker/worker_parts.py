"""Protocols for the parts that the worker's loop uses, so that tests can replace them."""

from collections.abc import Sequence
from typing import Protocol

from ..store.types import ClaimRule, Lease
from .lanes import Runner


class MaintenanceTasks(Protocol):
    """Recovers, expires, schedules and prunes jobs of all workers."""

    def recover(self) -> int:
        """Recover expired leases, unless that was done a moment ago. Returns the number of jobs."""
        ...

    def run_once(self) -> int:
        """Do everything that is due now. Returns the number of jobs."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether the last sweep may have left executions because no slot was free. They need free slots, so the worker
        then claims nothing in advance.
        """
        ...

    def note_unreachable(self) -> None:
        """Delay the next recovery after an outage, so that other workers can renew their leases first."""
        ...


class ClaimCapacity(Protocol):
    """Decides how many executions of which kinds may run at once."""

    def room_by_runner(self, *, in_advance: bool) -> dict[Runner, int]:
        """Return how many jobs to claim for each runner, also `in_advance` of a free slot where that is allowed."""
        ...

    def split(self, claim_rules: Sequence[ClaimRule], *, in_advance: bool) -> list[Sequence[ClaimRule]]:
        """Return groups of claim rules that have room; one group if possible."""
        ...

    def room(self, claim_rules: Sequence[ClaimRule], *, in_advance: bool) -> int:
        """Return how many jobs to claim by a group of `split`."""
        ...

    def suspects(self, free: int) -> tuple[int, bool]:
        """Return how many suspects may be claimed, and whether suspects that must run alone may be among them."""
        ...

    def needs_child(self, lease: Lease) -> bool:
        """Whether the execution must run in a child process."""
        ...
