"""The fixtures of `interlock.testing`, which pytest finds by itself.

Say which app is under test: with `interlock_app = shop:app` in pytest's own configuration, or with a fixture `interlock_app_target` of your own.
"""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ..app import App
from ..errors import UsageError
from ..target import find, imported, not_an_app
from .clock import KitClock
from .database import fresh
from .worker import KitWorker

OPTION = "interlock_app"
VARIABLE = "INTERLOCK_TEST_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "The app under test, as MODULE:APP, for the fixtures of interlock.testing.", default="")


@pytest.fixture
def interlock_app_target(request: pytest.FixtureRequest) -> App[Any] | str:
    """The app under test, or its name. Override it where a name in the configuration does not do."""
    return str(request.config.getini(OPTION))


@pytest.fixture
def interlock_clock() -> KitClock:
    """Time, as the database sees it: it stands still until `advance(seconds)`."""
    return KitClock()


@pytest.fixture
def interlock_app(interlock_app_target: App[Any] | str, interlock_clock: KitClock, tmp_path: Path) -> Generator[App[Any]]:
    """Your app on an empty database: a new SQLite file, or the server that INTERLOCK_TEST_DATABASE_URL names, whose schema is then made anew for each test."""
    with fresh(_loaded(interlock_app_target), interlock_clock, tmp_path, os.environ.get(VARIABLE) or None) as app:
        yield app


@pytest.fixture
def interlock_worker(interlock_app: App[Any], interlock_clock: KitClock) -> Generator[KitWorker]:
    """A worker of your app: `run_until_idle()` carries out all that is due. A crash or a loss that was planned and never came fails the test."""
    worker = KitWorker(interlock_app, interlock_clock)
    yield worker
    if left := worker.unmet():
        lacks = "IN_COMMIT needs a commit function or a hook, IN_FINISH a finish function"
        pytest.fail(f"{' and '.join(left)} never happened, since no worker came to that point: {lacks}.")


@pytest.fixture
def crash_at(interlock_worker: KitWorker) -> Callable[..., None]:
    """`crash_at(Point.AFTER_COMMIT)`: the next worker that comes there dies, and its run raises `Crashed`."""
    return interlock_worker.crash_at


@pytest.fixture
def lose_lease(interlock_worker: KitWorker) -> Callable[..., None]:
    """`lose_lease()`: the next worker stands still when its handler begins, or at another point, until another has taken over what it held."""
    return interlock_worker.lose_lease


def _loaded(target: App[Any] | str) -> App[Any]:
    if isinstance(target, str) and not target:
        raise UsageError(
            "interlock.testing does not know your app: write interlock_app = module:app into pytest's configuration, or a fixture interlock_app_target that "
            "returns it.")
    found = find(target) if isinstance(target, str) else target
    if not isinstance(found, App):
        raise not_an_app(str(target), found)
    app: App[Any] = found  # pyright: ignore[reportUnknownVariableType] - an App of whatever transaction
    for module in app.imports:
        imported(module)
    return app
