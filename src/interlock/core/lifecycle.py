"""Lifecycles: the machine of a kind of job. Its labels are the engine's events, and what could never work is refused when it is declared."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from typing_extensions import override

from .errors import LifecycleError
from .job import Phase
from .machine import Arrow, Machine
from .mermaid import Drawing

EVENTS = ("claim", "start", "advance", "succeed", "retry", "lose", "fail", "bury", "reject", "cancel", "expire")
BUILTIN = ("standard", "state_model", "task")

_ENDS = ("succeed", "bury", "reject", "cancel", "expire")
_TAKES = ("cancel", "expire", "reject")


@dataclass(frozen=True, slots=True)
class Hop:
    """One change of a job's state that the database accepts, with how much `jobs.attempt` and `jobs.version` grow in it."""

    source: str
    event: str
    """The arrow's event; "retry+claim" for the claim that ends a rest."""
    target: str
    attempts: int
    arrows: int


class Lifecycle(Machine):
    """A machine that the engine can carry a job through, to an end, whatever happens on the way."""

    waiting: frozenset[str]
    """States in which a job may wait for a claim: the initial one, resting ones, and every target of `retry` and `lose`."""
    resting: frozenset[str]
    """States entered by `fail` that have exits: a failure that waits out its backoff."""
    working: frozenset[str]
    """States in which a job may be held."""
    successes: frozenset[str]
    digest: str
    """The same for every lifecycle with the same initial state and arrows, on every machine."""
    warnings: tuple[str, ...]
    """What works, but may surprise; a sentence each."""

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
        for check in _CHECKS:
            for sentence, line in check(self):
                drawing.refuse(sentence, line)
        drawn = sorted((arrow.source, arrow.event, arrow.target) for arrow in self.arrows)
        self.digest = hashlib.sha256(json.dumps([self.initial, drawn], separators=(",", ":")).encode()).hexdigest()
        self.warnings = tuple(
            f"{self.name}: a job in {state} cannot be released early, for want of `lose`, `retry` or a resting `fail`: a stopping worker waits for it."
            for state in self.states if state in self.working and self.way_back(state, "lose", "retry") is None)

    @override
    @staticmethod
    def _label(label: str) -> tuple[str, str]:
        event, _, note = label.partition(" ")
        return event.rstrip(",;:."), note

    # ------------------------------------------------------------ asking
    def arrow(self, state: str, event: str) -> Arrow | None:
        """The arrow that `event` walks from `state`; None where it is not drawn. Not for `advance`, which needs a stage."""
        return self._arrows.get((state, event))

    def target(self, state: str, event: str) -> str | None:
        """Where `event` leads from `state`; None where it is not drawn. Not for `advance`, which may lead to several."""
        arrow = self.arrow(state, event)
        return arrow.target if arrow else None

    def advance(self, state: str, stage: str) -> Arrow | None:
        """The arrow by which a job in `state` advances to `stage`; None where it is not drawn."""
        return self._advances.get((state, stage))

    def advances(self, state: str) -> frozenset[str]:
        """The stages to which a job in `state` may advance."""
        return frozenset(target for source, target in self._advances if source == state)

    def targets(self, *events: str) -> frozenset[str]:
        """The states that any of these events leads to."""
        return frozenset(arrow.target for arrow in self.arrows if arrow.event in events)

    def claim_path(self, state: str) -> tuple[Arrow, ...] | None:
        """The arrows that a claim walks from `state`: none where `claim` is not drawn, two where it ends a rest. None if no job waits there."""
        if state not in self.waiting:
            return None
        path: list[Arrow] = []
        if state in self.resting and (retry := self.arrow(state, "retry")):
            path.append(retry)
        if claim := self.arrow(path[-1].target if path else state, "claim"):
            path.append(claim)
        return tuple(path)

    def retryable(self, state: str) -> bool:
        """May an error in this state be tried again at all? Where some `retry` is drawn, or where the job runs in a state it can wait in."""
        return bool(self.targets("retry")) or state in self.waiting

    def way_back(self, state: str, *events: str) -> tuple[Arrow, ...] | None:
        """The arrows by which a job held in `state` comes to wait again; None if there is no way.

        The first of `events` that is drawn; else none, where the job can wait in the state it is in; else a `fail` that leads to a rest.
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

    def hops(self) -> tuple[Hop, ...]:
        """Every change of a job's state that a claim, a move or a take may make, and no other."""
        claims = (self.claim_path(state) for state in self.states)
        hops = [Hop(path[0].source, "+".join(arrow.event for arrow in path), path[-1].target, 1, len(path)) for path in claims if path]
        for arrow in self.arrows:
            if arrow.event in _TAKES and arrow.source in self.waiting:
                hops.append(Hop(arrow.source, arrow.event, arrow.target, 1, 1))
            if self._held_walks(arrow):
                hops.append(Hop(arrow.source, arrow.event, arrow.target, 0, 1))
        return tuple(hops)

    def _held_walks(self, arrow: Arrow) -> bool:
        """May the holder of a running job walk this arrow, alone or after the one that led the job to where it would wait?"""
        if arrow.event in ("claim", "expire"):
            return False
        return arrow.event == "bury" or arrow.source in self.working or (arrow.event == "cancel" and arrow.source in self._cancelled_on_the_way())

    def _cancelled_on_the_way(self) -> frozenset[str]:
        """The waiting states out of which a holder cancels: where a job that was asked to stop comes back to, from a state that draws no `cancel` itself."""
        held = [state for state in self.working if not self.arrow(state, "cancel")]
        paths = [self.way_back(state, *events) for state in held for events in (("retry",), ("lose", "retry"))]
        return frozenset(path[-1].target for path in paths if path)

    def differences(self, pairs: Iterable[tuple[str, str]], allow: Iterable[tuple[str, str]] = ()) -> list[str]:
        """How a document that joins these pairs of states differs from the lifecycle, a sentence each. Labels do not count, nor does what `allow` accepts."""
        drawn, mine, accepted = frozenset(pairs), self.pairs(), frozenset(allow)
        sentences = [f"The document draws {source} --> {target}; the lifecycle {self.name} does not." for source, target in sorted(drawn - mine - accepted)]
        sentences += [f"The lifecycle {self.name} draws {source} --> {target}; the document does not." for source, target in sorted(mine - drawn - accepted)]
        return sentences

    def line(self, state: str) -> int | None:
        """The line on which the state first appears, if it was read from a diagram."""
        return self._lines.get(state)

    # ------------------------------------------------------------ deriving
    def _claimed(self, state: str) -> str:
        path = self.claim_path(state)
        return path[-1].target if path else state

    def _closure(self, states: Iterable[str], events: Iterable[str] = EVENTS, *, backwards: bool = False) -> frozenset[str]:
        """All states that these events reach from `states`, or, backwards, from which they reach one of them."""
        steps = [(arrow.target, arrow.source) if backwards else (arrow.source, arrow.target) for arrow in self.arrows if arrow.event in events]
        reached, new = frozenset[str](), frozenset(states)
        while new:
            reached |= new
            new = frozenset(target for source, target in steps if source in new) - reached
        return reached

    def reachable(self) -> frozenset[str]:
        """The states that some job may come to."""
        return self._closure({self.initial})

    def ending(self) -> frozenset[str]:
        """The states from which some way leads to a final one."""
        return self._closure(self.finals, backwards=True)


