"""Verification: checks every stored job against every rule, in bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..core.job import AuditEntry, Execution, Job
from ..core.lifecycle import Lifecycle
from ..core.projection import phase_of, project, replay
from ..errors import NotFound
from ..store.contract import Store
from ..store.types import JobRecord

MOST = 1000
"""The most violations that a report lists. It only counts the others."""

_ENDS = ("succeed", "fail", "bury", "reject", "cancel", "expire")
_STAMPS = {
    "LEASED": (True, False, False, False),
    "IN_PROGRESS": (True, True, False, False),
    "COMMITTED": (True, True, True, False),
    "DONE": (True, True, True, True),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a job violates, and how."""

    rule: str
    job_id: str
    detail: str


@dataclass(slots=True)
class Report:
    """The result of a verification. It lists at most a thousand violations; `left_out` counts the rest."""

    ok: bool = True
    checked: int = 0
    violations: list[Violation] = field(default_factory=list[Violation])
    left_out: int = 0

    def add(self, violation: Violation) -> None:
        self.ok = False
        if len(self.violations) < MOST:
            self.violations.append(violation)
        else:
            self.left_out += 1


Found = Iterator[tuple[str, str]]
"""Pairs of a violated rule and a sentence about it."""


def verify(store: Store) -> Report:
    """Recompute every job's state from its executions and from its audit, and check every rule.

    It reads page by page and writes nothing. It does not check that keys are unique: the database's index ensures
    that, and a check here would need memory for every job.
    """
    report = Report()
    versions = Versions(store)
    for page in store.inspect.job_records():
        for record in page:
            report.checked += 1
            for rule, detail in check(record, versions):
                report.add(Violation(rule, record.job_id, detail))
    return report


