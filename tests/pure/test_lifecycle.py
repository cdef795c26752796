"""Lifecycle: the states in which a job waits, rests and runs, and the transitions between them."""

import pytest

from interlock.core.lifecycle import Lifecycle, StateChange, builtin
from interlock.core.lifecycle_checks import EVENTS
from interlock.core.machine import Arrow, Machine
from interlock.errors import LifecycleError

from .model import DOCUMENTS, SIX

IN_PLACE = Lifecycle(
    "in_place",
    transitions=[
        ("queued", "fail", "resting"),
        ("queued", "succeed", "done"),
        ("resting", "retry", "queued"),
        ("resting", "bury", "dead"),
        ("resting", "cancel", "gone"),
    ],
)


def test_documents_contain_the_diagram_of_their_lifecycle() -> None:
    for name in ("delivery", "download", "image"):
        assert SIX[name].mermaid() in (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "waiting", "working", "resting", "successes"),
    [
        ("standard", {"PENDING"}, {"RUNNING"}, set[str](), {"SUCCEEDED"}),
        ("state_model", {"PENDING"}, {"RUNNING"}, set[str](), {"SUCCEEDED"}),
        ("task", {"pending"}, {"running"}, set[str](), {"done"}),
        ("delivery", {"QUEUED"}, {"CLAIMED", "DOWNLOADING", "STREAMING"}, set[str](), {"DELIVERED"}),
        ("download", {"queued"}, {"queued", "downloading"}, set[str](), {"completed"}),
        ("image", {"queued", "failed"}, {"running"}, {"failed"}, {"completed"}),
    ],
)
def test_states_are_sorted_into_waiting_working_and_resting(
    name: str, waiting: set[str], working: set[str], resting: set[str], successes: set[str]
) -> None:
    lifecycle = SIX[name]
    assert (lifecycle.waiting, lifecycle.working, lifecycle.resting, lifecycle.successes) == (
        waiting,
        working,
        resting,
        successes,
    )


def test_claim_path_follows_the_lifecycle() -> None:
    assert SIX["delivery"].claim_path("QUEUED") == (Arrow("QUEUED", "claim", "CLAIMED"),)
    assert SIX["download"].claim_path("queued") == ()
    assert SIX["image"].claim_path("failed") == (
        Arrow("failed", "retry", "queued"),
        Arrow("queued", "claim", "running"),
    )
    assert IN_PLACE.claim_path("resting") == (Arrow("resting", "retry", "queued"),)
    assert SIX["image"].claim_path("running") is None
    assert SIX["image"].claim_path("nowhere") is None


def test_each_state_has_its_phases() -> None:
    assert {state: SIX["image"].phases(state) for state in SIX["image"].states} == {
        "queued": ("pending",),
        "running": ("running",),
        "failed": ("pending",),
        "rejected": ("failed",),
        "completed": ("succeeded",),
        "dead_letter": ("failed",),
    }
    assert SIX["download"].phases("queued") == ("pending", "running")
    assert SIX["download"].phases("nowhere") == ()


def test_resting_job_is_retried_only_with_a_claim() -> None:
    assert [change for change in SIX["image"].state_changes() if change.source == "failed"] == [
        StateChange("failed", "retry+claim", "running", 1, 2),
        StateChange("failed", "bury", "dead_letter", 0, 1),
    ]
    assert [change for change in IN_PLACE.state_changes() if change.event == "retry"] == [
        StateChange("resting", "retry", "queued", 1, 1)
    ]


def test_waiting_job_is_cancelled_by_a_new_execution_or_by_its_holder() -> None:
    cancels = {
        name: {(change.source, change.attempts) for change in lifecycle.state_changes() if change.event == "cancel"}
        for name, lifecycle in SIX.items()
    }
    assert cancels["standard"] == {("PENDING", 1), ("RUNNING", 0)}
    assert cancels["delivery"] == {("QUEUED", 1), ("QUEUED", 0)}
    assert cancels["download"] == {("queued", 1), ("queued", 0), ("downloading", 0)}
    assert {
        (change.source, change.attempts) for change in SIX["delivery"].state_changes() if change.event == "expire"
    } == {("QUEUED", 1)}
    assert {(change.source, change.attempts) for change in IN_PLACE.state_changes() if change.event == "cancel"} == {
        ("resting", 1)
    }


def test_event_leads_only_to_its_declared_target() -> None:
    delivery = SIX["delivery"]
    assert delivery.target("CLAIMED", "lose") == "QUEUED"
    assert delivery.target("DOWNLOADING", "lose") is None
    assert delivery.target("DOWNLOADING", "advance") is None
    assert delivery.advances("DOWNLOADING") == {"STREAMING"}
    assert delivery.advances("STREAMING") == frozenset()
    assert delivery.advance("DOWNLOADING", "STREAMING") == Arrow("DOWNLOADING", "advance", "STREAMING")


def test_warning_names_states_from_which_no_job_can_be_returned() -> None:
    warned = {name: lifecycle.warnings for name, lifecycle in SIX.items() if lifecycle.warnings}
    assert list(warned) == ["download"]
    assert warned["download"] == (
        (
            "download: a stopping worker must wait for a job in downloading, since no `lose`, no `retry` and no `fail` "
            "to a resting state leaves it."
        ),
    )


def test_differences_name_each_transition() -> None:
    delivery = SIX["delivery"]
    others = [(arrow.source, "some other word", arrow.target) for arrow in delivery.arrows if arrow.source != "CLAIMED"]
    document = Machine("doc", transitions=[*others, ("QUEUED", "x", "FAILED")])
    assert delivery.differences(delivery.pairs()) == []
    assert delivery.differences(document.pairs(), allow=[("CLAIMED", "QUEUED"), ("CLAIMED", "DOWNLOADING")]) == [
        "The document has QUEUED --> FAILED; the lifecycle delivery does not.",
        "The lifecycle delivery has CLAIMED --> FAILED; the document does not.",
    ]


def test_built_in_lifecycle_is_read_once() -> None:
    assert builtin("standard") is builtin("standard")
    assert Lifecycle.builtin("task") is builtin("task")
    with pytest.raises(
        LifecycleError, match="There is no built-in lifecycle delivery: choose standard, state_model, task"
    ):
        builtin("delivery")


def test_six_lifecycles_use_every_event() -> None:
    assert {arrow.event for lifecycle in SIX.values() for arrow in lifecycle.arrows} == set(EVENTS)
