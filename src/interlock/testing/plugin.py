"""The pytest fixtures of `interlock.testing`. Pytest loads them by itself.

Name the app under test with `interlock_app = shop:app` in pytest's configuration, or override the fixture
`interlock_app_target`.
"""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ..app import App
from ..errors import UsageError
from ..worker.app_loader import find, import_module, not_an_app
from .fresh_database import fresh
from .kit_clock import KitClock
from .kit_worker import KitWorker

OPTION = "interlock_app"
VARIABLE = "INTERLOCK_TEST_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "The app under test, as MODULE:APP, for the fixtures of interlock.testing.", default="")


@pytest.fixture
def interlock_app_target(request: pytest.FixtureRequest) -> App[Any] | str:
    """The app under test, or its name. Override it if a name in the configuration is not enough."""
    return str(request.config.getini(OPTION))


@pytest.fixture
def interlock_clock() -> KitClock:
    """The clock of the database. It changes only when the test calls `advance(seconds)`."""
    return KitClock()


@pytest.fixture
def interlock_app(
    interlock_app_target: App[Any] | str, interlock_clock: KitClock, tmp_path: Path
) -> Generator[App[Any]]:
    """Your app on an empty database: a new SQLite file, or a new schema on the server that INTERLOCK_TEST_DATABASE_URL
    names.
    """
    with fresh(_loaded(interlock_app_target), interlock_clock, tmp_path, os.environ.get(VARIABLE) or None) as app:
        yield app


@pytest.fixture
def interlock_worker(interlock_app: App[Any], interlock_clock: KitClock) -> Generator[KitWorker]:
    """A worker of your app: `run_until_idle()` runs all jobs that are due.

    The test fails if a planned crash or lost lease never happened.
    """
    worker = KitWorker(interlock_app, interlock_clock)
    yield worker
    if left := worker.unmet():
        lacks = "IN_COMMIT needs a commit function or a hook, IN_FINISH a finish function"
        pytest.fail(f"{' and '.join(left)} never happened, since no worker reached that point: {lacks}.")


@pytest.fixture
def crash_at(interlock_worker: KitWorker) -> Callable[..., None]:
    """`crash_at(Failpoint.AFTER_COMMIT)` crashes the next worker that reaches this point. Its run raises `Crashed`."""
    return interlock_worker.crash_at


@pytest.fixture
def lose_lease(interlock_worker: KitWorker) -> Callable[..., None]:
    """`lose_lease()` suspends the next worker when its handler begins, or at another point, until another worker has
    taken over its jobs.
    """
    return interlock_worker.lose_lease


def _loaded(target: App[Any] | str) -> App[Any]:
    if isinstance(target, str) and not target:
        raise UsageError(
            "interlock.testing does not know your app: write interlock_app = module:app in pytest's configuration, "
            "or override the fixture interlock_app_target to return it."
        )
    found = find(target) if isinstance(target, str) else target
    if not isinstance(found, App):
        raise not_an_app(str(target), found)
    app: App[Any] = found  # pyright: ignore[reportUnknownVariableType] - an App of any transaction type
    for module in app.imports:
        import_module(module)
    return app
