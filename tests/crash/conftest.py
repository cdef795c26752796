"""Fixtures: a laboratory per test, on each of the two stores."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Places, make_empty_places
from tests.crash.lab import Lab
from tests.kit import Place

Labs = Callable[..., Lab]


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[Places]:
    """Make new databases, because a process of an earlier test may still be writing to an old one."""
    yield from make_empty_places(request, quick_path)


@pytest.fixture
def labs(place: Place, tmp_path: Path) -> Iterator[Labs]:
    """Make the laboratory of a test with its settings. All its processes end with the test."""
    made: list[Lab] = []

    def make(**setting: Any) -> Lab:
        made.append(Lab(place, tmp_path, **setting))
        return made[-1]

    yield make
    for lab in made:
        lab.close()


@pytest.fixture
def lab(labs: Labs) -> Lab:
    """A laboratory with leases of one second."""
    return labs()
