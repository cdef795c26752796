"""A job about to be enqueued: a kind with its arguments and options."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from .clock import Seconds, seconds
from .declaration import Declaration
from .errors import UsageError
from .ids import uuid7
from .payload import check_key, check_name, encode_tags
from .records import NewJob
from .store import Store
from .telemetry.tracing import carrier


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is enqueued. What is None is left to its kind."""

    idempotency_key: str | None = None
    unique_key: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    ttl: float | None = None
    tags: str | None = None
    conn: Any = None
    scheduled_for: datetime | None = None

    def with_(self, other: "Options") -> "Options":
        """These, with what the other gives put in."""
        given = {one.name: value for one in fields(other) if (value := getattr(other, one.name)) is not None}
        return replace(self, **given)


def options(
    declaration: Declaration, *, idempotency_key: str | None, unique_key: str | None, queue: str | None, priority: int | None,
    delay: Seconds | None, run_at: datetime | None, ttl: Seconds | None, tags: Mapping[str, str] | None, conn: Any,
) -> Options:
    """Options as a caller gives them, checked."""
    if delay is not None and run_at is not None:
        raise UsageError("Both delay and run_at are given: give the one that you mean.")
    if run_at is not None and run_at.tzinfo is None:
        raise UsageError(f"run_at is {run_at.isoformat()} and has no time zone: give an aware datetime, such as one made with tzinfo=UTC.")
    if priority is not None and not -(2**31) <= priority < 2**31:
        raise UsageError(f"priority is {priority}: give a whole number of at most 32 bits; the higher one goes first.")
    lifecycle = declaration.lifecycle
    # Past its TTL no job is claimed, so that it must be able to expire wherever it waits.
    lasting = [state for state in lifecycle.states if state in lifecycle.waiting and lifecycle.target(state, "expire") is None]
    if ttl is not None and lasting:
        where = f"{lifecycle.name} draws no `expire` from {lasting[0]}"
        raise UsageError(f"{declaration.name} cannot have a ttl, since its lifecycle {where}: draw it, or leave the ttl out.")
    return Options(
        idempotency_key=None if idempotency_key is None else check_key("idempotency_key", idempotency_key),
        unique_key=None if unique_key is None else check_key("unique_key", unique_key),
        queue=None if queue is None else check_name("queue", queue),
        priority=priority,
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=run_at,
        ttl=None if ttl is None else seconds(ttl, "ttl"),
        tags=None if tags is None else encode_tags(tags),
        conn=conn,
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A kind with its arguments and options: what bulk enqueue and schedules take. Its arguments were checked when it was made."""

    declaration: Declaration
    arguments: Mapping[str, Any]
    payload: str
    options: Options

    def scheduled(self, key: str, tick: datetime) -> "Call":
        """The same call, as the one job of a schedule's tick."""
        return replace(self, options=replace(self.options, idempotency_key=key, scheduled_for=tick))

    def job(self, store: Store) -> NewJob:
        """The job that this call stores there. `NotMigrated` if that database does not know the kind's lifecycle."""
        declaration, chosen = self.declaration, self.options
        lifecycle = declaration.lifecycle
        return NewJob(
            id=uuid7(),
            kind=declaration.name,
            lifecycle=lifecycle.name,
            lifecycle_version=declaration.version(store),
            state=lifecycle.initial,
            payload=self.payload,
            tries=declaration.tries,
            queue=chosen.queue or declaration.queue,
            priority=chosen.priority or 0,
            delay=chosen.delay or 0.0,
            run_at=chosen.run_at,
            ttl=chosen.ttl,
            idempotency_key=chosen.idempotency_key,
            unique_key=chosen.unique_key,
            tags=chosen.tags,
            trace=carrier(),
            scheduled_for=chosen.scheduled_for,
            resting=tuple(sorted(lifecycle.resting)),
        )
