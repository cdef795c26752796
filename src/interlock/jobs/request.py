"""A request to enqueue a job: a kind with its arguments and options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from ..core.ids import uuid7
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

    def job(self, store: Store) -> NewJob:
        """Return the job to store. `NotMigrated` if the database does not know the kind's lifecycle."""
        spec, chosen = self.spec, self.options
        lifecycle = spec.lifecycle
        return NewJob(
            id=uuid7(),
            kind=spec.name,
            lifecycle=lifecycle.name,
            lifecycle_version=spec.version(store),
            state=lifecycle.initial,
            payload=self.payload,
            tries=spec.tries,
            queue=chosen.queue or spec.queue,
            priority=chosen.priority or 0,
            delay=chosen.delay or 0.0,
            run_at=chosen.run_at,
            ttl=chosen.ttl,
            idempotency_key=chosen.idempotency_key,
            unique_key=chosen.unique_key,
            tags=chosen.tags,
            trace=current_trace(),
            scheduled_for=chosen.scheduled_for,
            resting=tuple(sorted(lifecycle.resting)) if chosen.idempotency_key is not None else (),
        )
