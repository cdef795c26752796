"""Explains which dependencies, pauses and limits a waiting job waits for, and which schedule enqueued it."""

from datetime import datetime, timedelta

from ..core.job import Job
from ..jobs.schedule import name_in
from ..store.contract import Store
from ..store.flow_types import LimitSeen, Need

NAMED = 3
"""The most dependencies to name."""


def dependencies_reason(store: Store, job: Job) -> str:
    """Say for how many dependencies a blocked job waits, and name some."""
    open, total = store.flow.count_needs(job.id)
    if open == 0:
        return "Its dependencies have ended: a worker lets it run within about a second."
    named = [_show_need(store, need) for need in store.flow.needs(job.id, min(open, NAMED))]
    more = f" and {open - len(named)} more" if open > len(named) else ""
    return f"It waits for {open} of {total} {'dependency' if total == 1 else 'dependencies'}: {', '.join(named)}{more}."


def _show_need(store: Store, need: Need) -> str:
    if not need.is_batch:
        return f"{need.name} {need.needs} ({need.state})"
    progress = store.flow.batch(need.needs)
    return f"batch {need.name} ({progress.succeeded + progress.failed} of {progress.total} jobs have ended)"


def pause_reason(store: Store, job: Job) -> str | None:
    """Say by whom the job's queue and its kind are paused; None if neither is."""
    found: list[str] = []
    for seen in _limits_of(store, job):
        if seen.paused_at is not None:
            why = f": {seen.pause_reason.rstrip('.')}" if seen.pause_reason else ""
            found.append(
                f"The {seen.scope} {seen.name} was paused at {_show(seen.paused_at)} by {seen.paused_by}{why}."
            )
    return " ".join(found) or None


def schedule_reasons(store: Store, job: Job) -> list[str]:
    """Say which schedule enqueued the job, and whether it is paused now; nothing for other jobs."""
    if job.scheduled_for is None or (name := name_in(job.idempotency_key)) is None:
        return []
    stored = store.schedules.get(name)
    if stored is None:
        now = ", which was deleted since"
    elif stored.paused_at is not None:
        why = f": {stored.pause_reason.rstrip('.')}" if stored.pause_reason else ""
        now = f", which was paused at {_show(stored.paused_at)} by {stored.paused_by}{why}"
    else:
        now = ""
    return [f"The schedule {name} enqueued it for {_show(job.scheduled_for)}{now}."]


def limit_reasons(store: Store, job: Job, now: datetime) -> list[str]:
    """Say which limits leave no room for the job now."""
    found: list[str] = []
    for seen in _limits_of(store, job):
        running, wait, what = seen.running, seen.next_start, f"{seen.scope} {seen.name}"
        if seen.scope == "key":
            running, wait = store.limits.of_key(job.kind, job.concurrency_key or "")
            what = str(job.concurrency_key)
        most = seen.limit.max_running
        if most is not None and running >= most:
            found.append(f"{what} has {running} of {most} running")
        if wait > 0:
            at = _show(now + timedelta(seconds=wait))
            found.append(f"the rate {seen.limit.rate} of {what} allows the next start at {at}")
    return found


def _limits_of(store: Store, job: Job) -> list[LimitSeen]:
    names = [("queue", job.queue), ("kind", job.kind), *([("key", job.kind)] if job.concurrency_key else [])]
    order = {"queue": 0, "kind": 1, "key": 2}
    return sorted(
        (seen for seen in store.limits.all() if (seen.scope, seen.name) in names), key=lambda seen: order[seen.scope]
    )


def _show(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
