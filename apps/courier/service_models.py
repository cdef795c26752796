"""The values that the service takes and returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Status = Literal["PENDING", "ACTIVE", "BLOCKED"]
Decision = Literal["ACTIVE", "BLOCKED"]
FINAL = ("DELIVERED", "FAILED", "CANCELLED", "EXPIRED")


@dataclass(frozen=True)
class Person:
    """A Telegram user as Telegram describes them."""

    id: int
    name: str
    language: str | None = None


@dataclass(frozen=True)
class UpdateTime:
    """The time of a Telegram update. Within one second, the later update has the larger `update_id`."""

    at: datetime
    update_id: int


@dataclass(frozen=True)
class User:
    """A person who asked for access to the library, with the administrators' decision."""

    id: int
    name: str
    language: str
    status: Status
    asked_at: datetime


@dataclass(frozen=True)
class DeliveryView:
    """A delivery as its user sees it."""

    job_id: str
    file_id: int
    file_name: str
    state: str
    done: float | None
    """Bytes sent so far, of `total`. None unless the delivery is running."""
    total: float | None
    error_code: str | None
    """Why the last attempt failed. None if the error has no known code."""
    attempt: int
    failed: int
    """Failed tries. Postponed and returned attempts do not count."""
    doubted: bool
    """True if the file may have arrived one more time than the state says."""
    tries: int
    stopping: bool
    """True if the delivery is running and has a cancel request, which may come too late."""


@dataclass(frozen=True)
class Card:
    """A message that shows a delivery and follows it: its last stored text, and the delivery as it is now."""

    user_id: int
    language: str
    card_id: int
    shown_text: str | None
    delivery: DeliveryView


@dataclass(frozen=True)
class StuckDelivery:
    """A delivery whose lease has expired without a heartbeat. Another worker will take it over."""

    job_id: str
    state: str
    heartbeat_at: datetime


@dataclass(frozen=True)
class WorkerAge:
    """A worker, and the seconds since its last heartbeat."""

    name: str
    age: float
    alive: bool


@dataclass(frozen=True)
class LastError:
    """Why a delivery failed: an error code with its sentence, an engine error, or an exception type.

    It never names a person or a file.
    """

    at: datetime
    code: str
    sentence: str


@dataclass(frozen=True)
class Overview:
    """The state of all deliveries, for administrators."""

    counts: Mapping[str, int]
    """Deliveries by state."""
    waiting: int
    running: int
    oldest: float
    """Seconds for which the oldest due delivery has been due."""
    stuck: list[StuckDelivery]
    workers: list[WorkerAge]
    token_expires_at: datetime | None
    errors: list[LastError]
    """Newest first."""
    doubted: int
    """All deliveries whose file may have arrived twice."""
