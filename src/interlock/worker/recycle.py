"""Recycling: a process that has run many jobs, or uses much memory, ends, and a new one takes its place."""

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..engine.held_execution import HeldExecution
from ..errors import UsageError

_STATM = Path("/proc/self/statm")


def resident_memory() -> int:
    """Return how many bytes of memory this process uses now. Without /proc, return the most that it has used."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS counts bytes, all others kibibytes.
        return peak if sys.platform == "darwin" else peak * 1024


def format_size(size: int) -> str:
    """Format a number of bytes as people give it to `--max-memory`, in units of 1,024."""
    number, unit = (size / (1 << 20), "M") if size >= 1 << 20 else (size / (1 << 10), "K")
    return f"{number:,.0f}{unit}" if number >= 10 else f"{number:.3g}{unit}"


@dataclass(frozen=True, slots=True)
class RecycleLimits:
    """The limits after which a process is recycled. They apply to a worker, and to each of its child processes."""

    max_jobs: int | None = None
    """The most attempts that a process runs."""
    max_memory: int | None = None
    """The most bytes of memory that a process uses when it takes another job."""

    def checked(self) -> "RecycleLimits":
        for name, limit in (("max_jobs", self.max_jobs), ("max_memory", self.max_memory)):
            if limit is not None and limit < 1:
                raise UsageError(f"{name} is {limit}: it must be at least 1.")
        return self

    def reached(self, attempts: int, memory: int) -> str | None:
        """Return which limit a process has reached; None if it may go on."""
        if self.max_jobs is not None and attempts >= self.max_jobs:
            return f"it has started {attempts:,} {'job' if attempts == 1 else 'jobs'} (--max-jobs {self.max_jobs})"
        if self.max_memory is not None and memory > self.max_memory:
            return f"it uses {format_size(memory)} of memory (--max-memory {format_size(self.max_memory)})"
        return None


class Recycling:
    """Reports once that this worker has reached a limit. Use it in the event loop only."""

    def __init__(
        self,
        limits: RecycleLimits,
        attempts: Callable[[], int],
        on_limit: Callable[[str], None],
        *,
        exact: bool,
    ) -> None:
        """`attempts` returns how many attempts this worker has begun.

        After the report, an `exact` worker claims nothing; another one works until it is replaced.
        """
        self._limits = limits
        self._attempts = attempts
        self._on_limit = on_limit
        self._exact = exact
        self._reported = False

    def most_to_claim(self, most: int) -> int:
        """Return how many jobs may be claimed, at most this number."""
        if self._limits.max_jobs is None or (self._reported and not self._exact):
            return most
        return max(min(most, self._limits.max_jobs - self._attempts()), 0)

    def check(self) -> None:
        """Report a limit that has been reached."""
        if self._reported or self._limits == RecycleLimits():
            return
        memory = 0 if self._limits.max_memory is None else resident_memory()
        if (why := self._limits.reached(self._attempts(), memory)) is not None:
            self._reported = True
            self._on_limit(why)


def is_awaited(execution: HeldExecution) -> bool:
    """Whether a retiring worker waits for this execution, however long its handler runs.

    Outcomes that are being stored and finish functions end within the drain time, or another worker continues them.
    """
    return not execution.settling and execution.status != "COMMITTED" and execution.stop not in ("lost", "runtime")
