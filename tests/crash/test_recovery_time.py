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
APART = 0.8
"""Seconds between two claims, and between two kills, so that leases do not end together: suspects run one at a time."""
IDLE = 1.0
"""Seconds for which the other worker finds nothing, so that it looks seldom."""
LEASES = [2.0, 30.0] if os.environ.get("INTERLOCK_TEST_SLOW") else [2.0]
"""The second is the default; it takes half a minute, so it is measured when it is asked for."""


def kill_one_by_one(lab: Lab) -> dict[str, float]:
    """Kill workers in the middle of their jobs, beside an idle one. Answers when the lease of each job ends, in seconds by the database's clock."""
    tags = [f"job-{n}" for n in range(KILLS)]
    ids = {tag: lab.app.kinds["full"].using(queue=tag, delay=n * APART).enqueue(tag=tag).id for n, tag in enumerate(tags)}
    victims = {tag: lab.worker(f"victim-{tag}", "in_prepare", queues=(tag,)) for tag in tags}
    for victim in victims.values():
        victim.at("in_prepare")
    lab.worker("rescuer", queues=tuple(tags)).ready()
    time.sleep(IDLE)
    ends: dict[str, float] = {}
    for tag, victim in victims.items():
        victim.kill()
        (execution,) = lab.executions(ids[tag])
        assert (execution.status, execution.holder) == ("IN_PROGRESS", 1)
        ends[ids[tag]] = execution.lease_expires_at.timestamp()
        time.sleep(APART)
    return ends


@pytest.mark.parametrize("lease", LEASES)
def test_a_job_runs_again_within_two_seconds_of_its_lease_s_end(labs: Labs, lease: float) -> None:
    """An idle worker stands by; nobody tells it of the deaths."""
    lab = labs(lease=lease)
    ends = kill_one_by_one(lab)
    lab.until_ended(within=lease + 20)
    taken = sorted(lab.executions(id)[1].leased_at.timestamp() - end for id, end in ends.items())
    _log.info("lease %g s, %d kills: min %.2f, median %.2f, max %.2f s", lease, len(taken), taken[0], statistics.median(taken), taken[-1])
    assert taken[0] >= 0
    assert taken[-1] <= 2.0
    lab.check()
