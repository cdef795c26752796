"""The arguments and results of a store's methods about schedules."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.cron import CatchUp


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """What a schedule enqueues, and when."""

    name: str
    kind: str
    cron: str
    tz: str
    catch_up: CatchUp
    payload: str
    """The arguments, as JSON."""
    options: str = "{}"
    """The options of each job, as JSON."""


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of a schedule at run time. None leaves a value as it is; the last three belong together."""

    cron: str | None = None
    tz: str | None = None
    catch_up: CatchUp | None = None
    kind: str | None = None
    payload: str | None = None
    options: str | None = None


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """The part of a stored schedule that says when it is due."""

    name: str
    kind: str
    cron: str
    tz: str
    declared: bool
    paused: bool
    changed_at: datetime
    done_until: datetime
    """Ticks up to this time get no more jobs: it is the last tick, or the time from which the schedule runs."""


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as the database stores it."""

    facts: ScheduleFacts
    declared: bool
    """Whether code declared it. Otherwise it was created at run time."""
    changed_by: str | None
    """Who created it, or changed it at run time; None if it is as the code declares it."""
    changed_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    starts_at: datetime
    """When it was stored, resumed, or got another cron line or time zone: earlier ticks get no jobs."""
    last_tick: datetime | None
    """The last tick that a worker has handled; None if there was none yet."""

    @property
    def done_until(self) -> datetime:
        """Ticks up to this time get no more jobs."""
        return self.starts_at if self.last_tick is None else max(self.starts_at, self.last_tick)


Detail = Mapping[str, Any]
"""What an operation changed, for people."""
