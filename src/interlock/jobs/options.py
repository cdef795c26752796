"""The options of one job: its keys, queue, priority, start time, lifetime and tags."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, get_args

from ..core.clock import Seconds, seconds
from ..core.payload import check_key, check_name, encode_tags
from ..errors import UsageError
from ..store.flow_types import Dependency
from ..store.types import OnConflict
from .spec import KindSpec


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is enqueued. An option that is None takes the value of the kind."""

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
    concurrency_key: str | None = None
    after: tuple[Dependency, ...] | None = None
    unique_for: float | None = None
    on_conflict: OnConflict | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.run_at is not None:
            raise UsageError("Both delay and run_at are given: give only one of them.")

    def check_unique(self) -> None:
        """Raise `UsageError` if options of a unique key contradict each other. Several `using` may have set them."""
        if self.unique_for is None and self.on_conflict in (None, "keep"):
            return
        if self.unique_key is None:
            raise UsageError("unique_for and on_conflict apply to a unique key: give unique_key, too.")
        if self.on_conflict in (None, "keep"):
            return
        if self.idempotency_key is not None:
            raise UsageError(
                f'on_conflict="{self.on_conflict}" changes the payload of a waiting job, but an idempotency_key '
                "belongs to one payload: give only one of them."
            )
        if self.on_conflict == "debounce" and not self.delay and self.run_at is None:
            raise UsageError(
                'on_conflict="debounce" moves the due time of a waiting job: give delay above zero, or run_at.'
            )
        if self.on_conflict == "debounce" and self.unique_for is not None and (self.delay or 0.0) > self.unique_for:
            raise UsageError(
                f"delay is {self.delay:g} s, but a debounced job is due at the latest {self.unique_for:g} s after its "
                "creation: make unique_for at least as long as delay."
            )

    def merge(self, other: "Options") -> "Options":
        """Return these options, replaced by those that `other` sets. `UsageError` if the two contradict."""
        given = {one.name: value for one in fields(other) if (value := getattr(other, one.name)) is not None}
        return replace(self, **given)


def check_options(
    spec: KindSpec,
    *,
    idempotency_key: str | None,
    unique_key: str | None,
    queue: str | None,
    priority: int | None,
    delay: Seconds | None,
    run_at: datetime | None,
    ttl: Seconds | None,
    tags: Mapping[str, str] | None,
    conn: Any,
    concurrency_key: str | None,
    after: tuple[Dependency, ...] | None,
    unique_for: Seconds | None,
    on_conflict: OnConflict | None,
) -> Options:
    """Return the options that a caller gave. `UsageError` for one of a wrong type or value."""
    texts = {"idempotency_key": idempotency_key, "unique_key": unique_key, "queue": queue}
    for name, text in (texts | {"concurrency_key": concurrency_key}).items():
        check_type(name, text, str, "a string")
    if concurrency_key is not None and spec.key_limit is None:
        raise UsageError(
            f"{spec.name} has no limit per concurrency key: declare one, such as @app.job(max_running_per_key=2)."
        )
    check_type("tags", tags, Mapping, "a dict of strings, such as {'user': '7'}")
    if ttl is not None:
        _check_expiry(spec)
    return Options(
        idempotency_key=None if idempotency_key is None else check_key("idempotency_key", idempotency_key),
        unique_key=None if unique_key is None else check_key("unique_key", unique_key),
        queue=None if queue is None else check_name("queue", queue),
        priority=_check_priority(priority),
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=_check_run_at(run_at),
        ttl=None if ttl is None else seconds(ttl, "ttl"),
        tags=None if tags is None else _check_tags(tags),
        conn=conn,
        concurrency_key=None if concurrency_key is None else check_key("concurrency_key", concurrency_key),
        after=after,
        unique_for=None if unique_for is None else _check_unique_for(unique_for),
        on_conflict=_check_on_conflict(on_conflict),
    )


def check_type(option: str, value: object, wanted: type | tuple[type, ...], advice: str) -> None:
    """Raise `UsageError` if an option has a value of another type. None means the default, so it passes."""
    # A bool is an int to isinstance, and no option takes it as a number.
    if value is None or (isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))):
        return
    raise UsageError(f"{option} is {reprlib.repr(value)}: give {advice}.")


def _check_unique_for(unique_for: Seconds) -> float:
    if not (given := seconds(unique_for, "unique_for")):
        raise UsageError("unique_for is zero: give more than 0 seconds, or leave it out.")
    return given


def _check_on_conflict(on_conflict: OnConflict | None) -> OnConflict | None:
    if on_conflict is not None and on_conflict not in get_args(OnConflict):
        known = ", ".join(f'"{one}"' for one in get_args(OnConflict))
        raise UsageError(f"on_conflict is {reprlib.repr(on_conflict)}: give one of {known}.")
    return on_conflict


def _check_priority(priority: int | None) -> int | None:
    check_type("priority", priority, int, "a whole number, such as 10; jobs with a higher one run first")
    if priority is not None and not -(2**31) <= priority < 2**31:
        raise UsageError(f"priority is {priority}: give a whole number of at most 32 bits.")
    return priority


def _check_run_at(run_at: datetime | None) -> datetime | None:
    aware = "a datetime with a time zone, such as datetime(2030, 1, 31, 12, tzinfo=UTC)"
    check_type("run_at", run_at, datetime, aware)
    if run_at is not None and run_at.tzinfo is None:
        raise UsageError(f"run_at is {run_at.isoformat()} and has no time zone: give {aware}.")
    return run_at


def _check_tags(tags: Mapping[str, str]) -> str:
    for name, value in tags.items():
        check_type("The name of a tag", name, str, "a string")
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
            raise UsageError(f"The value of tag {name} is {reprlib.repr(value)}: give a string.")
    return encode_tags(tags)


def _check_expiry(spec: KindSpec) -> None:
    """Refuse a TTL if the job could wait in a state that has no `expire` transition: no worker would claim it there."""
    lifecycle = spec.lifecycle
    for state in lifecycle.states:
        if state in lifecycle.waiting and lifecycle.target(state, "expire") is None:
            raise UsageError(
                f"{spec.name} cannot have a ttl: its lifecycle {lifecycle.name} has no `expire` transition from "
                f"{state}. Add one, or leave the ttl out."
            )
