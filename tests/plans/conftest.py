"""An empty database and a crowded one for each store, loaded once for all plan tests."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interlock.store import OpenStore
from tests.contract.kit import FACTS, LIFECYCLES
from tests.kit import Place, postgres_place, sqlite_place
from tests.plans.large_tables import crowd
from tests.plans.query_cost import PostgresMeter, SqliteMeter, meter_of


@dataclass
class Scene:
    """A store and its meter."""

    place: Place
    store: OpenStore
    meter: PostgresMeter | SqliteMeter


@dataclass
class Scenes:
    empty: Scene
    crowded: Scene


def _scene(place: Place) -> Scene:
    store = place.open()
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    place.freeze()
    return Scene(place, store, meter_of(store))


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def scenes(request: pytest.FixtureRequest) -> Iterator[Scenes]:
    with tempfile.TemporaryDirectory(prefix="interlock_test_") as directory:
        if request.param == "sqlite":
            pair = [_scene(sqlite_place(Path(directory))) for _ in range(2)]
        else:
            pair = [_scene(postgres_place(request.getfixturevalue("postgres_url"))) for _ in range(2)]
        crowd(pair[1].place.raw)
        yield Scenes(*pair)
        for scene in pair:
            scene.meter.close()
            scene.place.close()


@pytest.fixture(scope="session")
def _small_scene(postgres_url: str) -> Iterator[Scene]:
    scene = _scene(postgres_place(postgres_url))
    yield scene
    scene.meter.close()
    scene.place.close()


@pytest.fixture
def small_postgres(_small_scene: Scene) -> Scene:
    """A PostgreSQL database with no jobs but those that the test stores."""
    _small_scene.place.recycle()
    return _small_scene
