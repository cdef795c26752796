"""A user's session in a real browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, Response, ViewportSize, expect, sync_playwright

from apps.common.tests.waiting import wait_until
from apps.studio.tests.running_studio import RunningStudio
from apps.studio.users import User

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}


@contextmanager
def chromium() -> Iterator[Browser]:
    # Chromium does not start its sandbox for root, the usual user in containers.
    alone = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=alone)
        yield launched
        launched.close()


class BrowserSession:
    """A browser context that records responses and errors."""

    def __init__(self, browser: Browser, studio: RunningStudio, viewport: ViewportSize = DESKTOP) -> None:
        self._context = browser.new_context(viewport=viewport, reduced_motion="reduce", locale="en-GB")
        self._context.set_default_timeout(15_000)
        self.page, self.studio = self._context.new_page(), studio
        self.answered: list[Response] = []
        self.errors: list[str] = []
        self.page.on("response", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda told: self.errors.append(told.text) if "Content Security Policy" in told.text else None
        )

    def _heard(self, answer: Response) -> None:
        self.answered.append(answer)

    def close(self) -> None:
        self._context.close()
        assert self.errors == []

    def sign_in(self, user: User) -> Page:
        self.page.goto(self.studio.url)
        self.page.get_by_label("Access key").fill(user.key or "")
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator("#who")).to_have_text(user.name)
        return self.page

    def order(self, prompt: str, size: str | None = None) -> Locator:
        """Order a picture and return its card."""
        self.page.get_by_label("Describe your picture").fill(prompt)
        if size is not None:
            self.page.get_by_label(size).check()
        self.page.get_by_role("button", name="Draw it").click()
        return self.card(prompt)

    def card(self, prompt: str) -> Locator:
        return self.page.locator(".card").filter(has=self.page.get_by_text(prompt, exact=True))

    def go(self, view: str) -> None:
        self.page.get_by_role("navigation").get_by_role("link", name=view).click()

    def has_credits(self, text: str) -> None:
        expect(self.page.locator("#credits")).to_have_text(text)


def in_state(card: Locator, status: str) -> None:
    expect(card).to_have_attribute("data-status", status, timeout=20_000)


def has_loaded(image: Locator, width: int) -> None:
    """Assert that the picture has loaded completely."""
    image.scroll_into_view_if_needed()
    wait_until(lambda: image.evaluate("image => image.complete && image.naturalWidth") == width)
