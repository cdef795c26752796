"""The ticks of a cron line, in a time zone."""

from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .errors import UsageError

CatchUp = Literal["last", "none", "all"]

MOST = 1000
"""So many ticks are made up for at once, the newest."""

_FIRST = datetime(2025, 1, 1, tzinfo=UTC)
_YEARS = 50  # The rarest day of all, a Monday that is the 29th of February, comes every 40 years at most.


class Cron:
    """A cron line of five fields, read on the clocks of a zone. `UsageError` for one that cannot be read, or never comes.

    A local time that does not exist, since clocks go forward, is skipped; one that comes twice, since they go back, ticks the first time. So a line that
    must tick evenly through the year, as every five minutes, belongs in UTC.
    """

    def __init__(self, line: str, tz: str) -> None:
        if len(line.split()) != 5:
            raise UsageError(f"The cron line is {line!r}: give five fields, as in '0 3 * * *' for every night at three.")
        try:
            self._zone = ZoneInfo(tz)
        except (KeyError, ValueError, OSError):
            raise UsageError(f"The time zone is {tz!r}, which this machine does not know: give one such as Europe/Berlin or UTC.") from None
        self.line = line
        self.tz = tz
        try:
            CronSim(line, _FIRST)
        except (CronSimError, ValueError) as error:
            raise UsageError(f"The cron line is {line!r}, which cannot be read ({error}): give minute, hour, day, month and weekday.") from None
        self.after(_FIRST)

    def __repr__(self) -> str:
        return f"Cron({self.line!r}, {self.tz!r})"

    def after(self, moment: datetime) -> datetime:
        """The next tick after this moment, in UTC."""
        wall = self._wall(moment)
        # The library is given the bare time of the clock on the wall, since in a zone it would make up for the hour that is left out.
        for shown in CronSim(self.line, wall):
            tick = self._moment(shown)
            if tick > moment and self._exists(shown):
                return tick
            if shown.year > wall.year + _YEARS:
                break
        raise UsageError(f"The cron line is {self.line!r}, which no clock in {self.tz} shows within {_YEARS} years: give a time that comes.")

    def between(self, start: datetime, end: datetime, limit: int) -> list[datetime]:
        """The ticks after `start` up to and including `end`, in UTC, the oldest first; of more than `limit` the newest."""
        wall = self._wall(end)
        # Where clocks went back, they have shown later times than now.
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
        """What the clock on the wall shows, in whole seconds."""
        if moment.tzinfo is None:
            raise UsageError(f"The moment {moment} has no time zone: give one that has, as datetime.now(UTC).")
        return moment.astimezone(self._zone).replace(tzinfo=None, microsecond=0, fold=0)

    def _moment(self, wall: datetime) -> datetime:
        """When the clock on the wall first shows this."""
        return wall.replace(tzinfo=self._zone).astimezone(UTC)

    def _exists(self, wall: datetime) -> bool:
        return self._wall(self._moment(wall)) == wall


def missed(cron: Cron, last: datetime, now: datetime, catch_up: CatchUp, late: float) -> list[datetime]:
    """Which ticks after `last` are to fire now, the oldest first.

    One that came less than `late` seconds ago is on time, and fires; of several the latest. Of the older ones fires what `catch_up` says: the last one,
    none, or all, the newest thousand.
    """
    if catch_up == "all":
        return cron.between(last, now, MOST)
    edge = max(last, now - timedelta(seconds=late))
    older = cron.between(last, edge, 1) if catch_up == "last" else []
    return older + cron.between(edge, now, 1)
