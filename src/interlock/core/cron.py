"""The ticks of a cron line, in a time zone."""

from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..errors import UsageError

CatchUp = Literal["last", "none", "all"]

MOST = 1000
"""The most missed ticks that fire at once. Older ones are dropped."""

_FIRST = datetime(2025, 1, 1, tzinfo=UTC)
_YEARS = 50  # The rarest date, a given weekday on 29 February, recurs within 40 years.


class Cron:
    """A cron line of five fields in a time zone. `UsageError` if it cannot be read or never ticks.

    When clocks go forward, the skipped local times do not tick. When clocks go back, a repeated local time ticks the
    first time only. Use UTC for a line that must tick evenly, such as every five minutes.
    """

    def __init__(self, line: str, tz: str) -> None:
        if len(line.split()) != 5:
            raise UsageError(
                f"The cron line is {line!r}: give five fields, such as '0 3 * * *' for every night at three."
            )
        try:
            self._zone = ZoneInfo(tz)
        except (KeyError, ValueError, OSError):
            raise UsageError(
                f"The time zone is {tz!r}, which this machine does not know: give one such as Europe/Berlin or UTC."
            ) from None
        self.line = line
        self.tz = tz
        try:
            CronSim(line, _FIRST)
        except (CronSimError, ValueError) as error:
            raise UsageError(
                f"The cron line is {line!r}, which cannot be read ({error}): give minute, hour, day, month and weekday."
            ) from None
        self.after(_FIRST)

    def __repr__(self) -> str:
        return f"Cron({self.line!r}, {self.tz!r})"

    def after(self, moment: datetime) -> datetime:
        """The next tick after this moment, in UTC."""
        wall = self._wall(moment)
        # CronSim gets local times without a zone: with one, it would also tick for the hour that clocks skip.
        for shown in CronSim(self.line, wall):
            tick = self._moment(shown)
            if tick > moment and self._exists(shown):
                return tick
            if shown.year > wall.year + _YEARS:
                break
        raise UsageError(
            f"The cron line is {self.line!r}, which never ticks in {self.tz} within {_YEARS} years: give a date that "
            "exists."
        )

    def between(self, start: datetime, end: datetime, limit: int) -> list[datetime]:
        """The newest `limit` ticks after `start`, up to and including `end`, in UTC, oldest first."""
        wall = self._wall(end)
        # If clocks went back, they have already shown local times later than now.
        seen = wall + (end - self._moment(wall)) + timedelta(seconds=1)
        found: list[datetime] = []
        for shown in CronSim(self.line, seen, reverse=True):
            tick = self._moment(shown)
            if tick <= start or len(found) >= limit:
                break
            if tick <= end and self._exists(shown):
                found.append(tick)
        return found[::-1]

    def _wall(self, moment: datetime) -> datetime:
        """The local time at this moment, in whole seconds."""
        if moment.tzinfo is None:
            raise UsageError(f"The time {moment} has no time zone: give an aware one, such as datetime.now(UTC).")
        return moment.astimezone(self._zone).replace(tzinfo=None, microsecond=0, fold=0)

    def _moment(self, wall: datetime) -> datetime:
        """The first moment that has this local time, in UTC."""
        return wall.replace(tzinfo=self._zone).astimezone(UTC)

    def _exists(self, wall: datetime) -> bool:
        return self._wall(self._moment(wall)) == wall


def missed(cron: Cron, last: datetime, now: datetime, catch_up: CatchUp, late: float) -> list[datetime]:
    """The ticks after `last` that fire now, oldest first.

    With `last`, only the newest one fires, however many there are; with `none`, the newest one if it is less than
    `late` seconds old; with `all`, every one (the newest thousand).
    """
    match catch_up:
        case "all":
            return cron.between(last, now, MOST)
        case "last":
            return cron.between(last, now, 1)
        case "none":
            return cron.between(max(last, now - timedelta(seconds=late)), now, 1)
