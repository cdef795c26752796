"""Protocols for the parts that the worker's loop uses, so that tests can replace them."""

from collections.abc import Sequence
from typing import Protocol

from ..store.types import ClaimRule, Lease


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

    def split(self, claim_rules: Sequence[ClaimRule], room: int) -> list[tuple[Sequence[ClaimRule], int]]:
        """Return groups of claim rules, each with the most jobs to claim by them; one group if possible."""
        ...

    def suspects(self, free: int) -> tuple[int, bool]:
        """Return how many suspects may be claimed, and whether suspects that must run alone may be among them."""
        ...

    def needs_child(self, lease: Lease) -> bool:
        """Whether the execution must run in a child process."""
        ...
