"""The scheduler: enqueues one job for every tick of a schedule, even if many workers run the schedule."""

from collections.abc import Mapping
from datetime import UTC, datetime

from ..core.cron import Cron, missed
from ..engine.context import WorkerContext
from ..errors import KeyReused, Refused, Unavailable
from ..jobs.enqueue import enqueue
from ..jobs.schedule import Schedule
from ..jobs.user_code import call_within
from ..store.types import ScheduleFacts
from ..telemetry import events

ON_TIME = 60.0
"""Seconds after which a tick is late. A tick that is not late fires even if `catch_up` skips late ticks."""


def key_of(name: str, tick: datetime) -> str:
    """Return the idempotency key of a tick. It lets only one worker store a job, also after a crash."""
    return f"schedule:{name}:{tick.astimezone(UTC).isoformat()}"


class Scheduler:
    """Enqueues the jobs of the app's schedules. The database stores the last tick of each schedule."""

    def __init__(self, context: WorkerContext, schedules: Mapping[str, Schedule], owner: str) -> None:
        self._context = context
        self._owner = owner
        self._schedules = schedules
        self._crons: dict[str, Cron] = {}
        self._next: dict[str, datetime] = {}
        """When each schedule is due next, by the store's clock. Until then its row is neither read nor written."""

    def run(self, now: datetime | None) -> int:
        """Enqueue every tick that is due. Returns how many jobs were created.

        `now` is the time of the store's clock, if it is known already.
        """
        if not self._schedules:
            return 0
        done, now = 0, now or self._context.now()
        for schedule in self._schedules.values():
            if now < self._next.get(schedule.name, now):
                continue
            try:
                done += self._fire(schedule, now)
            except Unavailable:
                raise
            except BaseException as error:  # noqa: BLE001 - reported and retried; the other schedules continue
                self._context.events.emit(events.WorkerError(self._owner, f"schedule {schedule.name}", error))
        return done

    def _fire(self, schedule: Schedule, now: datetime) -> int:
        cron = self._cron(schedule)
        last = self._context.store.schedules.save(_facts(schedule))
        done = 0
        if last is not None:
            done = sum(self._enqueue(schedule, tick) for tick in missed(cron, last, now, schedule.catch_up, ON_TIME))
            # Ticks that `catch_up` skips count as handled, even if `catch_up` changes later.
            if passed := cron.between(last, now, 1):
                self._context.store.schedules.mark_tick(schedule.name, passed[-1])
        self._next[schedule.name] = cron.after(now)
        return done

    def _enqueue(self, schedule: Schedule, tick: datetime) -> bool:
        """Enqueue the job of a tick. Returns whether a job was created.

        `admit` may refuse the job, and another worker may have stored it already, with the same or other arguments.
        """
        request = schedule.request.at_tick(key_of(schedule.name, tick), tick)
        try:
            (stored,) = call_within(
                request.spec.around,
                lambda: enqueue(self._context.store, [request], conn=None, transaction=self._context.transaction),
            )
        except (Refused, KeyReused) as error:
            sentence = f"The schedule {schedule.name} created no job for {tick.isoformat()}: {error}"
            self._context.events.emit(
                events.Notice(self._owner, sentence, {"schedule": schedule.name, "kind": request.spec.name})
            )
            return False
        return stored.created

    def _cron(self, schedule: Schedule) -> Cron:
        if schedule.name not in self._crons:
            self._crons[schedule.name] = Cron(schedule.cron, schedule.tz)
        return self._crons[schedule.name]


def _facts(schedule: Schedule) -> ScheduleFacts:
    request = schedule.request
    return ScheduleFacts(
        schedule.name, request.spec.name, schedule.cron, schedule.tz, schedule.catch_up, request.payload
    )
