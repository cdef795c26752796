"""The checks of a declared lifecycle. Each fault is a sentence that names the state and the remedy."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .machine import Arrow

if TYPE_CHECKING:
    from .lifecycle import Lifecycle

EVENTS = ("claim", "start", "advance", "succeed", "retry", "lose", "fail", "bury", "reject", "cancel", "expire")

_ENDS = ("succeed", "bury", "reject", "cancel", "expire")
Faults = Iterator[tuple[str, int | None]]
"""Sentences, each with its line in the diagram."""


def _unknown_event(lifecycle: "Lifecycle") -> Faults:
    for arrow in lifecycle.arrows:
        if arrow.event not in EVENTS:
            what = f"starts its label with {arrow.event!r}, which is not an event" if arrow.event else "has no event"
            yield (
                f"the transition {arrow.source} --> {arrow.target} {what}: write one of {', '.join(EVENTS)}.",
                arrow.line,
            )


def _to_itself(lifecycle: "Lifecycle") -> Faults:
    for arrow in lifecycle.arrows:
        if arrow.source == arrow.target:
            yield f"the transition {arrow} leads from {arrow.source} to itself: remove it.", arrow.line


def _ambiguous(lifecycle: "Lifecycle") -> Faults:
    seen: dict[tuple[str, str], Arrow] = {}
    for arrow in lifecycle.arrows:
        first = seen.setdefault((arrow.source, arrow.event), arrow)
        if arrow.event != "advance" and first is not arrow:
            where = f" (line {first.line})" if first.line is not None else ""
            yield (
                (
                    f"`{arrow.event}` leads from {arrow.source} to {arrow.target} and to {first.target}{where}: only "
                    "`advance` may have several targets."
                ),
                arrow.line,
            )


def _unreachable(lifecycle: "Lifecycle") -> Faults:
    reachable = lifecycle.reachable()
    for state in lifecycle.states:
        if state not in reachable:
            yield (
                f"state {state} cannot be reached from {lifecycle.initial}: add a transition to it, or remove it.",
                lifecycle.line(state),
            )


def _no_end(lifecycle: "Lifecycle") -> Faults:
    ending = lifecycle.ending()
    for state in lifecycle.states:
        if state not in ending:
            yield (
                f"no final state can be reached from {state}: add a transition, so that every job can end.",
                lifecycle.line(state),
            )


def _wrong_end(lifecycle: "Lifecycle") -> Faults:
    for arrow in lifecycle.arrows:
        final = arrow.target in lifecycle.finals
        if arrow.event in _ENDS and not final:
            yield (
                (
                    f"`{arrow.event}` ends a job, but {arrow.target} (from {arrow.source}) has exits: its target must "
                    "be a final state."
                ),
                arrow.line,
            )
        elif arrow.event in ("retry", "lose") and final:
            yield (
                (
                    f"`{arrow.event}` leads from {arrow.source} to {arrow.target}, which is final and can never be "
                    "claimed: choose another target."
                ),
                arrow.line,
            )
        elif arrow.event in ("claim", "start", "advance") and final:
            yield (
                (
                    f"`{arrow.event}` leads from {arrow.source} to {arrow.target}, which is final, while the job still "
                    "runs: choose another target."
                ),
                arrow.line,
            )
        elif arrow.target in lifecycle.successes and arrow.event != "succeed":
            yield (
                (
                    f"state {arrow.target} is entered by `succeed` and, from {arrow.source}, by `{arrow.event}`: use a "
                    "separate state for success."
                ),
                arrow.line,
            )


def _no_success(lifecycle: "Lifecycle") -> Faults:
    if not lifecycle.successes:
        yield (
            f"`succeed` is missing, so no job that starts in {lifecycle.initial} could ever succeed: add it.",
            lifecycle.line(lifecycle.initial),
        )


def _rest_without_exit(lifecycle: "Lifecycle") -> Faults:
    for state in lifecycle.states:
        if state not in lifecycle.resting:
            continue
        if state == lifecycle.initial:
            yield (
                (
                    f"`fail` leads to {state}, the initial state: name that transition `retry`, and give `fail` "
                    "another target."
                ),
                lifecycle.line(state),
            )
        for event in ("retry", "bury"):
            if not lifecycle.arrow(state, event):
                yield (
                    (
                        f"a failure rests in state {state} (`fail` leads there, and it has exits), but no `{event}` "
                        "leaves it: add one."
                    ),
                    lifecycle.line(state),
                )
        if lifecycle.target(state, "retry") in lifecycle.resting:
            yield (
                (
                    f"`retry` leads from {state}, where a failure rests, to another such state: its target must be a "
                    "state that can be claimed."
                ),
                lifecycle.line(state),
            )


def _no_fail(lifecycle: "Lifecycle") -> Faults:
    for state in lifecycle.states:
        if state in lifecycle.working & lifecycle.resting:
            yield (
                (
                    f"a failure rests in state {state} (`fail` leads there), and a job may also run in it: split it in "
                    "two."
                ),
                lifecycle.line(state),
            )
        elif state in lifecycle.working and not lifecycle.arrow(state, "fail"):
            yield (
                f"`fail` is missing from state {state}: a job that loses its last lease there could never end. Add it.",
                lifecycle.line(state),
            )


def _never_raised(lifecycle: "Lifecycle") -> Faults:
    runs, waits, rests = lifecycle.working, lifecycle.waiting, lifecycle.resting
    places = {
        "claim": (waits - rests, "no job waits there for a claim"),
        "expire": (waits, "no job waits there"),
        "bury": (rests, "no failure rests there"),
        "retry": (runs | rests, "no job runs or rests there"),
        "cancel": (runs | waits, "no job stays there"),
        "reject": (runs | waits, "no job stays there"),
    }
    for arrow in lifecycle.arrows:
        where, why = places.get(arrow.event, (runs, "no job runs there"))
        if arrow.source not in where:
            yield (
                f"`{arrow.event}` is never raised in state {arrow.source}, since {why}: remove the transition.",
                arrow.line,
            )


# The order matters: each check relies on the ones before it.
CHECKS: tuple[Callable[["Lifecycle"], Faults], ...] = (
    _unknown_event,
    _to_itself,
    _ambiguous,
    _unreachable,
    _no_end,
    _wrong_end,
    _no_success,
    _rest_without_exit,
    _no_fail,
    _never_raised,
)
