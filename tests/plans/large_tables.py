"""Half a million jobs that every query must skip, in tables that were never analysed."""

from dataclasses import dataclass
from datetime import timedelta

from tests.kit import EPOCH, Raw

PAST, FUTURE = EPOCH - timedelta(days=300), EPOCH + timedelta(days=300)


@dataclass(frozen=True)
class Group:
    """Many jobs in the same situation.

    Pending ones come before the due jobs in claim order, since their priority is higher.
    """

    kind: str
    lifecycle: str
    state: str
    phase: str
    priority: int = 9
    count: int = 100_000
    due: str = "{past}"
    expires: str = "NULL"
    finished: str = "NULL"
    status: str | None = None
    """The status of their only execution, if they have one."""
    lease: str = "{past}"
    ended_by: str | None = None
    losses: int = 0
    """How many leases each job has lost."""


CROWD = [
    Group("mail", "standard", "SUCCEEDED", "succeeded", finished="{past}", status="DONE", ended_by="succeed"),
    Group("mail", "standard", "PENDING", "pending", due="{future}"),
    Group("chore", "task", "pending", "pending"),
    Group("paint", "image", "failed", "pending", due="{future}", status="ABORTED", ended_by="fail"),
    Group("mail", "standard", "PENDING", "pending", expires="{past}"),
    # In addition: jobs that other workers run, and a dead worker's jobs of a kind that this maintenance does not know.
    Group("mail", "standard", "RUNNING", "running", count=20_000, status="IN_PROGRESS", lease="{future}"),
    Group("chore", "task", "running", "running", count=20_000, status="IN_PROGRESS"),
    # Jobs after a mass of crashes.
    Group("deliver", "delivery", "QUEUED", "pending", count=10_000, losses=1),
]

_JOBS = """
INSERT INTO {jobs} (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, version, attempt, tries, tries_left, lease_losses, due_at,
  expires_at, finished_at, created_at, updated_at, payload)
SELECT %(id)s, '%(kind)s', 'default', %(priority)s, '%(lifecycle)s', 1, '%(state)s', '%(phase)s', 1, %(attempt)s, 3, 3, %(losses)s, %(due)s, %(expires)s,
  %(finished)s, %(past)s, %(past)s, '[]' FROM %(numbers)s"""
_AUDIT = """
INSERT INTO {audit} (job_id, version, n, at, event, to_state, actor) SELECT %(id)s, 0, 0, %(past)s, 'enqueue', '%(state)s', 'app' FROM %(numbers)s"""
_EXECUTIONS = """
INSERT INTO {executions} (job_id, attempt, holder, status, kind, lease_owner, lease_expires_at, heartbeat_at, leased_at, started_at, committed_at, finished_at,
  state, ended_by)
SELECT %(id)s, 1, 1, '%(status)s', '%(kind)s', 'another', %(lease)s, %(past)s, %(past)s, %(past)s, %(committed)s, %(ended)s, '%(state)s', %(ended_by)s
FROM %(numbers)s"""


def crowd(raw: Raw) -> None:
    """Load the groups without triggers."""
    times = {"past": raw.time(PAST), "future": raw.time(FUTURE)}
    with raw.unchecked():
        for number, group in enumerate(CROWD, start=1):
            given = times | {
                "id": raw.numbered(number),
                "numbers": raw.numbers(group.count),
                "kind": group.kind,
                "lifecycle": group.lifecycle,
                "state": group.state,
                "phase": group.phase,
                "priority": group.priority,
                "attempt": int(group.status is not None),
                "status": group.status,
                "losses": group.losses,
                "ended_by": f"'{group.ended_by}'" if group.ended_by else "NULL",
                "ended": times["past"] if group.ended_by else "NULL",
                "committed": times["past"] if group.status == "DONE" else "NULL",
                **{name: getattr(group, name).format(**times) for name in ("due", "expires", "finished", "lease")},
            }
            for statement in (_JOBS, _AUDIT, *([_EXECUTIONS] if group.status else [])):
                raw.run(raw.words(statement) % given, {})
