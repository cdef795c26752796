"""How soon after the end of a dead worker's lease its job runs again, by the database's own clock."""

import logging
import os
import statistics
import time

import pytest

from tests.crash.conftest import Labs
from tests.crash.lab import Lab

_log = logging.getLogger(__name__)
KILLS = 4
"""One after the other, since suspects run one at a time: who has to wait for others is no measure of recovery."""
IDLE = 1.0
"""Seconds for which the other worker finds nothing, so that it looks seldom."""
LEASES = [2.0, 30.0] if os.environ.get("INTERLOCK_TEST_SLOW") else [2.0]
"""The second is the default; it takes half a minute, so it is measured when it is asked for."""


def recoveries(lab: Lab) -> list[float]:
    """Kill workers in the middle of their jobs, beside an idle one.

    Answers the seconds from the end of each lease to the next claim.
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
def test_a_job_runs_again_within_two_seconds_of_its_lease_s_end(labs: Labs, lease: float) -> None:
    """An idle worker stands by; nobody tells it of the deaths."""
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
