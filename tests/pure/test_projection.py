"""A job's state follows from its executions alone, and its audit agrees."""

from dataclasses import replace

from interlock.core.lifecycle import Lifecycle
from interlock.core.machine import Arrow
from interlock.core.projection import Replay, phase_of, project, replay

from .model import SIX, make_entry, make_execution

image, delivery, download = SIX["image"], SIX["delivery"], SIX["download"]

CLAIM = Arrow("queued", "claim", "running")
FAIL = Arrow("running", "fail", "failed")
RETRY = Arrow("failed", "retry", "queued")


def test_job_without_executions_is_in_its_initial_state() -> None:
    assert project(image, []) == "queued"


def test_state_of_a_live_execution_is_the_state_of_the_job() -> None:
    assert project(delivery, [make_execution("STREAMING", "IN_PROGRESS")]) == "STREAMING"


def test_last_event_of_an_ended_execution_gives_the_state() -> None:
    assert project(image, [make_execution("running", "ABORTED", ended_by="fail")]) == "failed"
    assert project(image, [make_execution("failed", "ABORTED", ended_by="bury")]) == "dead_letter"
    assert project(download, [make_execution("queued", "ABORTED", ended_by="retry")]) == "queued"


def test_only_the_last_attempt_counts() -> None:
    first, second = (
        make_execution("running", "ABORTED", ended_by="fail"),
        make_execution("running", "DONE", attempt=2, ended_by="succeed"),
    )
    assert project(image, [second, first]) == project(image, [first, second]) == "completed"


def test_phase_follows_from_state_and_lease() -> None:
    assert [phase_of(image, state, live=False) for state in ("queued", "failed", "completed", "rejected")] == [
        "pending",
        "pending",
        "succeeded",
        "failed",
    ]
    assert phase_of(download, "queued", live=True) == "running"


def test_complete_audit_replays_to_the_state() -> None:
    remark = make_entry(Arrow("x", "remark", "y"), 1, n=1)
    history = [
        make_entry(CLAIM, 1),
        remark,
        make_entry(FAIL, 2),
        make_entry(RETRY, 3, attempt=2),
        make_entry(CLAIM, 4, attempt=2),
    ]
    assert replay(image, history) == Replay("running", 4)
    birth = replace(make_entry(CLAIM, 0), event="enqueue", from_state=None, to_state="queued", attempt=None)
    assert replay(image, [birth, *history]) == Replay("running", 4)
    assert replay(image, []) == Replay("queued", 0)


def test_replay_stops_at_the_first_inconsistent_entry() -> None:
    for history, sentence in (
        (
            [make_entry(CLAIM, 1), make_entry(FAIL, 3)],
            "follows version 1: an entry is missing or doubled",
        ),
        ([make_entry(CLAIM, 1), make_entry(FAIL, 1)], "follows version 1"),
        ([make_entry(CLAIM, 1), make_entry(RETRY, 2)], "leaves failed, but the job was in running"),
        (
            [make_entry(CLAIM, 1), make_entry(Arrow("running", "retry", "queued"), 2)],
            "is not allowed by the lifecycle image",
        ),
        (
            [make_entry(CLAIM, 1, attempt=2), make_entry(FAIL, 2, attempt=1)],
            "belongs to attempt 1, but follows one of attempt 2",
        ),
    ):
        replayed = replay(image, history)
        assert (replayed.state, replayed.version) == ("running", 1)
        assert sentence in (replayed.broken or "")


def test_audit_that_starts_in_another_state_is_broken() -> None:
    birth = replace(make_entry(CLAIM, 0), event="enqueue", from_state=None, to_state="completed")
    assert "It starts in completed at version 0; a job starts in queued" in (replay(image, [birth]).broken or "")


def test_replay_accepts_transitions_of_several_versions() -> None:
    newer = Lifecycle(
        "image", transitions=[*((a.source, a.event, a.target) for a in image.arrows), ("running", "lose", "queued")]
    )
    history = [make_entry(CLAIM, 1), make_entry(Arrow("running", "lose", "queued"), 2)]
    assert "is not allowed" in (replay(image, history).broken or "")
    assert replay(image, history, also=[newer]) == Replay("queued", 2)
