"""The time from the end of a dead worker's lease to the next claim of its job, by the database clock."""

import logging
import os
import statistics
import time

import pytest

from tests.crash.conftest import Labs
from tests.crash.lab import Lab

_log = logging.getLogger(__name__)
KILLS = 4
"""The kills are sequential: suspects run one at a time, and waiting for another suspect is not recovery time."""
IDLE = 1.0
"""Seconds for which the other worker finds no job, so that it polls less often."""
LEASES = [2.0, 30.0] if os.environ.get("INTERLOCK_TEST_SLOW") else [2.0]
"""30 s is the default lease; it takes half a minute, so it is measured only on request."""


def recoveries(lab: Lab) -> list[float]:
    """Kill workers during their jobs while another worker is idle.

    Return the seconds from the end of each lease to the next claim.
    """
    tags = [f"job-{n}" for n in range(KILLS)]
    ids = {tag: lab.enqueue("full", tag, queue=tag) for tag in tags}
    victims = {tag: lab.worker(f"victim-{tag}", "in_prepare", queues=(tag,)) for tag in tags}
    for victim in victims.values():
        victim.at("in_prepare")
    lab.worker("rescuer", queues=tuple(tags)).ready()
    time.sleep(IDLE)
    taken: list[float] = []
    for tag, victim in victims.items():
        victim.kill()
        (dead,) = lab.executions(ids[tag])
        assert (dead.status, dead.holder) == ("IN_PROGRESS", 1)
        lab.until_ended(ids[tag], within=lab.setting.lease + 20)
        taken.append((lab.executions(ids[tag])[1].leased_at - dead.lease_expires_at).total_seconds())
    return sorted(taken)


@pytest.mark.parametrize("lease", LEASES)
def test_job_of_a_dead_worker_runs_again_within_two_seconds_of_its_lease(labs: Labs, lease: float) -> None:
    """The other worker is idle and is not notified of the deaths."""
    lab = labs(lease=lease)
    taken = recoveries(lab)
    _log.info(
        "lease %g s, %d kills: min %.2f, median %.2f, max %.2f s",
        lease,
        len(taken),
        taken[0],
        statistics.median(taken),
        taken[-1],
    )
    assert taken[0] >= 0
    assert taken[-1] <= 2.0
    lab.check()
