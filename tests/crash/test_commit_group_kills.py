"""SIGKILL while a worker commits several jobs together: each effect is in the database exactly once."""

import pytest

from tests.crash.lab import Lab

JOBS = 6


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("before_commit", 0),
        ("in_commit", 0),
        ("in_commit", 3),
        ("in_commit", 5),
        ("after_commit", 0),
        ("after_commit", 4),
    ],
)
def test_kill_in_a_group_of_commits_loses_and_duplicates_no_effect(lab: Lab, point: str, number: int) -> None:
    """Before the COMMIT nothing of the group is stored. A job whose effect is stored never runs again."""
    tags = [f"job-{n}" for n in range(JOBS)]
    ids = [lab.enqueue("plain", tag) for tag in tags]
    victim = lab.worker("victim", point, tag=tags[number])
    victim.at(point)
    victim.kill()
    stored = lab.effects()
    # On a slow machine a group may end before all of its jobs are called, so the others need not be in this group.
    assert stored[tags[number]] == (point == "after_commit")
    lab.worker("rescuer")
    jobs = {job.id: job for job in lab.until_ended(*ids, within=30)}
    assert [jobs[id].phase for id in ids] == ["succeeded"] * JOBS
    assert lab.effects() == dict.fromkeys(tags, 1)
    assert [jobs[id].attempt == 1 for id in ids] == [tag in stored for tag in tags]
    lab.check()


def test_two_workers_that_are_killed_in_their_groups_lose_and_duplicate_no_effect(lab: Lab) -> None:
    """One dies in its group, and the worker that takes over its jobs dies after a commit."""
    tags = [f"job-{n}" for n in range(JOBS)]
    ids = [lab.enqueue("plain", tag) for tag in tags]
    for name, point, tag in (("first", "in_commit", "job-2"), ("second", "after_commit", "job-1")):
        victim = lab.worker(name, point, tag=tag)
        victim.at(point)
        victim.kill()
    lab.worker("rescuer")
    jobs = {job.id: job for job in lab.until_ended(*ids, within=30)}
    assert [jobs[id].phase for id in ids] == ["succeeded"] * JOBS
    assert lab.effects() == dict.fromkeys(tags, 1)
    lab.check()
