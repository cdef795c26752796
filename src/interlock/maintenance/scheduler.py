"""The scheduler: enqueues one job for every tick of a schedule, even if many workers run the schedule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..core.cron import Cron, missed
from ..engine.context import WorkerContext
from ..errors import KeyReused, PayloadError, Refused, Unavailable, UsageError
from ..jobs.enqueue import enqueue
from ..jobs.request import JobRequest
from ..jobs.schedule import Schedule, key_of
from ..jobs.spec import KindSpec
from ..jobs.stored_request import facts_of, request_of, schedule_transaction
from ..jobs.user_code import call_within
from ..store.schedule_types import ScheduleTimes, StoredSchedule
from ..telemetry import events

ON_TIME = 60.0
"""Seconds after which a tick is late. A tick that is not late fires even if `catch_up` skips late ticks."""
NEVER = datetime.max.replace(tzinfo=UTC)
READ_EVERY = 5.0
"""Seconds between two reads of the stored schedules: a change at run time takes up to this long to reach a worker."""


class Scheduler:
    """Enqueues the jobs of schedules: those that the app declares, and those created at run time for its kinds.

    The database stores the schedules and their last ticks. A worker keeps only a copy of their due times.
    """

    def __init__(self, context: WorkerContext, declared: Mapping[str, Schedule], owner: str) -> None:
        self._context = context
        self._owner = owner
        self._declared = declared
        self._stored: dict[str, Schedule] = {}
        """The declarations that this worker has stored."""
        self._times: dict[str, ScheduleTimes] = {}
        self._read_at = float("-inf")
        self._crons: dict[tuple[str, str], Cron] = {}
        self._next: dict[str, tuple[ScheduleTimes, datetime]] = {}
        self._refused: dict[str, tuple[datetime, datetime]] = {}
        """Schedules whose request this worker's code rejects: when they changed, and until when to skip them."""

    def run(self, now: datetime | None) -> int:
        """Enqueue every tick that is due. Returns how many jobs were created.

        `now` is the time of the store's clock, if it is known already.
        """
        for schedule in self._declared.values():
            if self._stored.get(schedule.name) is not schedule:
                self._attempt(schedule.name, partial(self._declare, schedule))
        self._read()
        if not self._times:
            return 0
        at = now or self._context.now()
        return sum(self._attempt(row.name, partial(self._fire_if_due, row, at)) for row in list(self._times.values()))

    def _attempt(self, name: str, work: Callable[[], int]) -> int:
        try:
            return work()
        except Unavailable:
            raise
        except BaseException as error:  # noqa: BLE001 - reported and retried; the other schedules continue
            self._context.events.emit(events.WorkerError(self._owner, f"schedule {name}", error))
            return 0

    # ------------------------------------------------------------ what is stored
    def _declare(self, schedule: Schedule) -> int:
        self._context.store.schedules.declare(facts_of(schedule))
        self._stored[schedule.name] = schedule
        self._read_at = float("-inf")
        return 0

    def _read(self) -> None:
        monotonic = self._context.sleeper.monotonic()
        if monotonic - self._read_at >= READ_EVERY:
            self._times = {row.name: row for row in self._context.store.schedules.times()}
            self._next = {name: known for name, known in self._next.items() if name in self._times}
            # A declared schedule that was deleted is declared again in the next round.
            self._stored = {name: each for name, each in self._stored.items() if name in self._times}
            self._read_at = monotonic

    def _spec(self, row: ScheduleTimes) -> KindSpec | None:
        """The kind of a schedule; None if this worker does not run the schedule.

        Only workers whose code declares a declared schedule run it: the code of another worker may have a different
        kind of that name.
        """
        declared = self._declared.get(row.name)
        if declared is None and row.declared:
            return None
        if declared is not None and declared.request.spec.name == row.kind:
            return declared.request.spec
        return self._context.kinds.get(row.kind)

    # ------------------------------------------------------------ ticks
    def _fire_if_due(self, row: ScheduleTimes, now: datetime) -> int:
        spec = None if row.paused else self._spec(row)
        if spec is None or now < self._next_tick(row) or self._is_refused(row, now):
            return 0
        if (declared := self._declared.get(row.name)) is not None:
            # A worker with other code may have stored its declaration since.
            self._context.store.schedules.declare(facts_of(declared))
        stored = self._context.store.schedules.get(row.name)
        if stored is not None and not self._passed(stored, now):
            # Another worker has stored the tick. Only this read was necessary, no lock.
            self._keep(row, stored, stored.done_until)
            return 0
        return call_within(spec.around, lambda: self._fire(row, spec, now))

    def _fire(self, row: ScheduleTimes, spec: KindSpec, now: datetime) -> int:
        """Enqueue the jobs of the schedule's ticks and mark the last of them, in one transaction that locks it."""
        context = self._context
        with schedule_transaction(context.store, spec, context.transaction) as tx:
            stored = context.store.schedules.lock(row.name, conn=tx)
            if stored is None or stored.paused_at is not None or stored.facts.kind != spec.name:
                self._read_at = float("-inf")
                return 0
            if not (passed := self._passed(stored, now)):
                return 0
            if (request := self._request(spec, stored, passed[-1])) is None:
                self._refused[row.name] = stored.changed_at, self._cron(stored).after(now)
                return 0
            ticks = missed(self._cron(stored), stored.done_until, now, stored.facts.catch_up, ON_TIME)
            done = self._enqueue(row.name, [request.at_tick(key_of(row.name, tick), tick) for tick in ticks], tx)
            # Ticks that `catch_up` skips count as handled, even if `catch_up` changes later.
            context.store.schedules.mark_tick(row.name, passed[-1], conn=tx)
        self._keep(row, stored, passed[-1])
        return done

    def _request(self, spec: KindSpec, stored: StoredSchedule, tick: datetime) -> JobRequest[Any] | None:
        """The request of the schedule; None if this worker's code does not accept it. Another worker's code may."""
        try:
            return request_of(spec, stored.facts)
        except (PayloadError, UsageError) as error:
            self._report(
                stored.facts.name, spec, tick, f"{error} The tick stays due for workers whose code accepts the request."
            )
            return None

    def _enqueue(self, name: str, requests: Sequence[JobRequest[Any]], tx: object) -> int:
        """Enqueue the jobs of ticks. Returns how many were created.

        `admit` may refuse a job, and a job with a tick's key may exist already, with the same or other arguments. The
        others are enqueued then, one at a time.
        """
        try:
            stored = enqueue(self._context.store, requests, conn=tx, transaction=None)
        except (Refused, KeyReused) as error:
            if len(requests) > 1:
                return sum(self._enqueue(name, [each], tx) for each in requests)
            self._report(name, requests[0].spec, requests[0].options.scheduled_for, str(error))
            return 0
        return sum(each.created for each in stored)

    def _report(self, name: str, spec: KindSpec, tick: datetime | None, why: str) -> None:
        sentence = f"The schedule {name} created no job for {tick.isoformat() if tick else 'a tick'}: {why}"
        self._context.events.emit(events.Notice(self._owner, sentence, {"schedule": name, "kind": spec.name}))

    # ------------------------------------------------------------ when it is due
    def _cron(self, row: ScheduleTimes | StoredSchedule) -> Cron:
        key = (row.cron, row.tz) if isinstance(row, ScheduleTimes) else (row.facts.cron, row.facts.tz)
        if key not in self._crons:
            self._crons[key] = Cron(*key)
        return self._crons[key]

    def _passed(self, stored: StoredSchedule, now: datetime) -> list[datetime]:
        return self._cron(stored).between(stored.done_until, now, 1)

    def _next_tick(self, row: ScheduleTimes) -> datetime:
        known = self._next.get(row.name)
        if known is None or known[0] != row:
            # If this machine cannot read the line or the zone, the error is reported once, and not every second.
            self._next[row.name] = row, NEVER
            known = self._next[row.name] = row, self._cron(row).after(row.done_until)
        return known[1]

    def _is_refused(self, row: ScheduleTimes, now: datetime) -> bool:
        changed_at, until = self._refused.get(row.name, (None, now))
        return changed_at == row.changed_at and now < until

    def _keep(self, row: ScheduleTimes, stored: StoredSchedule, done_until: datetime) -> None:
        """Remember when the schedule is due next, so that this worker reads it again only then."""
        facts = stored.facts
        self._times[row.name] = replace(
            row, kind=facts.kind, cron=facts.cron, tz=facts.tz, changed_at=stored.changed_at, done_until=done_until
        )
