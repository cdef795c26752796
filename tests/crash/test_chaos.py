"""20 random kills among four workers; `make chaos` kills 200."""

import logging

from tests.crash.chaos import TRIES, Chaos, Wanted
from tests.crash.conftest import Labs

_log = logging.getLogger(__name__)


def ignore_progress(kills: int, ended: int) -> None:
    """Ignore the progress."""


def test_random_kills_lose_and_duplicate_nothing(labs: Labs) -> None:
    """Jobs of every kind end as expected, every effect is in the database once, and `verify` finds no violation."""
    result = Chaos(labs(lease=2.0, tries=TRIES), Wanted(jobs=400, kills=20, workers=4, seed=20), ignore_progress).run()
    _log.info("%s", result)
    assert (result.lost, result.doubled, result.violations, result.unexpected_exits) == ([], [], 0, 0)
    assert (result.ended, result.effects, result.kills) == (400, result.expected_effects, 20)
    assert result.ok
    # Otherwise the kills hit no running job.
    assert result.struck > 0
    assert result.lease_losses > 0
