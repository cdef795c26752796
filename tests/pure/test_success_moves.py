"""Remembered successes: a move that was built from an earlier answer is the one that `decide` returns."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.decide import decide
from interlock.core.job import Job, Status
from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import Returned
from interlock.core.success_moves import SuccessMoves
from interlock.core.transition import Move, Policy
from interlock.errors import TransitionRefused

from .model import make_execution, make_job
from .strategies import sensible_lifecycles

returns = st.builds(Returned, st.sampled_from(["null", "1", '"x"']), boundary=st.booleans(), begins=st.booleans())
statuses: st.SearchStrategy[Status] = st.sampled_from(["IN_PROGRESS", "IN_PROGRESS", "LEASED", "COMMITTED", "DONE"])


@st.composite
def jobs(draw: st.DrawFn, lifecycle: Lifecycle) -> Job:
    return replace(
        make_job(lifecycle, state=draw(st.sampled_from(lifecycle.states))),
        attempt=draw(st.integers(1, 3)),
        tries_left=draw(st.integers(0, 3)),
        cancel_requested_at=draw(st.sampled_from([None, datetime(2026, 1, 1, tzinfo=UTC)])),
    )


@given(st.data())
def test_remembered_success_is_the_move_that_decide_returns(data: st.DataObject) -> None:
    """For any lifecycles, jobs and policies in any order, errors included."""
    remembered = SuccessMoves()
    lifecycles = [data.draw(sensible_lifecycles()), Lifecycle.builtin("standard"), Lifecycle.builtin("state_model")]
    policies = {
        id(lifecycle): [Policy(), Policy(key_until=tuple(data.draw(st.sets(st.sampled_from(lifecycle.states)))))]
        for lifecycle in lifecycles
    }
    for n in range(data.draw(st.integers(2, 8))):
        lifecycle = data.draw(st.sampled_from(lifecycles))
        job, outcome = data.draw(jobs(lifecycle)), data.draw(returns)
        policy = data.draw(st.sampled_from(policies[id(lifecycle)]))
        for status in ("IN_PROGRESS", data.draw(statuses)):
            execution = replace(make_execution(job.state, status), holder=n + 1)
            decided = answer(partial(decide, lifecycle, job, execution, outcome, policy, 0.5, actor=f"w{n}"))
            found = remembered.find(lifecycle, job, execution, outcome, policy, actor=f"w{n}")
            assert found in (None, decided)
            if isinstance(decided, Move):
                remembered.remember(lifecycle, outcome, policy, decided)
                again = remembered.find(lifecycle, job, execution, outcome, policy, actor=f"w{n}")
                succeeds = status == "IN_PROGRESS" and decided.result is not None and not outcome.begins
                assert again == (decided if succeeds else None)
            outcome = data.draw(returns)


def answer(call: Callable[[], Move]) -> Move | str:
    try:
        return call()
    except TransitionRefused as error:
        return str(error)
