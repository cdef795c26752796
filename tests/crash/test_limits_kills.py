"""Random kills while limits, rates and pauses hold; `make chaos-limits` runs 20,000 jobs in 8 processes."""

import logging

from tests.conftest import Places
from tests.crash.limits_chaos import run_on
from tests.crash.test_chaos import ignore_progress

_log = logging.getLogger(__name__)


def test_random_kills_exceed_no_limit_and_start_no_paused_job(empty_places: Places) -> None:
    """The database's stamps say how many jobs ran at once, how often they started, and what started in a pause."""
    result = run_on(empty_places(), ignore_progress, jobs=1200, workers=4, kills=8, seed=15)
    _log.info("%s", result)
    # Each key has five jobs here: too few to judge whether one was starved.
    assert (result.over, result.starts_in_pauses, result.violations) == ({}, 0, 0)
    assert (result.ended, result.kills) == (1200, 8)
    # Otherwise the kills hit no running job, and no pause was looked at.
    assert result.leases_lost > 0
    assert result.pauses > 0
