"""A schedule: a cron line and a job request. The maintenance loop of each worker runs the schedules."""

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import get_args

from ..core.cron import CatchUp, Cron
from ..core.payload import check_name
from ..errors import UsageError
from .options import Options
from .request import JobRequest

LONGEST_NAME = 220
STORED = ("queue", "priority", "delay", "ttl", "tags", "unique_key", "unique_for", "concurrency_key")
"""The options that a schedule can have. The others belong to one job, or to the process that enqueues it."""
_KEY = re.compile(r"schedule:(.+):\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", re.DOTALL)
_WHY = {
    "after": "but dependencies end only once, so later ticks would not wait",
    "idempotency_key": "but a schedule makes its own key from its name and tick",
    "run_at": "but every tick has its own time, and delay= makes each job wait after it",
    "on_conflict": "but the job of a tick has an idempotency key and keeps its payload",
    "conn": "but a worker enqueues the jobs with its own connection",
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A request that is enqueued at every tick of a cron line, in a time zone.

    `catch_up` says which of the ticks that no worker saw are enqueued later.
    """

    name: str
    cron: str
    request: JobRequest[object]
    tz: str = "UTC"
    catch_up: CatchUp = "last"

    def __post_init__(self) -> None:
        check_name("The name of a schedule", self.name)
        if len(self.name) > LONGEST_NAME:
            raise UsageError(
                f"The name of a schedule has {len(self.name)} characters: give at most {LONGEST_NAME}, because the "
                "idempotency key of each job contains it."
            )
        check_times(self.name, self.cron, self.tz, self.catch_up)
        check_storable(self.name, self.request.options)


def key_of(name: str, tick: datetime) -> str:
    """Return the idempotency key of a tick. It makes sure that a tick has one job, even after a crash."""
    return f"schedule:{name}:{tick.astimezone(UTC).isoformat()}"


def name_in(key: str | None) -> str | None:
    """Return the name of the schedule in the idempotency key of a tick; None for other keys."""
    found = _KEY.fullmatch(key or "")
    return found and found[1]


def check_times(name: str, cron: str, tz: str, catch_up: str) -> None:
    """Raise `UsageError` if a schedule could never run with these values."""
    try:
        Cron(cron, tz)
    except UsageError as error:
        raise UsageError(f"The schedule {name} is not valid. {error}") from None
    if catch_up not in get_args(CatchUp):
        raise UsageError(f"catch_up of {name} is {catch_up!r}: give one of {', '.join(get_args(CatchUp))}.")


def check_storable(name: str, options: Options) -> None:
    """Raise `UsageError` if a request has an option that a schedule cannot have."""
    for each in fields(options):
        value = getattr(options, each.name)
        usual = "keep" if each.name == "on_conflict" else ()
        if each.name not in STORED and value not in (each.default, usual):
            why = _WHY.get(each.name, "which the database cannot store for a schedule")
            raise UsageError(f"The request of the schedule {name} has {each.name}, {why}: leave it out.")
