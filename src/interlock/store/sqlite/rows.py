"""Parameters of the statements, as JSON or as one mapping per row."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ...core.job import Job
from ..types import ClaimRule, Heartbeat, Lease, NewJob
from .timestamps import Timestamp, text_of, when

LONGEST = 4_000_000
"""Characters of payload in one list: SQLite parses the list in memory and allows a billion bytes in a value."""


def array(values: Iterable[object]) -> str:
    """A JSON array for `json_each`."""
    return json.dumps(list(values), ensure_ascii=False)


def heartbeat(heartbeat: Heartbeat, now: Timestamp) -> dict[str, Any]:
    fence = heartbeat.fence
    return {
        "job_id": fence.job_id,
        "attempt": fence.attempt,
        "holder": fence.holder,
        "now": now.text,
        "until": now.plus(heartbeat.lease),
        "progress": heartbeat.progress,
        "usage": heartbeat.usage,
    }


def new_jobs(jobs: Sequence[NewJob], now: Timestamp, *, plain: bool) -> Iterator[str]:
    """The jobs as the queries `enqueue` and `enqueue.flow` read them, in lists of a bounded length."""
    batch: list[tuple[Any, ...]] = []
    length = 0
    for job in jobs:
        length += len(job.payload)
        if batch and length > LONGEST:
            yield array(batch)
            batch, length = [], len(job.payload)
        more = () if plain else (job.concurrency_key, job.batch, bool(job.after), job.awaited)
        batch.append(_new_job(job, now) + more)
    yield array(batch)


def _new_job(job: NewJob, now: Timestamp) -> tuple[Any, ...]:
    start = Timestamp(job.run_at) if job.run_at else now
    return (
        job.id,
        job.kind,
        job.queue,
        job.priority,
        job.lifecycle,
        job.lifecycle_version,
        job.state,
        job.tries,
        start.plus(job.delay),
        now.after(job.ttl),
        job.idempotency_key,
        job.unique_key,
        job.payload,
        job.tags,
        job.trace,
        job.scheduled_for and text_of(job.scheduled_for),
        job.redrive_of,
        job.root,
    )


def new_job(job: NewJob, now: Timestamp) -> dict[str, Any]:
    """One job as the queries `enqueue.one` and `enqueue.one_audit` read it."""
    start = Timestamp(job.run_at) if job.run_at else now
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "priority": job.priority,
        "lifecycle": job.lifecycle,
        "lifecycle_version": job.lifecycle_version,
        "state": job.state,
        "tries": job.tries,
        "due_at": start.plus(job.delay),
        "expires_at": now.after(job.ttl),
        "now": now.text,
        "payload": job.payload,
        "tags": job.tags,
        "trace": job.trace,
        "scheduled_for": job.scheduled_for and text_of(job.scheduled_for),
        "redrive_of": job.redrive_of,
        "root": job.root,
        "actor": job.actor,
    }


def replacements(jobs: Mapping[str, NewJob], now: Timestamp) -> list[dict[str, Any]]:
    """The jobs whose values the stored jobs with these ids take, as the query `replace` reads them."""
    return [
        {
            "id": id,
            "payload": job.payload,
            "actor": job.actor,
            "debounce": job.on_conflict == "debounce",
            "due_at": (Timestamp(job.run_at) if job.run_at else now).plus(job.delay),
            "now": now.text,
        }
        for id, job in jobs.items()
    ]


def plain_lease(row: Sequence[Any], rule: ClaimRule, owner: str) -> Lease:
    """A row of the query `claim.plain`. The other columns follow from the rule, or are empty in a plain job."""
    payload, tags, trace = row[7:10]
    fields: list[Any] = [
        *(row[0], rule.kind, row[1], row[2], rule.lifecycle, rule.version, rule.target, "running"),
        *row[3:7],
        0,
        json.loads(payload),
        json.loads(tags) if tags else {},
        json.loads(trace) if trace else None,
        None,
        row[10],
        *(datetime.fromisoformat(row[11]), None, when(row[12]), when(row[13]), when(row[14]), None),
        *(row[15], bool(row[16]), row[17]),
        # Neither a cancel request nor a hold.
        *(None, None, None, None, None),
        *row[18:20],
    ]
    job = Job(*fields)
    job.batch = row[20]
    return Lease(job, 1, rule.status, owner, rule.lease)


def keys(jobs: Sequence[NewJob]) -> str:
    return array((job.kind, job.idempotency_key, job.unique_key) for job in jobs)


def states(claim_rules: Sequence[ClaimRule]) -> dict[str, str]:
    """For each kind its states as one text, which `instr` searches.

    Each entry is `lifecycle/state`, with a space on both sides, which no name contains.
    """
    found: dict[str, str] = {}
    for rule in claim_rules:
        found[rule.kind] = found.get(rule.kind, " ") + f"{rule.lifecycle}/{rule.state} "
    return found


def pairs(claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> str:
    """Each queue with each kind and its states."""
    known = sorted(states(claim_rules).items())
    return array((queue, kind, text) for queue in sorted(set(queues)) for kind, text in known)
