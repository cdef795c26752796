"""The options `retention` and `archive` of an app, checked."""

from collections.abc import Mapping
from typing import Literal

from ..core.clock import Seconds, seconds
from ..core.job import Phase
from ..errors import UsageError
from .audit_retention import Archive, AuditRetention
from .prune import RETENTION

Retained = Literal["succeeded", "failed", "audit"]


def retention_of(given: Mapping[Retained, Seconds | None]) -> dict[Phase, float]:
    """Return the age in seconds at which jobs are deleted, by phase."""
    jobs: dict[Phase, Seconds | None] = {
        **RETENTION,
        **{name: age for name, age in given.items() if name != "audit"},
    }
    for phase in jobs:
        if phase not in ("succeeded", "failed"):
            raise UsageError(
                f"retention has an unknown key {phase!r}. The keys are succeeded and failed (the age at which jobs are "
                "deleted) and audit (the age at which the history of deleted jobs is archived)."
            )
    return {phase: seconds(age, f"retention of {phase}") for phase, age in jobs.items() if age is not None}


def audit_retention_of(age: Seconds | None, archive: Archive | None) -> AuditRetention | None:
    """Return the retention of history; None if history is kept."""
    if (age is None) != (archive is None):
        raise UsageError(
            "retention['audit'] and archive= belong together: history is deleted only after archive= has stored it "
            "elsewhere. Give both, or run: interlock audit archive."
        )
    return None if age is None or archive is None else AuditRetention(seconds(age, "retention of audit"), archive)
