"""Parameters of statements: batches as array literals, one per column, and single jobs as texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.transition import Take
from ..codec import MoveStep, array, text_array, time_array
from ..plain_path import PlainFinish
from ..types import ClaimRule, Fence, Heartbeat, NewJob

_PLAIN = {
    "job_id",
    "attempt",
    "holder",
    "from_status",
    "to_status",
    "phase",
    "tries_left",
    "lost",
    "delay",
    "frees_key",
    "check_in",
    "missing",
    "moves_job",
    "refuse_if_cancel_requested",
}


def names(batch: Sequence[str]) -> str:
    return text_array(sorted(set(batch)))


def steps(batch: Sequence[MoveStep]) -> dict[str, Any]:
    columns = zip(MoveStep._fields, zip(*batch, strict=True), strict=True)
    return {name: array(values) if name in _PLAIN else text_array(values) for name, values in columns}


def finishes(batch: Sequence[PlainFinish]) -> dict[str, str]:
    """Plain successes by the same transition and actor."""
    return {
        "job_id": "{" + ",".join([f.job_id for f in batch]) + "}",
        "attempt": "{" + ",".join([str(f.attempt) for f in batch]) + "}",
        "holder": "{" + ",".join([str(f.holder) for f in batch]) + "}",
        "tries_left": "{" + ",".join([str(f.tries_left) for f in batch]) + "}",
        "result": text_array([f.result for f in batch]),
        "source": batch[0].source,
        "target": batch[0].target,
        "actor": batch[0].actor,
    }


def takes(batch: Sequence[Take]) -> dict[str, Any]:
    return {
        "job_id": array(t.job_id for t in batch),
        "version": array(t.version for t in batch),
        "source": text_array(t.arrow.source for t in batch),
        "target": text_array(t.arrow.target for t in batch),
        "event": text_array(t.arrow.event for t in batch),
        "phase": array(t.phase for t in batch),
        "frees_key": array(t.frees_key for t in batch),
        "actor": text_array(t.actor for t in batch),
        "reason": text_array(t.reason for t in batch),
    }


def claim_rules(batch: Sequence[ClaimRule]) -> dict[str, Any]:
    return {
        "kind": text_array(w.kind for w in batch),
        "lifecycle": text_array(w.lifecycle for w in batch),
        "state": text_array(w.state for w in batch),
        "lifecycle_version": array(w.version for w in batch),
        "target": text_array(w.target for w in batch),
        "status": array(w.status for w in batch),
        "lease": array(w.lease for w in batch),
        "first_event": text_array(w.path[0].event if w.path else None for w in batch),
        "first_target": text_array(w.path[0].target if w.path else None for w in batch),
        "second_event": text_array(w.path[1].event if len(w.path) > 1 else None for w in batch),
        "arrows": array(len(w.path) for w in batch),
        "kinds": text_array(sorted({w.kind for w in batch})),
    }


def fences(batch: Sequence[Fence]) -> dict[str, Any]:
    return {
        "job_id": array(f.job_id for f in batch),
        "attempt": array(f.attempt for f in batch),
        "holder": array(f.holder for f in batch),
    }


def heartbeats(batch: Sequence[Heartbeat]) -> dict[str, Any]:
    return fences([b.fence for b in batch]) | {
        "lease": array(b.lease for b in batch),
        "progress": text_array(b.progress for b in batch),
        "usage": text_array(b.usage for b in batch),
    }


def new_jobs(batch: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "id": array(j.id for j in batch),
        "kind": text_array(j.kind for j in batch),
        "queue": text_array(j.queue for j in batch),
        "priority": array(j.priority for j in batch),
        "lifecycle": text_array(j.lifecycle for j in batch),
        "lifecycle_version": array(j.lifecycle_version for j in batch),
        "state": text_array(j.state for j in batch),
        "tries": array(j.tries for j in batch),
        "delay": array(j.delay for j in batch),
        "run_at": time_array(j.run_at for j in batch),
        "ttl": array(j.ttl for j in batch),
        "idempotency_key": text_array(j.idempotency_key for j in batch),
        "unique_key": text_array(j.unique_key for j in batch),
        "payload": text_array(j.payload for j in batch),
        "tags": text_array(j.tags for j in batch),
        "trace": text_array(j.trace for j in batch),
        "scheduled_for": time_array(j.scheduled_for for j in batch),
        "redrive_of": array(j.redrive_of for j in batch),
        "root": array(j.root for j in batch),
        "actor": text_array(j.actor for j in batch),
        "concurrency_key": text_array(j.concurrency_key for j in batch),
        "batch": array(j.batch for j in batch),
        "blocked": array(bool(j.after) for j in batch),
        "awaited": array(j.awaited for j in batch),
        "unique_for": array(j.unique_for for j in batch),
    }


def new_job(job: NewJob) -> dict[str, str | None]:
    """One job as plain parameters. All are texts: a driver's own types would make more prepared statements."""
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "priority": str(job.priority),
        "lifecycle": job.lifecycle,
        "lifecycle_version": str(job.lifecycle_version),
        "state": job.state,
        "tries": str(job.tries),
        "delay": str(job.delay),
        "run_at": None if job.run_at is None else job.run_at.isoformat(),
        "ttl": None if job.ttl is None else str(job.ttl),
        "idempotency_key": job.idempotency_key,
        "unique_key": job.unique_key,
        "payload": job.payload,
        "tags": job.tags,
        "trace": job.trace,
        "scheduled_for": None if job.scheduled_for is None else job.scheduled_for.isoformat(),
        "redrive_of": job.redrive_of,
        "root": job.root,
        "actor": job.actor,
    }


def alike_jobs(batch: Sequence[NewJob]) -> dict[str, str | None]:
    """Jobs that differ only in their ids and payloads."""
    first = batch[0]
    return new_job(first) | {
        "id": "{" + ",".join([job.id for job in batch]) + "}",
        "payload": text_array([job.payload for job in batch]),
        "concurrency_key": first.concurrency_key,
        "batch": first.batch,
        "blocked": str(bool(first.after)),
        "awaited": str(first.awaited),
    }


def keys(batch: Sequence[NewJob], tried: Sequence[bool]) -> dict[str, Any]:
    return {
        "tried": array(tried),
        "ord": array(range(len(batch))),
        "kind": text_array(j.kind for j in batch),
        "idempotency_key": text_array(j.idempotency_key for j in batch),
        "unique_key": text_array(j.unique_key for j in batch),
    }


def replacements(batch: Mapping[str, NewJob]) -> dict[str, Any]:
    """The jobs whose values the stored jobs with these ids take."""
    jobs = batch.values()
    return {
        "id": array(batch),
        "payload": text_array(j.payload for j in jobs),
        "actor": text_array(j.actor for j in jobs),
        "delay": array(j.delay for j in jobs),
        "run_at": time_array(j.run_at for j in jobs),
        "debounce": array(j.on_conflict == "debounce" for j in jobs),
    }
