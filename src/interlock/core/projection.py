"""Projections: what a job's executions, and its audit, say that its state must be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .job import AuditEntry, Execution, Phase
from .lifecycle import Lifecycle


def project(lifecycle: Lifecycle, executions: Sequence[Execution]) -> str:
    """The state of a job that has these executions: a function of the last attempt alone.

    An execution's `state` is the one that `ended_by` departs from, so a failure that was buried at once has the resting state there.
    """
    if not executions:
        return lifecycle.initial
    last = max(executions, key=lambda execution: execution.attempt)
    if last.live or last.ended_by is None:
        return last.state
    return lifecycle.target(last.state, last.ended_by) or last.state


def phase_of(lifecycle: Lifecycle, state: str, live: bool) -> Phase:
    """The phase of a job in this state, where `live` says whether an execution of it is."""
    if state in lifecycle.finals:
        return "succeeded" if state in lifecycle.successes else "failed"
    return "running" if live else "pending"


@dataclass(frozen=True, slots=True)
class Replay:
    """Where the arrows of an audit lead. If a link is broken, `state` and `version` are those before it and `broken` says what is wrong."""

    state: str
    version: int
    broken: str | None = None


def replay(lifecycle: Lifecycle, entries: Iterable[AuditEntry], *, also: Sequence[Lifecycle] = ()) -> Replay:
    """Walk a job's history, in order, from its initial state; remarks are skipped.

    `also` are other versions of the lifecycle: a job that lives through a change of it has arrows of both.
    """
    versions = (lifecycle, *also)
    arrows = [entry for entry in entries if entry.n == 0]
    state, version, attempt = lifecycle.initial, 0, 0
    if arrows and arrows[0].from_state is None:
        birth = arrows.pop(0)
        if birth.version != 0 or birth.to_state not in {each.initial for each in versions}:
            return Replay(state, version, f"It begins in {birth.to_state} at version {birth.version}; a job begins in {lifecycle.initial} at version 0.")
        state = birth.to_state or state
    elif arrows and arrows[0].from_state in {each.initial for each in versions}:
        state = arrows[0].from_state or state
    for entry in arrows:
        broken = _broken(versions, entry, state, version, attempt)
        if broken:
            return Replay(state, version, broken)
        state, version, attempt = entry.to_state or state, entry.version, entry.attempt or attempt
    return Replay(state, version)


def _broken(versions: Sequence[Lifecycle], entry: AuditEntry, state: str, version: int, attempt: int) -> str | None:
    what = f"{entry.from_state} --> {entry.to_state}: {entry.event} (version {entry.version})"
    if entry.version != version + 1:
        return f"The arrow {what} follows version {version}; between them something is missing or doubled."
    if entry.from_state != state:
        return f"The arrow {what} leaves {entry.from_state}, but the job was in {state}."
    if not any((arrow.source, arrow.event, arrow.target) == (entry.from_state, entry.event, entry.to_state) for each in versions for arrow in each.arrows):
        return f"The arrow {what} is not drawn in {versions[0].name}."
    if entry.attempt is not None and entry.attempt < attempt:
        return f"The arrow {what} is of attempt {entry.attempt}, after one of attempt {attempt}."
    return None
