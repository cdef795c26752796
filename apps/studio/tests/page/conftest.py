"""Fixtures for the page: a running studio, a real browser, and users."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from apps.studio.tests.browser_session import PHONE, BrowserSession, chromium
from apps.studio.tests.page.page_kit import numbers
from apps.studio.tests.running_studio import RunningStudio, running_studio
from apps.studio.users import User


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    with running_studio(tmp_path_factory.mktemp("shop")) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Per module: while it is open, its event loop runs, and no other test in this process could run one.
    with chromium() as launched:
        yield launched


@pytest.fixture
def visit(browser: Browser, studio: RunningStudio) -> Iterator[BrowserSession]:
    made = BrowserSession(browser, studio)
    yield made
    made.close()


@pytest.fixture
def on_a_phone(browser: Browser, studio: RunningStudio) -> Iterator[BrowserSession]:
    made = BrowserSession(browser, studio, PHONE)
    yield made
    made.close()


@pytest.fixture
def somebody(studio: RunningStudio) -> User:
    return studio.user(f"Ada {next(numbers)}")


@pytest.fixture
def administrator(studio: RunningStudio) -> User:
    return studio.user(f"Grace {next(numbers)}", admin=True)
