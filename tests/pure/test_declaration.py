"""A lifecycle that could never work is refused when it is declared; the error names the line and the state."""

import pytest
from hypothesis import given, settings

from interlock.core.lifecycle import Lifecycle
from interlock.errors import LifecycleError

from .strategies import Triples, sensible_triples

GOOD = """\
stateDiagram-v2
[*] --> queued
queued --> running: claim
running --> done: succeed
running --> failed: fail
"""


def refusal(diagram: str) -> str:
    with pytest.raises(LifecycleError) as refused:
        Lifecycle.parse("job", diagram)
    return str(refused.value)


def test_base_diagram_of_these_tests_is_valid() -> None:
    assert Lifecycle.parse("job", GOOD).successes == {"done"}


@settings(max_examples=100, deadline=None)
@given(sensible_triples())
def test_valid_lifecycles_are_accepted(triples: Triples) -> None:
    assert Lifecycle("job", transitions=triples, initial="queued").initial == "queued"


def test_error_for_an_unknown_event_lists_the_known_ones() -> None:
    sentence = refusal(GOOD + "running --> queued: explode loudly\n")
    assert sentence.startswith(
        "job, line 6: the transition running --> queued starts its label with 'explode', which is not an event"
    )
    assert sentence.endswith(
        "write one of claim, start, advance, succeed, retry, lose, fail, bury, reject, cancel, expire."
    )


def test_transition_without_an_event_is_refused() -> None:
    assert refusal(GOOD + "running --> queued\n").startswith(
        "job, line 6: the transition running --> queued has no event"
    )


def test_unreachable_state_is_refused() -> None:
    assert refusal(GOOD + "limbo --> failed: fail\n").startswith(
        "job, line 6: state limbo cannot be reached from queued"
    )


def test_state_without_transitions_is_refused() -> None:
    assert refusal(GOOD + 'state "Lost and found" as attic\n').startswith("job, line 6: state attic cannot be reached")


def test_event_with_two_targets_from_one_state_is_refused() -> None:
    assert refusal(GOOD + "running --> broken: fail\n").startswith(
        "job, line 6: `fail` leads from running to broken and to failed (line 5)"
    )


def test_advance_may_lead_to_several_states() -> None:
    stages = "".join(f"running --> {stage}: advance\n{stage} --> failed: fail\n" for stage in ("left", "right"))
    assert Lifecycle.parse("job", GOOD + stages).advances("running") == {"left", "right"}


def test_duplicate_transition_is_refused() -> None:
    assert refusal(GOOD + "running --> failed: fail again\n").startswith(
        "job, line 6: the transition running --> failed: fail appears twice"
    )


def test_final_state_with_exits_is_refused() -> None:
    assert refusal(GOOD + "running --> [*]\n").startswith("job, line 6: state running is marked as final")


def test_state_that_cannot_reach_a_final_one_is_refused() -> None:
    assert refusal(GOOD + "running --> a: advance\na --> b: advance\nb --> a: advance\n").startswith(
        "job, line 6: no final state can be reached from a"
    )


def test_transition_from_a_state_to_itself_is_refused() -> None:
    assert refusal(GOOD + "running --> running: advance\n").startswith(
        "job, line 6: the transition running --> running: advance leads from running to itself"
    )


@pytest.mark.parametrize("stage", ["running --> stage: advance", "running --> stage: start"])
def test_working_state_without_fail_is_refused(stage: str) -> None:
    assert refusal(GOOD + f"{stage}\nstage --> done: succeed\n").startswith(
        "job, line 6: `fail` is missing from state stage: a job that loses its last lease there"
    )


def test_claimed_state_without_fail_is_refused() -> None:
    assert refusal("stateDiagram-v2\n[*] --> a\na --> b: claim\nb --> c: succeed").startswith(
        "job, line 3: `fail` is missing from state b"
    )


def test_waiting_state_without_claim_needs_fail() -> None:
    sentence = refusal(GOOD + "running --> again: retry\nagain --> running: advance\n")
    assert sentence.startswith("job, line 6: `fail` is missing from state again: a job that loses its last lease there")


def test_lifecycle_without_success_is_refused() -> None:
    assert refusal("stateDiagram-v2\n[*] --> a\na --> b: fail").startswith(
        "job, line 2: `succeed` is missing, so no job that starts in a"
    )


