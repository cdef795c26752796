"""Schedules: every tick becomes one job, however many keepers see it."""

from collections.abc import Mapping
from datetime import UTC, datetime

from .. import events
from ..enqueue import enqueue
from ..errors import KeyReused, Refused, Unavailable
from ..records import ScheduleFacts
from ..schedule import Schedule
from ..tick import Cron, missed
from ..user_code import surround
from ..worker.desk import Desk

ON_TIME = 60.0
"""Seconds for which a tick is not late: it fires whatever `catch_up` says."""


def key_of(name: str, tick: datetime) -> str:
    """What makes the job of a tick one: keepers that see it together, or again after a crash, enqueue the same key."""
    return f"schedule:{name}:{tick.astimezone(UTC).isoformat()}"


class Scheduler:
    """Enqueues what is due by the app's schedules. The database remembers how far each has come."""

    def __init__(self, desk: Desk, schedules: Mapping[str, Schedule], owner: str) -> None:
        self._desk = desk
        self._owner = owner
        self._schedules = schedules
        self._crons: dict[str, Cron] = {}
        self._next: dict[str, datetime] = {}
        """When to look again, by the store's clock: before it no schedule is asked for, since asking may write."""

    def run(self) -> int:
        """Every tick that is due now. Answers how many jobs came of it."""
        if not self._schedules:
            return 0
        done, now = 0, self._desk.now()
        for schedule in self._schedules.values():
            if now < self._next.get(schedule.name, now):
                continue
            try:
                done += self._fire(schedule, now)
            except Unavailable:
                raise
            except BaseException as error:  # noqa: BLE001 - a schedule that fails is retried, and stops no other
                self._desk.events.emit(events.Trouble(self._owner, f"schedule {schedule.name}", error))
        return done

    def _fire(self, schedule: Schedule, now: datetime) -> int:
        cron = self._cron(schedule)
        last = self._desk.store.schedule(_facts(schedule))
        done = 0
        if last is not None:
            done = sum(self._enqueue(schedule, tick) for tick in missed(cron, last, now, schedule.catch_up, ON_TIME))
            # Also those that `catch_up` leaves out are dealt with, whatever it says tomorrow.
            if passed := cron.between(last, now, 1):
                self._desk.store.ticked(schedule.name, passed[-1])
        self._next[schedule.name] = cron.after(now)
        return done

    def _enqueue(self, schedule: Schedule, tick: datetime) -> bool:
        """The job of this tick. One that its kind does not admit is no job; one whose arguments another program gave otherwise is that program's."""
        call = schedule.call.scheduled(key_of(schedule.name, tick), tick)
        try:
            (stored,) = surround(call.declaration.around, lambda: enqueue(self._desk.store, [call], conn=None, transaction=self._desk.transaction))
        except (Refused, KeyReused) as error:
            sentence = f"The tick {tick.isoformat()} of the schedule {schedule.name} makes no job: {error}"
            self._desk.events.emit(events.Notice(self._owner, sentence, {"schedule": schedule.name, "kind": call.declaration.name}))
            return False
        return stored.created

    def _cron(self, schedule: Schedule) -> Cron:
        if schedule.name not in self._crons:
            self._crons[schedule.name] = Cron(schedule.cron, schedule.tz)
        return self._crons[schedule.name]


def _facts(schedule: Schedule) -> ScheduleFacts:
    call = schedule.call
    return ScheduleFacts(schedule.name, call.declaration.name, schedule.cron, schedule.tz, schedule.catch_up, call.payload)