@cache
def builtin(name: str) -> Lifecycle:
    """A lifecycle that ships with the engine: `standard`, `state_model` or `task`."""
    if name not in BUILTIN:
        raise LifecycleError(f"There is no built-in lifecycle {name}: there are {', '.join(BUILTIN)}. Declare your own, or load it from its document.")
    document = files("interlock") / "lifecycles" / f"{name}.md"
    return Lifecycle.from_markdown(name, document.read_text(encoding="utf-8"), origin=document.name)


# ---------------------------------------------------------------- what is refused, and why
Complaints = Iterator[tuple[str, int | None]]


def _unknown_event(lifecycle: Lifecycle) -> Complaints:
    for arrow in lifecycle.arrows:
        if arrow.event not in EVENTS:
            what = f"starts its label with {arrow.event!r}, which is no event" if arrow.event else "has no event"
            yield f"the arrow {arrow.source} --> {arrow.target} {what}: write one of {', '.join(EVENTS)}.", arrow.line


def _to_itself(lifecycle: Lifecycle) -> Complaints:
    for arrow in lifecycle.arrows:
        if arrow.source == arrow.target:
            yield f"the arrow {arrow} leads from {arrow.source} to itself and says nothing: leave it out.", arrow.line


def _ambiguous(lifecycle: Lifecycle) -> Complaints:
    seen: dict[tuple[str, str], Arrow] = {}
    for arrow in lifecycle.arrows:
        first = seen.setdefault((arrow.source, arrow.event), arrow)
        if arrow.event != "advance" and first is not arrow:
            where = f" (line {first.line})" if first.line is not None else ""
            yield f"state {arrow.source} draws `{arrow.event}` to {arrow.target} and to {first.target}{where}: only `advance` may do so.", arrow.line


