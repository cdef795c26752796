"""FM_001, the duplicate retry: a slow worker's lease expires, another runs the job again, and both try to commit."""

import pytest

from tests.crash.lab import Lab, Process

UNGUARDED = "tests.crash.unguarded_store:Unguarded"
STALE_WORKERS = {"guarded": None, "no_fence": UNGUARDED, "no_fence_no_trigger": UNGUARDED, "nothing": UNGUARDED}


@pytest.fixture
def stale_workers(lab: Lab) -> dict[str, tuple[str, Process]]:
    """Workers that were frozen between the handler and its commit until another worker had committed the job."""
    slow = {
        tag: (
            lab.enqueue("plain", tag, queue=tag),
            lab.worker(f"slow-{tag}", "before_commit", queues=(tag,), store=store),
        )
        for tag, store in STALE_WORKERS.items()
    }
    for _, worker in slow.values():
        worker.at("before_commit")
    for _, worker in slow.values():
        lab.freeze(worker)
    lab.worker("second", queues=tuple(STALE_WORKERS))
    jobs = lab.until_ended(*(id for id, _ in slow.values()))
    assert {(job.phase, job.attempt) for job in jobs} == {("succeeded", 2)}
    assert lab.effects() == dict.fromkeys(STALE_WORKERS, 1)
    return slow


def commit_late(lab: Lab, slow: tuple[str, Process]) -> None:
    """Let the worker commit, and wait until it is idle."""
    slow[1].thaw()
    slow[1].go_on()
    lab.until_idle(slow[1])


def test_late_commit_duplicates_an_effect_only_without_guards(
    lab: Lab, stale_workers: dict[str, tuple[str, Process]]
) -> None:
    """The same interleaving runs four times.

    The fence, the trigger or the unique index alone prevents the duplicate. Without all three there are two effects.
    """
    commit_late(lab, stale_workers["guarded"])
    commit_late(lab, stale_workers["no_fence"])
    lab.place.raw.disable("executions_update")
    commit_late(lab, stale_workers["no_fence_no_trigger"])
    lab.check()
    assert lab.effects() == dict.fromkeys(STALE_WORKERS, 1)
    for tag in ("guarded", "no_fence", "no_fence_no_trigger"):
        assert [each.status for each in lab.executions(stale_workers[tag][0])] == ["ABORTED", "DONE"]
        assert len(lab.remarks(stale_workers[tag][0], "refused")) == 1
    lab.place.raw.script(f"DROP INDEX {lab.place.raw.table('executions_one')}")
    commit_late(lab, stale_workers["nothing"])
    assert lab.effects() == {**dict.fromkeys(STALE_WORKERS, 1), "nothing": 2}
    assert [each.status for each in lab.executions(stale_workers["nothing"][0])] == ["DONE", "DONE"]
    report = lab.app.verify()
    assert {found.job_id for found in report.violations} == {stale_workers["nothing"][0]}
