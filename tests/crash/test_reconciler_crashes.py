"""Workers that die or freeze while they check handed-over work: another worker checks it, and it takes effect once."""

import pytest

from tests.crash.lab import Lab


@pytest.mark.parametrize("point", ["in_ask", "before_commit", "in_commit", "after_commit"])
def test_kill_during_a_check_costs_no_try_and_commits_once(lab: Lab, point: str) -> None:
    """Another worker takes over after the lease.

    The external work continued, so the handler does not run again.
    """
    id = lab.enqueue("elsewhere", "one")
    victim = lab.worker("victim", point)
    victim.at(point)
    victim.kill()
    lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    assert (job.phase, job.result, job.attempt, job.tries_left, job.lease_losses) == ("succeeded", "one", 1, 3, 0)
    assert (lab.effects(), lab.happened("prepare")) == ({"one": 1}, {"one": 1})
    assert lab.happened("ask") == {"one": 1 if point == "after_commit" else 2}
    assert [(each.status, each.holder) for each in lab.executions(id)] == [
        ("DONE", 2 if point == "after_commit" else 3)
    ]
    lab.check()


def test_answer_of_a_stale_worker_is_refused(lab: Lab) -> None:
    """It was frozen during its request, and another worker has stored the answer."""
    id = lab.enqueue("elsewhere", "one")
    stale = lab.worker("stale", "in_ask")
    stale.at("in_ask")
    lab.freeze(stale)
    lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    stale.thaw()
    stale.go_on()
    (refused,) = lab.until(lambda: lab.remarks(id, "refused"), "the stale worker is refused")
    assert refused.actor.startswith("stale#")
    assert (lab.job(id), lab.effects()) == (job, {"one": 1})
    assert stale.alive
    lab.check()


def test_suspect_hands_its_work_over_from_a_child_process(lab: Lab) -> None:
    """The job may have killed its first worker, so its second attempt runs in a child. Its work is then checked as
    usual.
    """
    id = lab.enqueue("elsewhere", "one")
    victim = lab.worker("victim", "in_prepare")
    victim.at("in_prepare")
    victim.kill()
    rescuer = lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    assert (job.phase, job.attempt, job.lease_losses, lab.effects()) == ("succeeded", 2, 1, {"one": 1})
    (prepared,) = [line["pid"] for line in lab.outside.lines() if line["what"] == "prepare"]
    (asked,) = [line["pid"] for line in lab.outside.lines() if line["what"] == "ask"]
    assert (asked, prepared != rescuer.pid) == (rescuer.pid, True)
    lab.check()
