"""The part of a store for schedules."""

from datetime import datetime
from typing import Protocol

from ..schedule_types import Detail, ScheduleChange, ScheduleFacts, ScheduleTimes, StoredSchedule


class SchedulesPart(Protocol):
    """Schedules, as the code declares them or as they were changed at run time, and their last ticks.

    A change by an operator adds an operation, in the same transaction. Once it has returned, no transaction that began
    `lock` before it can still commit: the change waits for such transactions, and the time that it records is later
    than theirs.
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
        """Add the operation of a job that was enqueued on request, in the transaction of `conn`."""
        ...

    def declare(self, facts: ScheduleFacts) -> None:
        """Store a schedule as the code declares it. A new one starts now, and any other goes on from its last tick.

        One that was changed at run time stays as it was changed, until `reset`. An unchanged declaration writes
        nothing.
        """
        ...

    def create(self, facts: ScheduleFacts, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Store a new schedule, which starts now. Return False if there is one with this name."""
        ...

    def change(self, name: str, change: ScheduleChange, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Change a schedule at run time. Return False if there is none.

        It stays so until the next change or `reset`, whatever the code declares. Another cron line or time zone starts
        from now.
        """
        ...

    def reset(self, name: str, *, by: str, reason: str | None) -> bool:
        """Return to what the code declares. Return False if no code declared it, or it was not changed at run time.

        Another cron line or time zone starts from now.
        """
        ...

    def pause(self, name: str, *, by: str, reason: str | None) -> bool:
        """Pause a schedule. Return False if it is paused already, or there is none."""
        ...

    def resume(self, name: str, *, by: str, reason: str | None) -> bool:
        """End a pause; the schedule starts from now. Return False if there is no pause."""
        ...

    def delete(self, name: str, *, by: str, reason: str | None, detail: Detail) -> bool:
        """Delete a schedule. Return False if there is none. Its jobs stay."""
        ...
