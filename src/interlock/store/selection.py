"""The jobs that a list shows or an operation on many jobs changes: records, and parameters of the queries."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal

from ..core.job import Job, Phase
from ..core.job_filter import JobFilter

LIVE_PHASES: tuple[Phase, ...] = ("pending", "running")
ENDED_PHASES: tuple[Phase, ...] = ("succeeded", "failed")
EVERY_JOB = JobFilter()
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs that an operation may change: they match the filter and are in one of these phases."""

    matching: JobFilter
    phases: tuple[Phase, ...]
    """Some of the live phases, or some of the ended ones."""
    failures: bool = False
    """Of failed jobs, whether to leave out those that were cancelled or rejected, or that expired."""
    redriven: bool = False
    """Whether to find out which of the jobs were redriven before."""
    ended_until: datetime | None = None
    """Leaves out jobs that have ended after this time."""

    @property
    def is_live(self) -> bool:
        return self.phases[0] in LIVE_PHASES


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many of the selected jobs have this kind and state."""

    kind: str
    state: str
    jobs: int
    redriven: int = 0
    """How many of them were redriven before."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of selected jobs by kind and state, the least and the greatest of their ids, and their last end."""

    counts: tuple[JobCount, ...] = ()
    first: str | None = None
    last: str | None = None
    ended_until: datetime | None = None
    """When the last of these jobs ended; None if they have not ended."""

    @property
    def jobs(self) -> int:
        return sum(count.jobs for count in self.counts)


@dataclass(frozen=True, slots=True)
class SelectedJob:
    """A selected job, without payload and result, and whether it was redriven before."""

    job: Job
    redriven: bool


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of redriving one job."""

    redrive_of: str
    result: Literal["stored", "redriven_before", "key_taken", "not_failed"]
    """`not_failed`: the job did not end without success, or it was deleted."""
    id: str | None = None
    """The new job; with `key_taken`, the active job that has the same unique key."""
    awaited: bool = False
    """Whether a job may have waited for the old job, or for its batch."""


# ---------------------------------------------------------------- parameters and rows
def filter_columns(matching: JobFilter, time: Callable[[datetime], str]) -> dict[str, Any]:
    """The parameters of the fragment `matching`."""
    return {
        "kind": matching.kind,
        "state": matching.state,
        "phase": matching.phase,
        "queue": matching.queue,
        "tags": json.dumps(matching.tags, ensure_ascii=False, sort_keys=True) if matching.tags else None,
        "since": matching.since and time(matching.since),
        "until": matching.until and time(matching.until),
        # The databases convert only these letters, too.
        "error_like": matching.error_like and matching.error_like.translate(_LOWER),
    }


def counted(rows: Any, time: Callable[[Any], datetime | None]) -> Counted:
    """The rows of the queries `count_live` and `count_ended`."""
    counts = tuple(JobCount(kind, state, jobs, redriven or 0) for kind, state, jobs, redriven, _, _, _ in rows)
    first, last = min((row[4] for row in rows), default=None), max((row[5] for row in rows), default=None)
    return Counted(counts, first, last, time(max((row[6] for row in rows if row[6] is not None), default=None)))


def selection_columns(
    selection: Selection, time: Callable[[datetime], str], array: Callable[[tuple[Phase, ...]], str]
) -> dict[str, Any]:
    """The parameters of the fragment `selected`."""
    return filter_columns(selection.matching, time) | {
        "phases": array(selection.phases),
        "failures": selection.failures,
        "redriven": selection.redriven,
        "ended_until": selection.ended_until and time(selection.ended_until),
    }
