"""Helpers for the tests of the command line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests import command_runner
from apps.common.tests.command_runner import CommandResult

ROOT = Path(__file__).parents[4]
NO_ID = "01900000-0000-7000-8000-000000000000"
TIME_LIMIT = 60.0
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(command_runner.assert_refused, "studio")
Work = Callable[[], None]


def ordered(said: CommandResult) -> str:
    assert said.code == 0, said.err
    return said.out.split()[0]