class Versions:
    """The registered versions of each lifecycle, read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, dict[int, Lifecycle]] = {}

    def of(self, name: str, version: int) -> tuple[Lifecycle, list[Lifecycle]] | None:
        """This version and the list of all others: a job that was claimed under several has transitions of each."""
        if version not in self._known.get(name, {}):
            self._known[name] = dict(self._read(name))
        known = self._known[name]
        return (
            (known[version], [other for number, other in known.items() if number != version])
            if version in known
            else None
        )

    def _read(self, name: str) -> Iterator[tuple[int, Lifecycle]]:
        version = 1
        while True:
            try:
                yield version, self._store.registry.lifecycle(name, version)
            except NotFound:
                return
            version += 1


def check(record: JobRecord, versions: Versions) -> Found:
    """Yield every rule that one job violates."""
    job = record.job
    if job is None:
        yield from _gone(record.audit)
        return
    found = versions.of(job.lifecycle, job.lifecycle_version)
    if found is None:
        yield (
            "lifecycle",
            f"The job follows version {job.lifecycle_version} of {job.lifecycle}, which is not registered.",
        )
        return
    lifecycle, others = found
    yield from _job(job)
    yield from _executions(job, record.executions)
    yield from _projection(lifecycle, job, record.executions)
    yield from _audit(lifecycle, others, job, record.audit)
    for execution in record.executions:
        yield from _stamps(execution)


def _job(job: Job) -> Found:
    if job.ended != (job.finished_at is not None):
        yield "finished_at", f"The job is {job.phase} in {job.state}, but finished_at is {job.finished_at}."
    if job.tries < 1 or not 0 <= job.tries_left <= job.tries:
        rule = "tries must be at least 1, and tries_left between 0 and tries"
        yield "tries", f"The job has {job.tries_left} of {job.tries} tries left: {rule}."
    if job.held_at is not None and job.phase != "pending":
        yield "hold", f"The job is held, but it is {job.phase}: only a waiting job can be held."


def _executions(job: Job, executions: Sequence[Execution]) -> Found:
    committed = [one.attempt for one in executions if one.status in ("COMMITTED", "DONE")]
    live = [one.attempt for one in executions if one.live]
    attempts = sorted(one.attempt for one in executions)
    if len(committed) > 1:
        yield "INV_001", f"Attempts {committed} are all committed; at most one may be."
    elif committed and committed[0] != attempts[-1]:
        yield "INV_002", f"Attempt {attempts[-1]} came after attempt {committed[0]}, which is committed."
    if len(live) > 1:
        yield "one live execution", f"Attempts {live} are all live; at most one may be."
    if attempts != list(range(1, len(attempts) + 1)):
        yield "attempts", f"The job's attempts are {attempts}; they must count from 1 without a gap."
    if job.attempt != (attempts[-1] if attempts else 0):
        yield (
            "attempts",
            f"The job is at attempt {job.attempt}, but its last execution is {attempts[-1] if attempts else 'none'}.",
        )
    if job.ended and live:
        yield "one live execution", f"The job ended as {job.state}, but attempt {live[0]} is live."


def _projection(lifecycle: Lifecycle, job: Job, executions: Sequence[Execution]) -> Found:
    state = project(lifecycle, executions)
    if job.state != state:
        yield "projection", f"The job is in {job.state}, but its executions lead to {state}."
    phase = phase_of(lifecycle, job.state, live=any(one.live for one in executions))
    if job.phase != phase or phase not in lifecycle.phases(job.state):
        yield "phase", f"The job is {job.phase} in {job.state}, but its executions lead to {phase}."


def _audit(lifecycle: Lifecycle, others: Sequence[Lifecycle], job: Job, audit: Sequence[AuditEntry]) -> Found:
    if broken := _missing_enqueue(audit):
        yield "audit", broken
        return
    replayed = replay(lifecycle, audit, also=others)
    if replayed.broken:
        yield "INV_003", replayed.broken
    elif (replayed.state, replayed.version) != (job.state, job.version):
        yield (
            "audit",
            (
                f"The job is in {job.state} at version {job.version}, but its audit ends in {replayed.state} at "
                f"version {replayed.version}."
            ),
        )


def _gone(audit: Sequence[AuditEntry]) -> Found:
    """Check the audit of a deleted job: its entries follow from each other, and the last one ends the job.

    The audit does not name the lifecycle, so its transitions cannot be checked against one.
    """
    if broken := _missing_enqueue(audit):
        yield "audit", broken
        return
    arrows = [entry for entry in audit if entry.n == 0]
    for before, entry in pairwise(arrows):
        if (entry.version, entry.from_state) != (before.version + 1, before.to_state):
            yield (
                "audit",
                (
                    f"Version {entry.version} leaves {entry.from_state}, but version {before.version} before it led to "
                    f"{before.to_state}."
                ),
            )
    if arrows[-1].event not in _ENDS:
        yield (
            "retention",
            f"The job is deleted, but its last event, {arrows[-1].event} to {arrows[-1].to_state}, does not end a job.",
        )


def _missing_enqueue(audit: Sequence[AuditEntry]) -> str | None:
    first = next((entry for entry in audit if entry.n == 0), None)
    if first is None:
        return "The job's audit has no transition, not even its enqueue."
    if (first.version, first.event, first.from_state) != (0, "enqueue", None):
        return f"The job's audit begins with {first.event} at version {first.version}, not with enqueue at version 0."
    return None


def _stamps(execution: Execution) -> Found:
    stamps = (execution.leased_at, execution.started_at, execution.committed_at, execution.finished_at)
    which = f"Attempt {execution.attempt} is {execution.status}"
    # Check only which timestamps exist: the clock may be set back, so their order proves nothing.
    ended = execution.finished_at is not None and execution.ended_by is not None
    if execution.status == "ABORTED":
        if not ended or execution.committed_at is not None:
            yield (
                "stamps",
                (
                    f"{which}, so it needs an end and no commit, but it has ended_by {execution.ended_by} and the "
                    f"timestamps {stamps}."
                ),
            )
    elif tuple(stamp is not None for stamp in stamps) != _STAMPS[execution.status] or ended != (
        execution.status == "DONE"
    ):
        yield "stamps", f"{which}, but its timestamps or its ended_by do not fit that status."
