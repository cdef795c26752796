"""Named points of an execution, at which a test can pause or kill the worker, or take its job."""

from collections.abc import Callable
from enum import StrEnum

from ..core.job import Job


class Failpoint(StrEnum):
    """A point that an execution passes."""

    AFTER_CLAIM = "after_claim"
    IN_PREPARE = "in_prepare"
    BEFORE_COMMIT = "before_commit"
    IN_COMMIT = "in_commit"
    AFTER_COMMIT = "after_commit"
    IN_FINISH = "in_finish"


Failpoints = Callable[[Failpoint, Job], None]


def no_failpoints(point: Failpoint, job: Job) -> None:
    """Do nothing: the default outside tests."""