def _unreachable(lifecycle: Lifecycle) -> Complaints:
    reachable = lifecycle.reachable()
    for state in lifecycle.states:
        if state not in reachable:
            yield f"state {state} cannot be reached from {lifecycle.initial}: draw an arrow to it, or leave it out.", lifecycle.line(state)


def _endless(lifecycle: Lifecycle) -> Complaints:
    ending = lifecycle.ending()
    for state in lifecycle.states:
        if state not in ending:
            yield f"from state {state} no way leads to a final state: draw one, so that every job can end.", lifecycle.line(state)


def _wrong_end(lifecycle: Lifecycle) -> Complaints:
    for arrow in lifecycle.arrows:
        final = arrow.target in lifecycle.finals
        if arrow.event in _ENDS and not final:
            yield f"`{arrow.event}` ends a job, but {arrow.target} (from {arrow.source}) has exits: lead it to a final state.", arrow.line
        elif arrow.event in ("retry", "lose") and final:
            yield f"`{arrow.event}` leads from {arrow.source} to {arrow.target}, which is final and can never be claimed: lead it elsewhere.", arrow.line
        elif arrow.event in ("claim", "start", "advance") and final:
            yield f"`{arrow.event}` leads from {arrow.source} to {arrow.target}, which is final, while the work goes on: lead it elsewhere.", arrow.line
        elif arrow.target in lifecycle.successes and arrow.event != "succeed":
            yield f"state {arrow.target} is entered by `succeed` and, from {arrow.source}, by `{arrow.event}`: a success needs a state of its own.", arrow.line


def _no_success(lifecycle: Lifecycle) -> Complaints:
    if not lifecycle.successes:
        yield f"no state draws `succeed`: no job that starts in {lifecycle.initial} could ever succeed. Draw it.", lifecycle.line(lifecycle.initial)


def _restless(lifecycle: Lifecycle) -> Complaints:
    for state in lifecycle.states:
        if state not in lifecycle.resting:
            continue
        if state == lifecycle.initial:
            yield f"`fail` leads to {state}, the initial state: call that arrow `retry`, and let `fail` lead elsewhere.", lifecycle.line(state)
        for event in ("retry", "bury"):
            if not lifecycle.arrow(state, event):
                yield f"a failure rests in state {state} (`fail` leads there, and it has exits), but no `{event}` leaves it: draw it.", lifecycle.line(state)
        if lifecycle.target(state, "retry") in lifecycle.resting:
            yield f"`retry` leads from {state}, where a failure rests, to another such state: lead it to one that can be claimed.", lifecycle.line(state)


def _trap(lifecycle: Lifecycle) -> Complaints:
    for state in lifecycle.states:
        if state in lifecycle.working & lifecycle.resting:
            yield f"a failure rests in state {state} (`fail` leads there), and a job may be held in it too: split it in two.", lifecycle.line(state)
        elif state in lifecycle.working and not lifecycle.arrow(state, "fail"):
            yield f"state {state} draws no `fail`: a job held there whose lease is lost for the last time would be trapped. Draw it.", lifecycle.line(state)


def _never_raised(lifecycle: Lifecycle) -> Complaints:
    held, waits, rests = lifecycle.working, lifecycle.waiting, lifecycle.resting
    places = {
        "claim": (waits - rests, "no job waits there for a claim"),
        "expire": (waits, "no job waits there"),
        "bury": (rests, "no failure rests there"),
        "retry": (held | rests, "no job is held or rests there"),
        "cancel": (held | waits, "no job stays there"),
        "reject": (held | waits, "no job stays there"),
    }
    for arrow in lifecycle.arrows:
        where, why = places.get(arrow.event, (held, "no job is held there"))
        if arrow.source not in where:
            yield f"`{arrow.event}` is drawn from state {arrow.source}, where it is never raised, for {why}: leave the arrow out.", arrow.line


# In this order: each may rely on the ones before it.
_CHECKS: tuple[Callable[[Lifecycle], Complaints], ...] = (
    _unknown_event, _to_itself, _ambiguous, _unreachable, _endless, _wrong_end, _no_success, _restless, _trap, _never_raised,
)
