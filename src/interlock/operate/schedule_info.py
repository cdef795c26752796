"""A schedule as operators see it: what it enqueues, when it is due, and whether a worker runs it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..core.cron import CatchUp, Cron
from ..errors import UsageError
from ..jobs.schedule import Schedule
from ..jobs.stored_request import facts_of
from ..store.contract import Store
from ..store.schedule_types import ScheduleFacts, StoredSchedule
from ..store.types import WorkerSeen


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule: declared in code, or created at run time."""

    name: str
    kind: str
    cron: str
    tz: str
    catch_up: CatchUp
    payload: Mapping[str, Any]
    """The arguments of each job."""
    options: Mapping[str, Any]
    """The options of each job, as arguments of `kind.using`."""
    source: Literal["code", "run time"]
    """Whether code declares it, or it was created at run time."""
    changed_by: str | None
    """Who created it, or changed it at run time; None if it is as the code declares it."""
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    last_tick: datetime | None
    """The last tick that a worker has handled; None if there was none yet."""
    next_tick: datetime | None
    """The next tick; None during a pause."""
    workers: int
    """How many live workers run it: those whose code declares it, or that have its kind if none does."""


def schedule_infos(
    store: Store, stored: Iterable[StoredSchedule], declared: Mapping[str, Schedule] | None = None
) -> list[ScheduleInfo]:
    """Return these stored schedules, and the declared ones that no worker has stored yet, by name."""
    now, workers = store.inspect.now(), [each for each in store.workers.all() if each.alive]
    found = {each.facts.name: _info(each, now, workers) for each in stored}
    for name, schedule in (declared or {}).items():
        if name not in found:
            found[name] = _unseen(facts_of(schedule), now)
    return [found[name] for name in sorted(found)]


def _info(stored: StoredSchedule, now: datetime, workers: Iterable[WorkerSeen]) -> ScheduleInfo:
    facts = stored.facts
    if stored.declared:
        running = sum(facts.name in worker.facts.schedules for worker in workers)
    else:
        running = sum(facts.kind in worker.facts.kinds for worker in workers)
    return ScheduleInfo(
        facts.name,
        facts.kind,
        facts.cron,
        facts.tz,
        facts.catch_up,
        json.loads(facts.payload),
        json.loads(facts.options),
        "code" if stored.declared else "run time",
        stored.changed_by,
        stored.paused_at,
        stored.paused_by,
        stored.pause_reason,
        stored.last_tick,
        None if stored.paused_at else _next_tick(facts, now),
        running,
    )


def _unseen(facts: ScheduleFacts, now: datetime) -> ScheduleInfo:
    return ScheduleInfo(
        facts.name,
        facts.kind,
        facts.cron,
        facts.tz,
        facts.catch_up,
        json.loads(facts.payload),
        json.loads(facts.options),
        "code",
        None,
        None,
        None,
        None,
        None,
        _next_tick(facts, now),
        0,
    )


def _next_tick(facts: ScheduleFacts, now: datetime) -> datetime | None:
    try:
        return Cron(facts.cron, facts.tz).after(now)
    except UsageError:  # this machine does not know the time zone
        return None
