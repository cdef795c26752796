"""The filters that choose jobs: for lists of jobs, and for operations on many jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import get_args

from ..errors import UsageError
from .job import Phase
from .payload import clean

PHASES: tuple[str, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Chooses the jobs that match every given filter. A filter that is None matches every job."""

    kind: str | None = None
    state: str | None = None
    phase: str | None = None
    queue: str | None = None
    tags: Mapping[str, str] | None = None
    """The job has each of these tags with this value."""
    since: datetime | None = None
    """The job ended at this time or later. A job that has not ended was created at this time or later."""
    until: datetime | None = None
    """The job ended before this time. A job that has not ended was created before it."""
    error_like: str | None = None
    """The job's last error contains this text. The letters A to Z match in either case."""

    def __post_init__(self) -> None:
        for name in ("kind", "state", "queue", "error_like"):
            _check_text(name, getattr(self, name))
        for name, value in (self.tags or {}).items():
            _check_text("The name of a tag", name)
            _check_text(f"The value of tag {name}", value)
        if self.phase is not None and self.phase not in PHASES:
            raise UsageError(f"phase is {self.phase!r}: give {', '.join(PHASES[:-1])} or {PHASES[-1]}.")
        for name in ("since", "until"):
            object.__setattr__(self, name, _in_utc(name, getattr(self, name)))

    @property
    def is_empty(self) -> bool:
        """Whether the filter matches every job."""
        return not any(getattr(self, each.name) for each in fields(self))


def _check_text(name: str, text: object) -> None:
    if text is not None and (not isinstance(text, str) or not text or clean(text) != text):
        raise UsageError(f"{name} is {text!r}: give a text of 1 to 10,000 characters, without NUL.")


def _in_utc(name: str, at: object) -> datetime | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise UsageError(
            f"{name} is {at!r}: give a datetime with a time zone, such as datetime(2030, 1, 31, 12, tzinfo=UTC)."
        )
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise UsageError(
            f"{name} is {at.isoformat()}: in UTC, that is before the year 1 or after the year 9999. Give another time."
        ) from None
