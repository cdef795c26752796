"""FM_001, the duplicate retry: a slow worker's lease expires, another runs the job again, and both try to commit."""

import pytest

from tests.crash.lab import Lab, Process

UNGUARDED = "tests.crash.unguarded_store:Unguarded"
ZOMBIES = {"guarded": None, "no_fence": UNGUARDED, "no_fence_no_trigger": UNGUARDED, "nothing": UNGUARDED}


@pytest.fixture
def zombies(lab: Lab) -> dict[str, tuple[str, Process]]:
    """Workers that did their job and stood still before they could commit it, until another had done it too."""
    slow = {
        tag: (
            lab.enqueue("plain", tag, queue=tag),
            lab.worker(f"slow-{tag}", "before_commit", queues=(tag,), store=store),
        )
        for tag, store in ZOMBIES.items()
    }
    for _, worker in slow.values():
        worker.at("before_commit")
    for _, worker in slow.values():
        lab.freeze(worker)
    lab.worker("second", queues=tuple(ZOMBIES))
    jobs = lab.until_ended(*(id for id, _ in slow.values()))
    assert {(job.phase, job.attempt) for job in jobs} == {("succeeded", 2)}
    assert lab.effects() == dict.fromkeys(ZOMBIES, 1)
    return slow


def commit_late(lab: Lab, slow: tuple[str, Process]) -> None:
    """Let it go on to its commit, and wait until it is through with it."""
    slow[1].thaw()
    slow[1].go_on()
    lab.until_idle(slow[1])


def test_late_commit_duplicates_an_effect_only_without_guards(
    lab: Lab, zombies: dict[str, tuple[str, Process]]
) -> None:
    """The same interleaving four times.

    The fence alone suffices; without it the trigger does, without that the unique index; without any: two effects.
    """
    commit_late(lab, zombies["guarded"])
    commit_late(lab, zombies["no_fence"])
    lab.place.raw.disable("executions_update")
    commit_late(lab, zombies["no_fence_no_trigger"])
    lab.check()
    assert lab.effects() == dict.fromkeys(ZOMBIES, 1)
    for tag in ("guarded", "no_fence", "no_fence_no_trigger"):
        assert [each.status for each in lab.executions(zombies[tag][0])] == ["ABORTED", "DONE"]
        assert len(lab.remarks(zombies[tag][0], "refused")) == 1
    lab.place.raw.script(f"DROP INDEX {lab.place.raw.table('executions_one')}")
    commit_late(lab, zombies["nothing"])
    assert lab.effects() == {**dict.fromkeys(ZOMBIES, 1), "nothing": 2}
    assert [each.status for each in lab.executions(zombies["nothing"][0])] == ["DONE", "DONE"]
    report = lab.app.verify()
    assert {found.job_id for found in report.violations} == {zombies["nothing"][0]}
