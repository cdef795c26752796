"""The schedules that an app declares. The maintenance loop of each worker runs them."""

from dataclasses import dataclass
from typing import get_args

from ..core.cron import CatchUp, Cron
from ..core.payload import check_name
from ..errors import UsageError
from .request import JobRequest


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
        try:
            Cron(self.cron, self.tz)
        except UsageError as error:
            raise UsageError(f"The schedule {self.name} is not valid. {error}") from None
        if self.catch_up not in get_args(CatchUp):
            raise UsageError(
                f"catch_up of {self.name} is {self.catch_up!r}: give one of {', '.join(get_args(CatchUp))}."
            )
        if self.request.options.after:
            raise UsageError(
                f"The request of the schedule {self.name} waits for other jobs, which end only once: leave after out."
            )
        if self.request.options.idempotency_key is not None:
            raise UsageError(
                f"The request of the schedule {self.name} has an idempotency_key, but a schedule makes its own key "
                "from its name and tick: leave it out."
            )
