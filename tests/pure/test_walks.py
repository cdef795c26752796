"""Jobs take exactly the transitions that their lifecycle allows, whatever happens to them."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from random import Random
from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.decide import decide, decide_take
from interlock.core.job import Status
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    GoneExternally,
    Handed,
    Held,
    Looked,
    Lost,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
    Unrecorded,
)
from interlock.core.transition import Policy
from interlock.errors import TransitionRefused

from .model import NOW, SIX, Midway, World, make_execution, make_job
from .strategies import sensible_lifecycles

TAKES: tuple[Literal["cancel", "expire", "reject"], ...] = ("cancel", "expire", "reject")
POLICIES = tuple(Policy(on_lost_lease=answer) for answer in ("rerun", "fail", "hold"))


def outcomes(lifecycle: Lifecycle) -> list[Outcome]:
    return [
        Started(),
        Started(walks=False),
        *(Advanced(state) for state in lifecycle.states),
        Advanced("nowhere"),
        Returned("1", boundary=True),
        Returned("1", boundary=False),
        Finished(),
        Finished("broken"),
        Errored("e", retryable=True),
        Errored("e", retryable=True, after=7.0),
        Errored("e", retryable=False),
        FailedFinally("f"),
        Rejected("r"),
        Lost(),
        Requeued("stopping"),
        Snoozed(5.0, "later"),
        CancelRequested("c", "operator:ann"),
        Handed("x", 15.0),
        Held("doubt"),
        *(Looked(15.0, seen=seen) for seen in (True, False, None)),
        Looked(15.0, seen=True, begun=True),
        Unrecorded("u", retryable=True),
        Unrecorded("u", retryable=True, after=7.0),
        Unrecorded("u", retryable=False),
        GoneExternally("g"),
        FailedFinally("f", seen=True),
        Returned("1", boundary=True, begins=True),
        Returned("1", boundary=False, begins=True),
    ]


def questions(lifecycle: Lifecycle) -> list[tuple[Outcome, Policy]]:
    """Return every outcome; only a lost lease depends on the policy."""
    return [
        (outcome, policy)
        for outcome in outcomes(lifecycle)
        for policy in (POLICIES if isinstance(outcome, Lost) else POLICIES[:1])
    ]


def steps(world: World) -> Iterator[World]:
    """Yield every world that is one step away."""
    lifecycle, held = world.lifecycle, world.held
    if held is None and not world.job.ended:
        claimed = world.copy()
        claimed.claim()
        yield claimed
        for event in TAKES:
            taken = world.copy()
            try:
                taken.take(decide_take(lifecycle, taken.job, event, POLICIES[0], actor="operator:ann", reason=None))
            except TransitionRefused:
                continue
            yield taken
    elif held is not None:
        if world.job.cancel_requested_at is None and held.status != "COMMITTED":
            asked = world.copy()
            asked.job.cancel_requested_at = NOW
            yield asked
        for outcome, policy in questions(lifecycle):
            moved = world.copy()
            try:
                moved.move(decide(lifecycle, moved.job, held, outcome, policy, 0.5, actor="worker"))
            except TransitionRefused:
                continue
            yield moved


def explore(lifecycle: Lifecycle, *, tries: int = 2) -> World:
    """Walk every possible path; each world checks its invariants.

    Worlds with the same future are walked once.
    """
    start = World.new(lifecycle, tries=tries)
    seen, new = set[object](), [start]
    while new:
        world = new.pop()
        held = world.held
        key = (
            world.job.state,
            world.job.phase,
            world.job.tries_left,
            world.job.cancel_requested_at,
            held and held.status,
        )
        if key not in seen:
            seen.add(key)
            new.extend(steps(world))
    return start


@pytest.mark.parametrize("lifecycle", SIX.values(), ids=list(SIX))
def test_jobs_take_exactly_the_transitions_of_their_lifecycle(lifecycle: Lifecycle) -> None:
    assert explore(lifecycle).used == set(lifecycle.arrows)


@pytest.mark.parametrize("lifecycle", SIX.values(), ids=list(SIX))
def test_every_state_change_that_the_database_accepts_is_used(lifecycle: Lifecycle) -> None:
    assert explore(lifecycle).state_changes == set(lifecycle.state_changes())


@pytest.mark.parametrize("lifecycle", SIX.values(), ids=list(SIX))
def test_all_outcomes_are_tested(lifecycle: Lifecycle) -> None:
    """The paths above use every type of outcome."""
    assert {type(outcome) for outcome in outcomes(lifecycle)} == set(get_args(Outcome))


def test_six_lifecycles_have_43_transitions() -> None:
    assert {name: len(lifecycle.arrows) for name, lifecycle in SIX.items()} == {
        "standard": 9,
        "state_model": 5,
        "task": 4,
        "delivery": 12,
        "download": 6,
        "image": 7,
    }
    assert sum(len(explore(lifecycle).used) for lifecycle in SIX.values()) == 43


@settings(max_examples=25, deadline=None)
@given(sensible_lifecycles())
def test_jobs_of_any_lifecycle_take_only_allowed_transitions(lifecycle: Lifecycle) -> None:
    assert explore(lifecycle, tries=1).used <= set(lifecycle.arrows)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(SIX.values())), st.randoms(use_true_random=False))
def test_job_always_has_a_next_step_until_it_ends(lifecycle: Lifecycle, random: Random) -> None:
    world = World.new(lifecycle)
    for _ in range(12):
        claim_rules = list(steps(world))
        assert bool(claim_rules) != world.job.ended
        if not claim_rules:
            break
        world = random.choice(claim_rules)


@pytest.mark.parametrize("lifecycle", SIX.values(), ids=list(SIX))
def test_decide_always_returns_a_valid_move_or_refuses(lifecycle: Lifecycle) -> None:
    answered = 0
    for state, status, (outcome, policy), tries_left, asked in product(
        (*lifecycle.states, "nowhere"), get_args(Status), questions(lifecycle), (0, 1, 2, 3), (False, True)
    ):
        job = make_job(lifecycle, state, tries_left=tries_left, asked=asked)
        with suppress(TransitionRefused):
            move = decide(lifecycle, job, make_execution(state, status), outcome, policy, 0.5, actor="worker")
            Midway(lifecycle, job, [make_execution(state, status)]).move(move)
            answered += 1
    assert answered
