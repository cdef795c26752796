"""The final counts of the demo, read from the database at the end."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...app import App
from ...core.job import AuditEntry, Job
from ...operate.verify import Report
from .. import output
from ..verify_command import summarize
from .demo_app import Case, Effects, effects

JOBS = 40
KILLED = 6
FROZEN = 2
MOST = 1000


@dataclass(frozen=True)
class Summary:
    """The counts that the demo prints at the end."""

    jobs: int
    succeeded: int
    unexpected: int
    """Jobs that did not end in the expected state."""
    recovered: int
    refused: int
    attempted: int
    effects: Effects
    report: Report

    @property
    def clean(self) -> bool:
        once = (
            self.effects == Effects(applied=self.succeeded, doubled=0)
            and self.attempted == self.succeeded + self.refused
        )
        return (
            self.report.ok and once and (self.unexpected, self.recovered, self.refused) == (0, KILLED + FROZEN, FROZEN)
        )


def count_results(app: App, cases: Mapping[str, Case]) -> Summary:
    """Count the results. `cases` has the expected final state of each job in step 4."""
    jobs = app.jobs(limit=MOST)
    entries = [entry for job in jobs for entry in app.history(job.id)]
    commits = sum(entry.n == 0 and entry.event == "succeed" for entry in entries)
    refusals = len(refused(entries))
    return Summary(
        jobs=len(jobs),
        succeeded=sum(job.phase == "succeeded" for job in jobs),
        unexpected=sum(job.state != _end(job, cases) for job in jobs),
        recovered=sum(job.phase == "succeeded" and job.lease_losses > 0 for job in jobs),
        refused=refusals,
        attempted=commits + refusals,
        effects=effects(app),
        report=app.verify(),
    )


def _end(job: Job, cases: Mapping[str, Case]) -> str:
    return cases[job.id].end if job.id in cases else "SUCCEEDED"


def refused(entries: list[AuditEntry]) -> list[AuditEntry]:
    """Return the entries that record a refused stale worker."""
    return [entry for entry in entries if entry.n > 0 and entry.event == "refused"]


def ends(app: App) -> str:
    """Summarize how the other jobs ended."""
    counts = Counter(job.state.lower().replace("_", " ") for job in app.jobs(limit=MOST) if job.phase != "succeeded")
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def last_screen(result: Summary, others: str, next_command: str, leftover: str) -> None:
    """Print the final counts."""
    output.print_line()
    output.print_fields(
        (
            ("jobs", f"{result.jobs} enqueued, {result.succeeded} succeeded; as expected, {others}"),
            ("killed", f"1 worker by kill -9, with {KILLED} running jobs"),
            ("recovered", f"{result.recovered} jobs whose lease expired ran again and succeeded"),
            ("refused", f"{result.refused} commits of a frozen worker that resumed too late"),
            (
                "effects",
                f"{result.attempted} attempted, {result.effects.applied} applied, {result.effects.doubled} doubled",
            ),
            ("verify", summarize(result.report)),
            ("try next", next_command),
            ("left", leftover),
        )
    )
