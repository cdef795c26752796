"""The studio as it runs, a real browser before it, and people who may sign in."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from apps.studio.people import User
from apps.studio.tests.page.kit import numbers
from apps.studio.tests.shop import Shop, shop
from apps.studio.tests.visit import PHONE, Visit, chromium


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("shop")) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # No longer than a module: while it is open, its event loop runs, and no other test in this process could run one.
    with chromium() as launched:
        yield launched


@pytest.fixture
def visit(browser: Browser, studio: Shop) -> Iterator[Visit]:
    made = Visit(browser, studio)
    yield made
    made.close()


@pytest.fixture
def on_a_phone(browser: Browser, studio: Shop) -> Iterator[Visit]:
    made = Visit(browser, studio, PHONE)
    yield made
    made.close()


@pytest.fixture
def somebody(studio: Shop) -> User:
    return studio.user(f"Ada {next(numbers)}")


@pytest.fixture
def administrator(studio: Shop) -> User:
    return studio.user(f"Grace {next(numbers)}", admin=True)
