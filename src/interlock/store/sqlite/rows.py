"""Values as the parameters of the statements in `queries.sql`, one mapping per row."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...records import Beat, NewJob, Way
from .moment import Moment, text_of

LONGEST = 4_000_000
"""Characters of payload in one list: SQLite takes a thousand million bytes in a value, and parses the list in memory."""


def array(values: Iterable[object]) -> str:
    """What `json_each` walks."""
    return json.dumps(list(values), ensure_ascii=False)


def beat(beat: Beat, now: Moment) -> dict[str, Any]:
    fence = beat.fence
    return {
        "job_id": fence.job_id, "attempt": fence.attempt, "holder": fence.holder, "now": now.text, "until": now.plus(beat.lease), "progress": beat.progress,
        "usage": beat.usage,
    }


def new_jobs(jobs: Sequence[NewJob], now: Moment) -> Iterator[str]:
    """The jobs as the query `enqueue` reads them, in lists of a bounded length."""
    batch: list[tuple[Any, ...]] = []
    length = 0
    for job in jobs:
        length += len(job.payload)
        if batch and length > LONGEST:
            yield array(batch)
            batch, length = [], len(job.payload)
        batch.append(_new_job(job, now))
    yield array(batch)


def _new_job(job: NewJob, now: Moment) -> tuple[Any, ...]:
    start = Moment(job.run_at) if job.run_at else now
    return (
        job.id, job.kind, job.queue, job.priority, job.lifecycle, job.lifecycle_version, job.state, job.tries, start.plus(job.delay), now.after(job.ttl),
        job.idempotency_key, job.unique_key, job.payload, job.tags, job.trace, job.scheduled_for and text_of(job.scheduled_for), job.redrive_of,
        job.root)


def keys(jobs: Sequence[NewJob]) -> str:
    return array((job.kind, job.idempotency_key, job.unique_key) for job in jobs)


def kinds(ways: Sequence[Way]) -> str:
    """Each kind with its states, every one behind its lifecycle's name and between spaces, which no name has: they are looked up by `instr`."""
    states: dict[str, str] = {}
    for way in ways:
        states[way.kind] = states.get(way.kind, " ") + f"{way.lifecycle}/{way.state} "
    return array(sorted(states.items()))
