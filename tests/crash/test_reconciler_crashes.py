"""Workers that die, or stand still, while they follow work that was handed over: it is asked about again, and takes
effect once.
"""

import pytest

from tests.crash.lab import Lab


@pytest.mark.parametrize("point", ["in_ask", "before_commit", "in_commit", "after_commit"])
def test_a_kill_while_the_outside_is_asked_costs_nothing(lab: Lab, point: str) -> None:
    """Another takes over after the lease.

    The work went on elsewhere: no try is spent, nothing is run again, and the value is committed once.
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


def test_a_zombie_s_old_answer_is_refused(lab: Lab) -> None:
    """It stood still while it asked; another has asked, and written the value down."""
    id = lab.enqueue("elsewhere", "one")
    zombie = lab.worker("zombie", "in_ask")
    zombie.at("in_ask")
    lab.freeze(zombie)
    lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    zombie.thaw()
    zombie.go_on()
    (refused,) = lab.until(lambda: lab.remarks(id, "refused"), "the zombie is refused")
    assert refused.actor.startswith("zombie#")
    assert (lab.job(id), lab.effects()) == (job, {"one": 1})
    assert zombie.alive
    lab.check()


def test_a_suspect_hands_its_work_over_from_its_own_process(lab: Lab) -> None:
    """Its first worker died of it, perhaps: the second attempt runs alone, and is followed as any other."""
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
