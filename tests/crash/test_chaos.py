"""Twenty kills at random among four workers; `make chaos` kills two hundred."""

import logging

from tests.crash.chaos import TRIES, Chaos, Wanted
from tests.crash.conftest import Labs

_log = logging.getLogger(__name__)


def nobody(kills: int, ended: int) -> None:
    """Nobody watches."""


def test_random_kills_lose_and_duplicate_nothing(labs: Labs) -> None:
    """Jobs of every sort end as they should, every effect in the database is there once, and verify finds nothing."""
    result = Chaos(labs(lease=2.0, tries=TRIES), Wanted(jobs=400, kills=20, workers=4, seed=20), nobody).run()
    _log.info("%s", result)
    assert (result.lost, result.doubled, result.violations, result.unexpected_exits) == ([], [], 0, 0)
    assert (result.ended, result.effects, result.kills) == (400, result.expected_effects, 20)
    assert result.ok
    # Else nothing was tried.
    assert result.struck > 0
    assert result.lease_losses > 0
