"""Schedules, as an app declares them. The keeper reads them."""

from dataclasses import dataclass
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from .call import Call
from .errors import UsageError
from .payload import check_name

CatchUp = Literal["last", "none", "all"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A call made at every tick of a cron line, in a time zone. `catch_up` says which of the ticks missed while nothing ran are made up for."""

    name: str
    cron: str
    call: Call
    tz: str = "UTC"
    catch_up: CatchUp = "last"

    def __post_init__(self) -> None:
        check_name("The name of a schedule", self.name)
        if len(self.cron.split()) != 5:
            raise UsageError(f"The cron line of {self.name} is {self.cron!r}: give five fields, as in '0 3 * * *' for every night at three.")
        try:
            ZoneInfo(self.tz)
        except (KeyError, ValueError, OSError):
            raise UsageError(f"The time zone of {self.name} is {self.tz!r}, which this machine does not know: give one such as Europe/Berlin or UTC.") from None
        if self.catch_up not in get_args(CatchUp):
            raise UsageError(f"catch_up of {self.name} is {self.catch_up!r}: give one of {', '.join(get_args(CatchUp))}.")
        if self.call.options.idempotency_key is not None:
            raise UsageError(f"The call of {self.name} has an idempotency_key, but a schedule makes its own from its name and tick: leave it out.")
