"""A model of a store: it applies moves to plain values and checks at every step what a database would refuse."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from interlock.core.job import AuditEntry, Execution, Job, Phase, Status
from interlock.core.lifecycle import Lifecycle, StateChange, builtin
from interlock.core.machine import Arrow
from interlock.core.projection import phase_of, project, replay
from interlock.core.transition import Move, Take

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENTS = Path(__file__).parent.parent / "lifecycles"

SIX: dict[str, Lifecycle] = {
    **{name: builtin(name) for name in ("standard", "state_model", "task")},
    **{name: Lifecycle.load(DOCUMENTS / f"{name}.md") for name in ("delivery", "download", "image")},
}


def make_job(
    lifecycle: Lifecycle,
    state: str | None = None,
    *,
    phase: Phase | None = None,
    tries_left: int = 3,
    asked: bool = False,
    tries: int = 3,
    lease_losses: int = 0,
) -> Job:
    state = lifecycle.initial if state is None else state
    return Job(
        id="job",
        kind="kind",
        queue="default",
        priority=0,
        lifecycle=lifecycle.name,
        lifecycle_version=1,
        state=state,
        phase=phase or phase_of(lifecycle, state, live=state in lifecycle.working),
        version=0,
        attempt=1,
        tries=tries,
        tries_left=tries_left,
        lease_losses=lease_losses,
        payload={},
        tags={},
        trace=None,
        result=None,
        last_error=None,
        due_at=NOW,
        expires_at=None,
        scheduled_for=None,
        created_at=NOW,
        updated_at=NOW,
        finished_at=None,
        idempotency_key=None,
        key_freed=False,
        unique_key=None,
        cancel_requested_at=NOW if asked else None,
        cancel_requested_by="operator:ann" if asked else None,
        cancel_reason="not needed" if asked else None,
        held_at=None,
        held_reason=None,
        redrive_of=None,
        root=None,
    )


def make_execution(state: str, status: Status, *, attempt: int = 1, ended_by: str | None = None) -> Execution:
    return Execution(
        job_id="job",
        attempt=attempt,
        holder=1,
        kind="kind",
        lease_owner="worker",
        lease_expires_at=NOW,
        heartbeat_at=NOW,
        status=status,
        state=state,
        ended_by=ended_by,
        error=None,
        external_id=None,
        missing_since=None,
        next_check_at=None,
        progress=None,
        usage=None,
        result=None,
        leased_at=NOW,
        started_at=None,
        committed_at=None,
        finished_at=None,
    )


def make_entry(arrow: Arrow, version: int, *, n: int = 0, attempt: int = 1) -> AuditEntry:
    return AuditEntry("job", version, n, attempt, arrow.event, arrow.source, arrow.target, "worker", None, NOW)


@dataclass
class World:
    """One job, its executions and its audit."""

    lifecycle: Lifecycle
    job: Job
    executions: list[Execution] = field(default_factory=list[Execution])
    audit: list[AuditEntry] = field(default_factory=list[AuditEntry])
    used: set[Arrow] = field(default_factory=set[Arrow])
    state_changes: set[StateChange] = field(default_factory=set[StateChange])
    accepted: frozenset[StateChange] = frozenset()

    def __post_init__(self) -> None:
        self.accepted = self.accepted or frozenset(self.lifecycle.state_changes())

    @classmethod
    def new(cls, lifecycle: Lifecycle, *, tries: int = 3) -> "World":
        return cls(lifecycle, replace(make_job(lifecycle, phase="pending", tries_left=tries), attempt=0, tries=tries))

    def copy(self) -> "World":
        executions = [replace(execution) for execution in self.executions]
        return World(
            self.lifecycle,
            replace(self.job),
            executions,
            list(self.audit),
            self.used,
            self.state_changes,
            self.accepted,
        )

    @property
    def held(self) -> Execution | None:
        return self.executions[-1] if self.executions and self.executions[-1].live else None

    def claim(self) -> None:
        assert self.job.phase == "pending"
        path = self.lifecycle.claim_path(self.job.state)
        assert path is not None
        self.job.attempt += 1
        if path:
            self._change(
                StateChange(self.job.state, "+".join(arrow.event for arrow in path), path[-1].target, 1, len(path))
            )
        self._walk(path)
        self.job.phase = "running"
        self.executions.append(make_execution(self.job.state, "LEASED", attempt=self.job.attempt))
        self.check()

    def move(self, move: Move) -> None:
        held = self.held
        assert held is not None
        assert (held.attempt, held.holder, held.status, self.job.state) == (
            move.attempt,
            move.holder,
            move.from_status,
            move.source,
        )
        assert (move.ended_by is not None) == (move.to_status in ("DONE", "ABORTED"))
        assert len(move.path) <= 2
        for arrow in move.path:
            self._change(StateChange(arrow.source, arrow.event, arrow.target, 0, 1))
        # Between two transitions the job waits, except for external work that ended before it was seen to start.
        assert all(
            ("running" if arrow.event == "start" else "pending") in self.lifecycle.phases(arrow.target)
            for arrow in move.path[:-1]
        )
        assert (move.check_in is None) or (move.ended_by is None and move.to_status == "IN_PROGRESS")
        self._walk(move.path)
        assert self.job.state == move.state
        held.status, held.ended_by = move.to_status, move.ended_by
        held.state = move.path[-1].source if move.ended_by and move.path else move.state
        self.job.phase, self.job.tries_left = move.phase, move.tries_left
        self.check()

    def take(self, take: Take) -> None:
        assert (take.version, take.attempt, self.job.phase) == (self.job.version, self.job.attempt, "pending")
        self.job.attempt += 1
        self._change(StateChange(take.arrow.source, take.arrow.event, take.arrow.target, 1, 1))
        self._walk([take.arrow])
        self.job.phase = take.phase
        self.executions.append(
            make_execution(take.arrow.source, "ABORTED", attempt=self.job.attempt, ended_by=take.arrow.event)
        )
        self.check()

    def _change(self, change: StateChange) -> None:
        assert change in self.accepted
        self.state_changes.add(change)

    def _walk(self, path: Sequence[Arrow]) -> None:
        for arrow in path:
            assert arrow in self.lifecycle.arrows
            assert arrow.source == self.job.state
            self.job.state, self.job.version = arrow.target, self.job.version + 1
            self.audit.append(make_entry(arrow, self.job.version, attempt=self.job.attempt))
            self.used.add(arrow)

    def check(self) -> None:
        """Check what must hold after every step."""
        assert project(self.lifecycle, self.executions) == self.job.state
        assert self.job.phase in self.lifecycle.phases(self.job.state)
        assert self.job.phase == phase_of(self.lifecycle, self.job.state, live=self.held is not None)
        assert self.job.tries_left >= 0
        self.check_history()

    def check_history(self) -> None:
        replayed = replay(self.lifecycle, self.audit)
        assert (replayed.broken, replayed.state, replayed.version) == (None, self.job.state, self.job.version)


class Midway(World):
    """A world without the earlier history of its job."""

    def check_history(self) -> None:
        pass
