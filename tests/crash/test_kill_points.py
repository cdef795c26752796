"""SIGKILL at every point of an execution: every job ends, its effect is in the database once, and finish runs after the
commit.
"""

import pytest

from tests.crash.lab import Lab, Process

POINTS = {
    "full": ("after_claim", "in_prepare", "before_commit", "in_commit", "after_commit", "in_finish", "end_of_finish"),
    "plain": ("after_claim", "in_prepare", "before_commit", "in_commit", "after_commit"),
    "fast": ("after_claim", "in_prepare", "before_commit", "after_commit"),
}
COMMITTED = ("after_commit", "in_finish", "end_of_finish")
BESIDE = 2
"""Other jobs of the killed worker, beside the one at which it stops."""


def kill_at_every_point(lab: Lab, kind: str) -> dict[str, str]:
    """Start a worker with its own jobs for each point and kill it there; return the job of each point."""
    stopped: dict[str, str] = {}
    victims: dict[str, Process] = {}
    for point in POINTS[kind]:
        stopped[point] = lab.enqueue(kind, point, queue=point)
        for n in range(BESIDE):
            lab.enqueue(kind, f"beside-{point}-{n}", queue=point)
        victims[point] = lab.worker(f"victim-{point}", point, tag=point, queues=(point,), slots=1 + BESIDE)
    lab.kill_at(victims)
    return stopped


@pytest.mark.parametrize("kind", POINTS)
def test_kill_at_any_point_loses_and_duplicates_no_effect(lab: Lab, kind: str) -> None:
    """Another worker takes over, and N jobs have N ends and N effects.

    A committed job is finished and never runs again.
    """
    stopped = kill_at_every_point(lab, kind)
    lab.worker("rescuer", queues=tuple(stopped))
    jobs = {str(job.payload["tag"]): job for job in lab.until_ended(within=30)}
    assert len(jobs) == len(POINTS[kind]) * (1 + BESIDE)
    assert {job.phase for job in jobs.values()} == {"succeeded"}
    assert {
        tag: sum(each.status == "DONE" for each in lab.executions(job.id)) for tag, job in jobs.items()
    } == dict.fromkeys(jobs, 1)
    assert lab.effects() == ({} if kind == "fast" else dict.fromkeys(jobs, 1))
    assert {point: lab.job(id).attempt for point, id in stopped.items()} == {
        point: 1 if point in COMMITTED else 2 for point in stopped
    }
    prepared, finished = lab.happened("prepare"), lab.happened("finish")
    assert {point: prepared[point] for point in stopped} == {
        point: 2 if point in ("before_commit", "in_commit") else 1 for point in stopped
    }
    if kind == "full":
        assert {point: finished[point] for point in stopped} == {
            point: 2 if point == "end_of_finish" else 1 for point in stopped
        }
        assert min(finished[tag] for tag in jobs) == 1
        assert {line["seen"] for line in lab.outside.lines() if line["what"] == "finish"} == {1}
    lab.check()


def test_external_call_in_doubt_is_repeated_under_its_key_or_skipped(lab: Lab) -> None:
    """The worker is killed during the call. `retry` calls again with the same key, and `skip` returns no result."""
    ids = {kind: lab.enqueue(kind, kind, queue=kind) for kind in ("resent", "skipped")}
    victims = [lab.worker(f"victim-{kind}", "in_effect", queues=(kind,)) for kind in ids]
    for victim in victims:
        victim.at("in_effect")
        victim.kill()
    lab.worker("rescuer", queues=tuple(ids))
    jobs = {job.kind: job for job in lab.until_ended(*ids.values())}
    assert {kind: job.result for kind, job in jobs.items()} == {"resent": "resent", "skipped": "in doubt"}
    assert lab.happened("asked") == {"resent": 2, "skipped": 2}
    assert lab.happened("applied") == {"resent": 2, "skipped": 1}
    keys = {line["key"] for line in lab.outside.lines() if line["tag"] == "resent"}
    assert len(keys) == 1
    lab.check()


def test_job_whose_workers_are_all_killed_fails_after_its_tries(lab: Lab) -> None:
    """After three kills the job has failed without an effect, and another job has succeeded."""
    id = lab.enqueue("plain", "doomed", queue="doomed")
    for n in range(3):
        victim = lab.worker(f"victim-{n}", "before_commit", queues=("doomed",))
        assert victim.at("before_commit")["attempt"] == n + 1
        victim.kill()
    innocent = lab.enqueue("plain", "innocent")
    lab.worker("rescuer", queues=("default", "doomed"))
    doomed, fine = lab.until_ended(id, innocent)
    assert (doomed.phase, doomed.attempt, doomed.tries_left, fine.phase) == ("failed", 3, 0, "succeeded")
    assert lab.effects() == {"innocent": 1}
    lab.check()
