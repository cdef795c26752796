"""Helpers of the scenarios: a laboratory with their kinds, and a check that the audit is complete."""

from interlock.core.job import AuditEntry
from tests.crash import misbehaving_app
from tests.crash.lab import Lab


def equipped(lab: Lab) -> Lab:
    """Return the laboratory with the kinds of the scenarios."""
    lab.app.close()
    lab.app = misbehaving_app.build(lab.setting)
    lab.app.migrate()
    return lab


def until_begun(lab: Lab, *tags: str) -> None:
    lab.until(lambda: set(tags) <= set(lab.happened("prepare")), f"the handlers of {', '.join(tags)} have begun")


def audited(lab: Lab) -> None:
    """Check S7: the audit of each job has every attempt, transition and end, in order and without gaps, and `verify`
    finds no violation.
    """
    lab.check()
    for job in lab.app.jobs(limit=1000):
        arrows = [entry for entry in lab.app.history(job.id) if entry.n == 0]
        assert [entry.version for entry in arrows] == list(range(job.version + 1))
        assert arrows[-1].to_state == job.state
        for execution in lab.executions(job.id):
            own = [entry.event for entry in arrows if entry.attempt == execution.attempt]
            assert own[0] == "claim"
            assert own[-1] == execution.ended_by
            assert len(own) >= 2


def story(entries: list[AuditEntry]) -> list[tuple[str, str | None, int | None, str]]:
    """Return event, target state, attempt and actor of each entry."""
    return [
        (entry.event, entry.to_state, entry.attempt, entry.actor.partition("#")[0] + entry.actor.partition("/")[2])
        for entry in entries
    ]
