"""Users on the page in a real browser: sign-in, review and layout."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from apps.studio.order import PRICES
from apps.studio.prompt_guard import MAX_LENGTH
from apps.studio.tests.browser_session import PHONE, BrowserSession, in_state
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.page.page_kit import numbers
from apps.studio.tests.running_studio import RunningStudio
from apps.studio.users import User

pytestmark = pytest.mark.real


# ---------------------------------------------------------------- users and administrators
def test_wrong_key_cannot_sign_in(visit: BrowserSession) -> None:
    page = visit.page
    page.goto(visit.studio.url)
    page.get_by_label("Access key").fill("studio_wrong")
    assert [each.url for each in visit.answered if not each.ok] == []
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This access key is not valid")
    expect(page.locator("#create")).to_be_hidden()


def test_sign_out_removes_all_data(visit: BrowserSession, studio: RunningStudio, somebody: User) -> None:
    page = visit.sign_in(somebody)
    in_state(visit.order("a secret garden"), "completed")
    visit.card("a secret garden").get_by_role("button", name="Open picture").click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Access key")).to_be_visible()
    assert not re.search("secret garden|/images/", page.content())
    page.reload()
    expect(page.get_by_label("Access key")).to_be_visible()
    visit.sign_in(studio.user(f"Bea {next(numbers)}"))
    expect(page.get_by_text("Nothing here yet.")).to_be_visible()


def test_session_that_ends_elsewhere_keeps_the_form(
    visit: BrowserSession, studio: RunningStudio, somebody: User
) -> None:
    page = visit.sign_in(somebody)
    page.get_by_label("Describe your picture").fill("half a thought")
    studio.users.replace_key(somebody.name)
    expect(page.get_by_role("alert")).to_have_text("Your session has ended. Sign in again.")
    expect(page.locator("#prompt")).to_have_value("half a thought")


def test_administrator_redrives_one_dead_letter_and_closes_another(
    visit: BrowserSession, studio: RunningStudio, administrator: User
) -> None:
    page = visit.sign_in(administrator)
    studio.images.fail(Fault.unauthorized(), Fault.unauthorized())
    for prompt in ("a broken bridge", "a lost cause"):
        card = visit.order(prompt)
        in_state(card, "dead_letter")
        expect(card.locator(".reason")).to_contain_text("credits were refunded")
    visit.has_credits("10 credits")

    visit.go("Review 2")
    bridge = page.locator(".letter").filter(has_text="a broken bridge")
    expect(bridge).to_contain_text("401")
    expect(bridge.locator(".facts")).to_contain_text("1 of 4 tries")
    bridge.get_by_label("Note on: a broken bridge").fill("the key is right again")
    bridge.get_by_role("button", name="Draw it again").click()
    expect(
        page.get_by_text(re.compile("^Ordered again as [0-9a-f-]{13}: a broken bridge")).and_(page.locator(".note"))
    ).to_be_visible()
    expect(page.locator(".letter")).to_have_count(1)
    page.locator(".letter").get_by_role("button", name="Close").click()
    expect(page.get_by_text("No dead letters to review.")).to_be_visible()

    visit.go("Create")
    expect(visit.card("a broken bridge")).to_have_count(2)
    in_state(visit.card("a broken bridge").first, "completed")
    in_state(visit.card("a broken bridge").last, "dead_letter")
    visit.has_credits("9 credits")


def test_users_do_not_see_the_review(visit: BrowserSession, somebody: User) -> None:
    page = visit.sign_in(somebody)
    expect(page.get_by_role("link", name="Review")).to_be_hidden()
    page.goto(f"{visit.studio.url}/#review")
    expect(page.locator("#create")).to_be_visible()
    expect(page.locator("#review")).to_be_hidden()


# ---------------------------------------------------------------- layout
def test_no_view_scrolls_sideways_on_a_phone(
    on_a_phone: BrowserSession, studio: RunningStudio, administrator: User, tmp_path: Path
) -> None:
    """The views have a picture, a dead letter, and a word that is longer than the screen."""
    page = on_a_phone.sign_in(administrator)
    in_state(on_a_phone.order("w" * 300), "completed")
    studio.images.fail(Fault.unauthorized())
    in_state(on_a_phone.order("v" * 300), "dead_letter")
    for view in ("Create", "Gallery", "Review"):
        on_a_phone.go(view)
        page.screenshot(path=tmp_path / f"{view}.png")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], view
    expect(page.locator(".letter")).to_have_count(1)


def test_form_matches_sizes_prices_and_limits(visit: BrowserSession, somebody: User) -> None:
    page = visit.sign_in(somebody)
    assert (
        dict(
            page.eval_on_selector_all("[name=size]", "all => all.map(each => [each.value, Number(each.dataset.cost)])")
        )
        == PRICES
    )
    shown = page.locator(".sizes label").all_inner_texts()
    assert [int(re.findall(r"(\d+) credit", text)[0]) for text in shown] == list(PRICES.values())
    page.get_by_label("Wide").check()
    expect(page.locator("#price")).to_have_text("2 credits")
    page.get_by_label("Describe your picture").fill("  ä🦊\n")
    expect(page.locator("#length")).to_have_text(f"2 of {MAX_LENGTH} characters")
