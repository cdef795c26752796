"""Lifecycles: state machines whose transitions are labelled with the engine's events."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from typing_extensions import override

from ..errors import LifecycleError
from .job import Phase
from .lifecycle_checks import CHECKS, EVENTS
from .machine import Arrow, Machine
from .mermaid import Drawing

BUILTIN = ("standard", "state_model", "task")

_TAKES = ("cancel", "expire", "reject")


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of a job's state that the database accepts, and by how much `jobs.attempt` and `jobs.version` grow."""

    source: str
    event: str
    """The event; "retry+claim" for a claim of a job that rests after a failure."""
    target: str
    attempts: int
    arrows: int


class Lifecycle(Machine):
    """The states and transitions of a kind of job. `LifecycleError` if it can never work."""

    waiting: frozenset[str]
    """States in which a job may wait for a claim: the initial one, resting ones, and every target of `retry` and
    `lose`.
    """
    resting: frozenset[str]
    """States entered by `fail` that have exits: a failed job waits there for its retry."""
    working: frozenset[str]
    """States in which a job may run."""
    successes: frozenset[str]
    digest: str
    """A hash of the initial state and the transitions, equal on every machine."""
    warnings: tuple[str, ...]
    """Sentences about a lifecycle that works, but in a way that may surprise."""

    @classmethod
    def builtin(cls, name: str) -> "Lifecycle":
        """A lifecycle that ships with Interlock: `standard`, `state_model` or `task`.

        `LifecycleError` for any other name.
        """
        return builtin(name)

    @override
    def _declare(self, name: str, drawing: Drawing) -> None:
        super()._declare(name, drawing)
        self._arrows = {(arrow.source, arrow.event): arrow for arrow in self.arrows if arrow.event != "advance"}
        self._advances = {(arrow.source, arrow.target): arrow for arrow in self.arrows if arrow.event == "advance"}
        self.resting = self.targets("fail") - self.finals
        self.waiting = frozenset({self.initial}) | self.resting | self.targets("retry", "lose")
        self.successes = self.targets("succeed")
        self.working = self._closure({self._claimed(state) for state in self.waiting}, ("start", "advance"))
        self._lines = drawing.states
        for check in CHECKS:
            for sentence, line in check(self):
                drawing.refuse(sentence, line)
        arrows = sorted((arrow.source, arrow.event, arrow.target) for arrow in self.arrows)
        self.digest = hashlib.sha256(json.dumps([self.initial, arrows], separators=(",", ":")).encode()).hexdigest()
        self.warnings = tuple(
            f"{self.name}: a stopping worker must wait for a job in {state}, since no `lose`, no `retry` and no `fail` "
            "to a resting state leaves it."
            for state in self.states
            if state in self.working and self.return_path(state, "lose", "retry") is None
        )

    @override
    @staticmethod
    def _label(label: str) -> tuple[str, str]:
        event, _, note = label.partition(" ")
        return event.rstrip(",;:."), note

    # ------------------------------------------------------------ queries
    def arrow(self, state: str, event: str) -> Arrow | None:
        """The transition for `event` from `state`; None if it is not allowed. For `advance`, use `advance`."""
        return self._arrows.get((state, event))

    def target(self, state: str, event: str) -> str | None:
        """The state to which `event` leads from `state`; None if it is not allowed. For `advance`, use `advances`."""
        arrow = self.arrow(state, event)
        return arrow.target if arrow else None

    def advance(self, state: str, stage: str) -> Arrow | None:
        """The transition by which a job in `state` advances to `stage`; None if it is not allowed."""
        return self._advances.get((state, stage))

    def advances(self, state: str) -> frozenset[str]:
        """The stages to which a job in `state` may advance."""
        return frozenset(target for source, target in self._advances if source == state)

    def targets(self, *events: str) -> frozenset[str]:
        """The states to which any of these events leads."""
        return frozenset(arrow.target for arrow in self.arrows if arrow.event in events)

    def claim_path(self, state: str) -> tuple[Arrow, ...] | None:
        """The transitions of a claim from `state`: none without a `claim`, two (`retry`, `claim`) from a resting state.

        None if no job waits in that state.
        """
        if state not in self.waiting:
            return None
        path: list[Arrow] = []
        if state in self.resting and (retry := self.arrow(state, "retry")):
            path.append(retry)
        if claim := self.arrow(path[-1].target if path else state, "claim"):
            path.append(claim)
        return tuple(path)

    def retryable(self, state: str) -> bool:
        """Whether an error in this state may be retried: the lifecycle has a `retry`, or jobs may wait in the state."""
        return bool(self.targets("retry")) or state in self.waiting

    def return_path(self, state: str, *events: str) -> tuple[Arrow, ...] | None:
        """The transitions by which a job that runs in `state` returns to a waiting state; None if it cannot return.

        In this order: the first of `events` that is allowed; no transition, if jobs may wait in `state`; a `fail` to a
        resting state.
        """
        for event in events:
            if arrow := self.arrow(state, event):
                return (arrow,)
        if state in self.waiting:
            return ()
        fail = self.arrow(state, "fail")
        return (fail,) if fail and fail.target in self.resting else None

    def phases(self, state: str) -> tuple[Phase, ...]:
        """The phases that a job in this state may have; none if the lifecycle has no such state."""
        if state in self.finals:
            return ("succeeded",) if state in self.successes else ("failed",)
        phases: list[Phase] = []
        if state in self.waiting:
            phases.append("pending")
        if state in self.working:
            phases.append("running")
        return tuple(phases)

    def state_changes(self) -> tuple[StateChange, ...]:
        """Every change of a job's state that a claim, a move or a take may make."""
        claims = (self.claim_path(state) for state in self.states)
        state_changes = [
            StateChange(path[0].source, "+".join(arrow.event for arrow in path), path[-1].target, 1, len(path))
            for path in claims
            if path
        ]
        for arrow in self.arrows:
            if arrow.event in _TAKES and arrow.source in self.waiting:
                state_changes.append(StateChange(arrow.source, arrow.event, arrow.target, 1, 1))
            if self._allowed_while_running(arrow):
                state_changes.append(StateChange(arrow.source, arrow.event, arrow.target, 0, 1))
        return tuple(state_changes)

    def _allowed_while_running(self, arrow: Arrow) -> bool:
        """Whether the worker of a running job may take this transition, alone or after one that returns the job."""
        if arrow.event in ("claim", "expire"):
            return False
        return (
            arrow.event == "bury"
            or arrow.source in self.working
            or (arrow.event == "cancel" and arrow.source in self._cancelled_on_return())
        )

    def _cancelled_on_return(self) -> frozenset[str]:
        """The waiting states to which a worker returns a job before it cancels it.

        The worker does so if `cancel` is not allowed from the state in which the job runs.
        """
        uncancellable = [state for state in self.working if not self.arrow(state, "cancel")]
        returns = (("retry",), ("lose", "retry"))
        paths = [self.return_path(state, *events) for state in uncancellable for events in returns]
        return frozenset(path[-1].target for path in paths if path)

    def differences(self, pairs: Iterable[tuple[str, str]], allow: Iterable[tuple[str, str]] = ()) -> list[str]:
        """The differences between the (source, target) pairs of a document and the lifecycle, one sentence each.

        Labels are not compared, and pairs in `allow` may differ.
        """
        documented, mine, accepted = frozenset(pairs), self.pairs(), frozenset(allow)
        sentences = [
            f"The document has {source} --> {target}; the lifecycle {self.name} does not."
            for source, target in sorted(documented - mine - accepted)
        ]
        sentences += [
            f"The lifecycle {self.name} has {source} --> {target}; the document does not."
            for source, target in sorted(mine - documented - accepted)
        ]
        return sentences

    def line(self, state: str) -> int | None:
        """The line on which the state first appears, if it was read from a diagram."""
        return self._lines.get(state)

    # ------------------------------------------------------------ derived sets
    def _claimed(self, state: str) -> str:
        path = self.claim_path(state)
        return path[-1].target if path else state

    def _closure(
        self, states: Iterable[str], events: Iterable[str] = EVENTS, *, backwards: bool = False
    ) -> frozenset[str]:
        """The states that these events reach from `states`; `backwards`, the states from which they reach them."""
        steps = [
            (arrow.target, arrow.source) if backwards else (arrow.source, arrow.target)
            for arrow in self.arrows
            if arrow.event in events
        ]
        reached, new = frozenset[str](), frozenset(states)
        while new:
            reached |= new
            new = frozenset(target for source, target in steps if source in new) - reached
        return reached

    def reachable(self) -> frozenset[str]:
        """The states that a job can reach."""
        return self._closure({self.initial})

    def ending(self) -> frozenset[str]:
        """The states from which a final state can be reached."""
        return self._closure(self.finals, backwards=True)


@cache
def builtin(name: str) -> Lifecycle:
    """A lifecycle that ships with the engine: `standard`, `state_model` or `task`."""
    if name not in BUILTIN:
        raise LifecycleError(
            f"There is no built-in lifecycle {name}: choose {', '.join(BUILTIN)}, or declare or load your own."
        )
    document = files("interlock.core") / "builtin" / f"{name}.md"
    return Lifecycle.from_markdown(name, document.read_text(encoding="utf-8"), origin=document.name)
