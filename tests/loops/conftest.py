"""An app on each of the two stores, whose time stands still."""

from collections.abc import Iterator

import pytest

from tests.kit import Place
from tests.loops.bench import Bench


@pytest.fixture
def bench(place: Place) -> Iterator[Bench]:
    """An app without kinds, and a worker for it; at the end the whole database is verified."""
    bench = Bench(place)
    yield bench
    bench.close()
