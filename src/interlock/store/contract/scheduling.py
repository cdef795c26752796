"""The part of a store for schedules."""

from datetime import datetime
from typing import Protocol

from ..schedule_types import Detail, ScheduleChange, ScheduleFacts, ScheduleTimes, StoredSchedule


class SchedulesPart(Protocol):
    """Schedules, as the code declares them or as they were changed at run time, and their last ticks.

    A change by an operator adds an operation, in the same transaction. A change waits for
    transactions that have called `lock`. So after it has returned, none of them is still open, and the time that it
    records is later than theirs.
    """

    def times(self) -> list[ScheduleTimes]:
        """Return when each schedule is due, in one statement, without payloads."""
        ...

    def all(self) -> list[StoredSchedule]:
        """Return every schedule, by name."""
        ...

    def get(self, name: str) -> StoredSchedule | None:
        """Return a schedule; None if there is none with this name."""
        ...

    def lock(self, name: str, *, conn: object) -> StoredSchedule | None:
        """Return a schedule, and lock it until the transaction of `conn` ends; None if there is none."""
        ...

    def mark_tick(self, name: str, tick: datetime, *, conn: object) -> None:
        """Record that the schedule's ticks up to this one are done. The last tick never moves back."""
        ...

    def record_run(self, name: str, *, by: str, reason: str | None, detail: Detail, conn: object) -> None:
        """Record that an operator ran the schedule now: add an operation, in the transaction of `conn`."""
        ...

    def declare(self, facts: ScheduleFacts) -> None:
        """Store a schedule as the code declares it. A new one starts now; an existing one continues at its last tick.

        A schedule that was changed at run time keeps the change until `reset`. An unchanged declaration writes
        nothing.
        """
        ...

    def create(self, facts: ScheduleFacts, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Store a new schedule, which starts now. Return False if one with this name exists."""
        ...

    def change(self, name: str, change: ScheduleChange, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Change a schedule at run time. Return False if it does not exist.

        The change stays until the next change or `reset`, whatever the code declares. A new cron line or time zone
        applies from now on: earlier ticks get no jobs.
        """
        ...

    def reset(self, name: str, *, by: str, reason: str | None) -> bool:
        """Discard the changes at run time. Return False if there were none, or no code declares the schedule.

        If this changes the cron line or time zone, the schedule starts from now.
        """
        ...

    def pause(self, name: str, *, by: str, reason: str | None) -> bool:
        """Pause a schedule. Return False if it is paused already, or there is none."""
        ...

    def resume(self, name: str, *, by: str, reason: str | None) -> bool:
        """End a pause. Ticks during the pause get no jobs. Return False if there is no pause."""
        ...

    def delete(self, name: str, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Delete a schedule. Return False if there is none. Its jobs stay."""
        ...
