"""Named points in the life of an execution, at which a test may stop, kill or rob its worker."""

from collections.abc import Callable
from enum import StrEnum

from ..job import Job


class Point(StrEnum):
    """Where a worker is with an execution."""

    AFTER_CLAIM = "after_claim"
    IN_PREPARE = "in_prepare"
    BEFORE_COMMIT = "before_commit"
    IN_COMMIT = "in_commit"
    AFTER_COMMIT = "after_commit"
    IN_FINISH = "in_finish"


Points = Callable[[Point, Job], None]


def pass_by(point: Point, job: Job) -> None:
    """What happens at a point unless someone waits there: nothing."""
