"""Fixtures: an app on each of the two stores, with a frozen clock."""

from collections.abc import Iterator

import pytest

from interlock.operate.verify import verify
from tests.conftest import Places
from tests.kit import Place
from tests.loops.handler_bench import Bench
from tests.loops.pipeline import Pipeline
from tests.loops.question_bench import Blog
from tests.loops.reconciler_bench import HandoverBench


@pytest.fixture
def bench(place: Place) -> Iterator[Bench]:
    """An app without kinds, and a worker for it. The fixture verifies the whole database at the end."""
    bench = Bench(place)
    yield bench
    bench.close()


@pytest.fixture
def harbour(place: Place) -> Iterator[HandoverBench]:
    """An app that hands its work over. The fixture verifies the whole database at the end."""
    harbour = HandoverBench(place)
    yield harbour
    harbour.ready()
    report = verify(harbour.store)
    harbour.app.close()
    assert report.ok, report


@pytest.fixture
def blog(place: Place) -> Iterator[Blog]:
    """An app whose jobs ask a question. The fixture verifies the whole database at the end."""
    blog = Blog(place)
    yield blog
    blog.close()


@pytest.fixture
def pipeline(empty_places: Places) -> Pipeline:
    place = empty_places()
    return Pipeline(place.url, place.schema)
