"""A request to enqueue a job: a kind with its arguments and options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from ..core.ids import new_ids
from ..store.contract import Store
from ..store.types import NewJob
from .options import Options
from .spec import KindSpec
from .trace_context import current_trace

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class JobRequest(Generic[R_co]):
    """A kind with checked arguments and options, for `enqueue_many` and `schedule`. The job's result will be an R."""

    spec: KindSpec
    arguments: Mapping[str, Any]
    payload: str
    options: Options

    def at_tick(self, key: str, tick: datetime) -> "JobRequest[R_co]":
        """Return the same request for one tick of a schedule."""
        return replace(self, options=replace(self.options, idempotency_key=key, scheduled_for=tick))


def new_jobs(store: Store, requests: Sequence[JobRequest[Any]]) -> list[NewJob]:
    """Return the jobs to store. `NotMigrated` if the database does not know the lifecycle of a kind."""
    if not requests:
        return []
    trace, jobs = current_trace(), list[NewJob]()
    spec, options = requests[0].spec, requests[0].options
    make = _job_maker(spec, options, spec.version(store), trace)
    for id, request in zip(new_ids(len(requests)), requests, strict=True):
        # Most requests of a call differ only in their payloads.
        if request.spec is not spec or request.options is not options:
            spec, options = request.spec, request.options
            make = _job_maker(spec, options, spec.version(store), trace)
        jobs.append(make(id, request.payload))
    return jobs


def _job_maker(spec: KindSpec, chosen: Options, version: int, trace: str | None) -> Callable[[str, str], NewJob]:
    """Return a function that makes a job of this kind with these options from its id and payload."""
    lifecycle = spec.lifecycle
    queue, priority, delay = chosen.queue or spec.queue, chosen.priority or 0, chosen.delay or 0.0
    on_conflict = chosen.on_conflict or "keep"
    resting = tuple(sorted(lifecycle.resting)) if chosen.idempotency_key is not None else ()

    def make(id: str, payload: str) -> NewJob:
        # Positional arguments take half as long as keyword arguments.
        return NewJob(
            id,
            spec.name,
            lifecycle.name,
            version,
            lifecycle.initial,
            payload,
            spec.tries,
            queue,
            priority,
            delay,
            chosen.run_at,
            chosen.ttl,
            chosen.idempotency_key,
            chosen.unique_key,
            chosen.tags,
            trace,
            chosen.scheduled_for,
            resting=resting,
            concurrency_key=chosen.concurrency_key,
            after=chosen.after or (),
            unique_for=chosen.unique_for,
            on_conflict=on_conflict,
        )

    return make
