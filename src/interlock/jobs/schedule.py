"""Schedules, as an app declares them. The keeper reads them."""

from dataclasses import dataclass
from typing import get_args

from .call import Call
from .errors import UsageError
from .payload import check_name
from .tick import CatchUp, Cron


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
        try:
            Cron(self.cron, self.tz)
        except UsageError as error:
            raise UsageError(f"The schedule {self.name} cannot tick. {error}") from None
        if self.catch_up not in get_args(CatchUp):
            raise UsageError(f"catch_up of {self.name} is {self.catch_up!r}: give one of {', '.join(get_args(CatchUp))}.")
        if self.call.options.idempotency_key is not None:
            raise UsageError(f"The call of {self.name} has an idempotency_key, but a schedule makes its own from its name and tick: leave it out.")
