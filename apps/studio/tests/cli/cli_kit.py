"""What the tests of the commands share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests import commands
from apps.common.tests.commands import Said

ROOT = Path(__file__).parents[4]
NO_ID = "01900000-0000-7000-8000-000000000000"
PATIENCE = 60.0
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(commands.refused, "studio")
Work = Callable[[], None]


def ordered(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out.split()[0]
