"""What the demo comes to: counted in the database when all is over, not while it went on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...app import App
from ...job import AuditEntry, Job
from ...verify import Report
from .. import screen
from ..verify import verdict
from .program import Effects, Plot, effects

JOBS = 40
KILLED = 6
FROZEN = 2
MOST = 1000


@dataclass(frozen=True)
class Tally:
    """What the last screen says."""

    jobs: int
    succeeded: int
    astray: int
    """Jobs that did not end where they should have."""
    recovered: int
    refused: int
    asked: int
    effects: Effects
    report: Report

    @property
    def clean(self) -> bool:
        once = self.effects == Effects(applied=self.succeeded, doubled=0) and self.asked == self.succeeded + self.refused
        return self.report.ok and once and (self.astray, self.recovered, self.refused) == (0, KILLED + FROZEN, FROZEN)


def tally(app: App, plots: Mapping[str, Plot]) -> Tally:
    """Count. `plots` says where the jobs of the second half should have ended; every charge should have succeeded."""
    jobs = app.jobs(limit=MOST)
    told = [entry for job in jobs for entry in app.history(job.id)]
    commits = sum(entry.n == 0 and entry.event == "succeed" for entry in told)
    refusals = len(refused(told))
    return Tally(
        jobs=len(jobs), succeeded=sum(job.phase == "succeeded" for job in jobs), astray=sum(job.state != _end(job, plots) for job in jobs),
        recovered=sum(job.phase == "succeeded" and job.lease_losses > 0 for job in jobs), refused=refusals, asked=commits + refusals,
        effects=effects(app), report=app.verify())


def _end(job: Job, plots: Mapping[str, Plot]) -> str:
    return plots[job.id].end if job.id in plots else "SUCCEEDED"


def refused(told: list[AuditEntry]) -> list[AuditEntry]:
    """The refusals among what an audit says."""
    return [entry for entry in told if entry.n > 0 and entry.event == "refused"]


def ends(app: App) -> str:
    """How jobs ended that did not succeed."""
    counts = Counter(job.state.lower().replace("_", " ") for job in app.jobs(limit=MOST) if job.phase != "succeeded")
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def last_screen(result: Tally, others: str, next_command: str, leftover: str) -> None:
    """Eight lines."""
    screen.say()
    screen.pairs((
        ("jobs", f"{result.jobs} enqueued, {result.succeeded} succeeded; as meant, {others}"),
        ("killed", f"1 worker by kill -9, with {KILLED} jobs in hand"),
        ("recovered", f"{result.recovered} jobs whose lease ran out were run again, and succeeded"),
        ("refused", f"{result.refused} commits of a frozen worker that woke up too late"),
        ("effects", f"{result.asked} asked, {result.effects.applied} applied, {result.effects.doubled} doubled"),
        ("verify", verdict(result.report)),
        ("try next", next_command),
        ("left", leftover),
    ))