def test_lifecycle_without_an_initial_state_is_refused() -> None:
    assert refusal("stateDiagram-v2\na --> b: succeed\na --> c: fail").startswith("job: there is no initial state")


def test_empty_diagram_is_refused() -> None:
    assert refusal("").startswith("job: the diagram is empty")
    assert refusal("stateDiagram-v2\n[*] --> a").startswith("job: there are no transitions")


@pytest.mark.parametrize(
    ("exits", "missing"), [("failed --> queued: retry", "bury"), ("failed --> dead: bury", "retry")]
)
def test_resting_state_needs_retry_and_bury(exits: str, missing: str) -> None:
    sentence = refusal(GOOD + exits)
    assert sentence.startswith("job, line 5: a failure rests in state failed (`fail` leads there, and it has exits)")
    assert sentence.endswith(f"but no `{missing}` leaves it: add one.")


def test_resting_state_cannot_lead_to_another_resting_state() -> None:
    other = "failed --> other: retry\nfailed --> dead: bury\nother --> queued: retry\nother --> dead: bury\nrunning --> stage: advance\nstage --> other: fail\n"
    assert refusal(GOOD + other).startswith(
        "job, line 5: `retry` leads from failed, where a failure rests, to another such state"
    )


def test_resting_state_cannot_also_be_a_working_state() -> None:
    rest = "failed --> queued: retry\nfailed --> dead: bury\nrunning --> failed: advance\n"
    assert refusal(GOOD + rest).startswith(
        "job, line 5: a failure rests in state failed (`fail` leads there), and a job may also run in it"
    )


def test_fail_cannot_lead_to_the_initial_state() -> None:
    diagram = "stateDiagram-v2\n[*] --> a\na --> b: claim\nb --> c: succeed\nb --> a: fail"
    assert refusal(diagram).startswith("job, line 2: `fail` leads to a, the initial state")


@pytest.mark.parametrize("event", ["retry", "lose"])
def test_retry_and_lose_must_lead_to_a_state_that_can_be_claimed(event: str) -> None:
    sentence = refusal(GOOD + f"running --> lost: {event}\n")
    assert sentence.startswith(
        f"job, line 6: `{event}` leads from running to lost, which is final and can never be claimed"
    )


@pytest.mark.parametrize("event", ["start", "advance"])
def test_start_and_advance_cannot_lead_to_a_final_state(event: str) -> None:
    sentence = refusal(GOOD + f"running --> over: {event}\n")
    assert sentence.startswith(
        f"job, line 6: `{event}` leads from running to over, which is final, while the job still runs"
    )


@pytest.mark.parametrize("event", ["reject", "cancel"])
def test_reject_and_cancel_must_lead_to_a_final_state(event: str) -> None:
    assert refusal(GOOD + f"running --> queued: {event}\n").startswith(
        f"job, line 6: `{event}` ends a job, but queued (from running) has exits"
    )


def test_success_state_cannot_be_entered_by_another_event() -> None:
    assert refusal(GOOD + "running --> done: cancel\n").startswith(
        "job, line 6: state done is entered by `succeed` and, from running, by `cancel`"
    )


@pytest.mark.parametrize(
    ("arrow", "why"),
    [
        (
            "running --> gone: expire",
            "`expire` is never raised in state running, since no job waits there",
        ),
        (
            "running --> gone: bury",
            "`bury` is never raised in state running, since no failure rests there",
        ),
        (
            "queued --> gone: fail",
            "`fail` is never raised in state queued, since no job runs there",
        ),
        (
            "running --> queued: claim",
            "`claim` is never raised in state running, since no job waits there for a claim",
        ),
    ],
)
def test_event_in_a_state_where_it_is_never_raised_is_refused(arrow: str, why: str) -> None:
    assert refusal(GOOD + arrow).startswith(f"job, line 6: {why}")


def test_transitions_given_as_data_are_checked_like_a_diagram() -> None:
    with pytest.raises(LifecycleError, match=r"^job: `fail` is missing from state b"):
        Lifecycle("job", transitions=[("a", "claim", "b"), ("b", "succeed", "c")])
