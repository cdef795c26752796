"""What a job waits for: handles of jobs and batches, as options of an enqueue."""

from collections.abc import Sequence
from typing import Any

from ..core.blocked_jobs import OnFailed, check_on_failed
from ..errors import UsageError
from ..store.flow_types import Dependency
from .batch import Batch
from .handle import JobHandle
from .spec import KindSpec

Needed = JobHandle[Any] | Batch
"""Something that a job can wait for."""


def dependencies(after: Sequence[Needed], on_failed: OnFailed) -> tuple[Dependency, ...]:
    """Return what a job waits for. `UsageError` if it is something else than handles and batches."""
    check_on_failed(on_failed)
    if not isinstance(after, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise UsageError(f"after is {after!r}: give a list of job handles and batches.")
    found: dict[str, Dependency] = {}
    for each in after:
        if not isinstance(each, JobHandle | Batch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"after contains {each!r}: give job handles and batches.")
        found[each.id] = Dependency(each.id, isinstance(each, Batch), on_failed)
    return tuple(found.values())


def check_cancellable(spec: KindSpec, after: Sequence[Dependency]) -> None:
    """Refuse a dependency whose failure would cancel the job, if the lifecycle does not allow that."""
    lifecycle = spec.lifecycle
    if any(each.on_failed == "cancel" for each in after) and lifecycle.target(lifecycle.initial, "cancel") is None:
        raise UsageError(
            f"{spec.name} cannot be cancelled when a dependency fails: its lifecycle {lifecycle.name} has no `cancel` "
            f"transition from {lifecycle.initial}. Add one, or pass on_failed='run' or on_failed='hold'."
        )
