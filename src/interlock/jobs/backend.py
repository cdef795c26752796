"""The functions of an app that its kinds and job handles call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.job import Job
from ..core.sleeper import Sleeper, SystemSleeper
from ..store import OpenStore
from .enqueue import Transaction
from .spec import KindSpec
from .tokens import Tokens


class Cancel(Protocol):
    """Cancels a job, as `app.cancel` does."""

    def __call__(self, id: str, /, *, by: str, reason: str = "") -> Job: ...


@dataclass(frozen=True)
class Backend:
    """The functions of an app that its kinds and handles call.

    The app builds it, so that kinds and handles need not import the app.
    """

    store: Callable[[], OpenStore]
    spec: Callable[[str], KindSpec | None]
    """Find the kind of this name; None if another program declares it."""
    complete: Callable[[KindSpec, str, Any], bool]
    """Complete the jobs of a kind that an external system knows by this id."""
    answer: Callable[[KindSpec, str, Any, str], bool]
    """Answer a question for this person or program. The job is found by the first job of its redrives."""
    cancel: Cancel
    tokens: Tokens
    transaction: Transaction | None = None
    sleeper: Sleeper = field(default_factory=SystemSleeper)
