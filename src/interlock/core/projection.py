"""Projections: the state of a job, computed from its executions or from its audit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .job import AuditEntry, Execution, Phase
from .lifecycle import Lifecycle


def project(lifecycle: Lifecycle, executions: Sequence[Execution]) -> str:
    """The state of a job with these executions. It depends on the last attempt only.

    An execution stores the source state of `ended_by`: if a move failed and buried it, that is the resting state.
    """
    if not executions:
        return lifecycle.initial
    last = max(executions, key=lambda execution: execution.attempt)
    if last.live or last.ended_by is None:
        return last.state
    return lifecycle.target(last.state, last.ended_by) or last.state


def phase_of(lifecycle: Lifecycle, state: str, live: bool) -> Phase:
    """The phase of a job in this state; `live` says whether it has a live execution."""
    if state in lifecycle.finals:
        return "succeeded" if state in lifecycle.successes else "failed"
    return "running" if live else "pending"


@dataclass(frozen=True, slots=True)
class Replay:
    """The state at the end of an audit.

    If an entry does not follow from the one before, `state` and `version` are those before it, and `broken` says why.
    """

    state: str
    version: int
    broken: str | None = None


def replay(lifecycle: Lifecycle, entries: Iterable[AuditEntry], *, also: Sequence[Lifecycle] = ()) -> Replay:
    """Follow a job's history, in order, from its initial state. Notes are skipped.

    `also` has the other versions of the lifecycle: a job that was claimed under several has transitions of each.
    """
    versions = (lifecycle, *also)
    arrows = [entry for entry in entries if entry.n == 0]
    state, version, attempt = lifecycle.initial, 0, 0
    if arrows and arrows[0].from_state is None:
        birth = arrows.pop(0)
        if birth.version != 0 or birth.to_state not in {each.initial for each in versions}:
            return Replay(
                state,
                version,
                f"It starts in {birth.to_state} at version {birth.version}; a job starts in {lifecycle.initial} at "
                "version 0.",
            )
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
        return f"The transition {what} follows version {version}: an entry is missing or doubled."
    if entry.from_state != state:
        return f"The transition {what} leaves {entry.from_state}, but the job was in {state}."
    if not any(
        (arrow.source, arrow.event, arrow.target) == (entry.from_state, entry.event, entry.to_state)
        for each in versions
        for arrow in each.arrows
    ):
        return f"The transition {what} is not allowed by the lifecycle {versions[0].name}."
    if entry.attempt is not None and entry.attempt < attempt:
        return f"The transition {what} belongs to attempt {entry.attempt}, but follows one of attempt {attempt}."
    return None
