"""The page in a real browser, before the studio as it runs: what somebody sees from the prompt to the picture."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from apps.common.tests.waiting import eventually
from apps.studio.gallery import INTERRUPTED
from apps.studio.order import LARGEST_SEED
from apps.studio.people import User
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.page.kit import numbers
from apps.studio.tests.shop import Shop, shop
from apps.studio.tests.visit import Visit, has_loaded, in_state

pytestmark = pytest.mark.real

HTML = """<img src=x onerror="document.title='taken'"><b>bold</b> & "quoted" 'words'"""


# ---------------------------------------------------------------- from the prompt to the picture
def test_a_prompt_becomes_a_picture(visit: Visit, studio: Shop, somebody: User, tmp_path: Path) -> None:
    """The card moves by itself, the balance with it; the picture opens large, is saved, and hangs in the gallery."""
    page = visit.sign_in(somebody)
    expect(page.get_by_text("Nothing here yet.")).to_be_visible()
    with studio.images.holding() as gate:
        card = visit.order("a lighthouse at dusk", "Wide")
        in_state(card, "running")
        visit.has_credits("8 credits")
        gate.set()
        in_state(card, "completed")
    has_loaded(card.locator("img"), 1536)
    visit.has_credits("8 credits")
    page.screenshot(path=tmp_path / "picture.png", full_page=True)

    card.get_by_role("button", name="Open the picture").click()
    has_loaded(page.get_by_role("dialog").get_by_alt_text("a lighthouse at dusk"), 1536)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    assert saved.value.suggested_filename == "a-lighthouse-at-dusk.png"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    visit.go("Gallery")
    has_loaded(page.locator(".tile img"), 1536)


def test_a_page_that_is_loaded_again_shows_what_there_is(visit: Visit, somebody: User) -> None:
    page = visit.sign_in(somebody)
    in_state(visit.order("a boat in the reeds"), "completed")
    page.reload()
    in_state(visit.card("a boat in the reeds"), "completed")
    has_loaded(visit.card("a boat in the reeds").locator("img"), 1024)
    visit.has_credits("9 credits")


def test_it_can_be_used_with_the_keyboard_alone(visit: Visit, somebody: User) -> None:
    page = visit.page
    page.goto(visit.studio.url)
    expect(page.get_by_label("Access key")).to_be_focused()
    page.keyboard.insert_text(somebody.key or "")
    page.keyboard.press("Enter")
    expect(page.get_by_label("What is to be drawn?")).to_be_focused()
    page.keyboard.insert_text("a heron")
    page.keyboard.press("Control+Enter")
    in_state(visit.card("a heron"), "completed")
    expect(page.locator("#told")).to_have_text("Done: a heron")
    visit.card("a heron").get_by_role("button", name="Open the picture").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_a_double_click_makes_one_job(visit: Visit, studio: Shop, somebody: User) -> None:
    """It is sent twice, there is one card and one deduction, and the page says so until something else is wished for."""
    page = visit.sign_in(somebody)
    page.get_by_label("What is to be drawn?").fill("two foxes")
    # At the turn of a minute the same wish is a new one.
    eventually(lambda: datetime.now(UTC).second < 50)
    page.get_by_role("button", name="Draw it").dblclick()
    in_state(visit.card("two foxes"), "completed")
    assert [each.status for each in visit.answered if each.request.method == "POST" and each.url.endswith("/jobs")] == [201, 200]
    note = page.get_by_text("You have ordered this already, a moment ago. For another one, change the seed, or wait for the next minute.")
    expect(note).to_be_visible()
    expect(page.locator(".card")).to_have_count(1)
    assert studio.available(somebody) == 9
    page.get_by_label("Seed").fill("7")
    expect(note).to_be_hidden()


def test_back_closes_a_picture_and_leaves_the_view_behind_it(visit: Visit, somebody: User) -> None:
    """However it is closed, the next Back leads to the view before."""
    page = visit.sign_in(somebody)
    in_state(visit.order("a kite"), "completed")
    visit.go("Gallery")
    opener, dialog = page.locator(".tile").get_by_role("button", name="Open the picture"), page.get_by_role("dialog")
    for close in (page.go_back, lambda: page.keyboard.press("Escape"), dialog.get_by_role("button", name="Close").click):
        opener.click()
        expect(dialog).to_be_visible()
        close()
        expect(dialog).to_have_count(0)
        expect(page.locator("#gallery")).to_be_visible()
    page.go_back()
    expect(page.locator("#create")).to_be_visible()


def test_the_arrow_keys_lead_from_picture_to_picture(visit: Visit, somebody: User) -> None:
    page = visit.sign_in(somebody)
    for prompt in ("the older", "the newer"):
        in_state(visit.order(prompt), "completed")
    visit.card("the newer").get_by_role("button", name="Open the picture").click()
    for key, prompt in (("ArrowRight", "the older"), ("ArrowRight", "the older"), ("ArrowLeft", "the newer")):
        page.keyboard.press(key)
        expect(page.locator("#large-prompt")).to_have_text(prompt)


# ---------------------------------------------------------------- what goes wrong
def test_a_refused_picture_says_so_and_its_credits_are_kept(visit: Visit, studio: Shop, somebody: User) -> None:
    page = visit.sign_in(somebody)
    studio.images.block_words.add("gruesome")
    card = visit.order("a gruesome scene")
    in_state(card, "rejected")
    expect(card.locator(".reason")).to_contain_text("Refused as unsafe. Its 1 credit is not given back.")
    expect(card.locator("img")).to_have_count(0)
    visit.has_credits("9 credits")
    page.locator("#credits").click()
    expect(page.get_by_role("dialog").locator("#sums")).to_contain_text("Not given back after a refusal1")
    # Reserved and forfeited are two entries, and one line: it was paid once.
    expect(page.locator("#entries li")).to_have_text([re.compile("^a gruesome scene−1"), re.compile(r"^Granted\+10")])


def test_a_failure_says_when_it_is_tried_again(visit: Visit, studio: Shop, somebody: User) -> None:
    visit.sign_in(somebody)
    studio.images.fail(Fault.limited(900))
    card = visit.order("a slow river")
    in_state(card, "failed")
    expect(card.locator(".reason")).to_contain_text(re.compile(r"Tries again in 1\d min\."))
    expect(card.locator(".try")).to_have_text("1 of 4 tries failed")


def test_what_was_only_interrupted_says_so_and_nothing_of_a_failure(visit: Visit, studio: Shop, somebody: User) -> None:
    studio.images.fail(Fault.limited(900))
    visit.sign_in(somebody)
    card = visit.order("a ferry in the fog")
    in_state(card, "failed")

    def told(route: Route) -> None:
        # As the studio tells of a job that a worker gave back when it was stopped.
        job = visit.page.request.get(f"{studio.url}/jobs/{card.get_attribute('data-id')}").json()
        data = json.dumps({**job, "version": job["version"] + 1, "retryCount": 0, "reason": INTERRUPTED, "dueAt": job["createdAt"]})
        route.fulfill(content_type="text/event-stream", body=f"retry: 60000\n\nevent: job\ndata: {data}\n\n")

    visit.page.route("**/events", told)
    visit.page.reload()
    expect(card.locator(".reason")).to_have_text(INTERRUPTED)
    expect(card.locator(".try")).to_be_hidden()


def test_what_is_refused_is_said_beside_the_form_until_it_is_changed(visit: Visit, somebody: User) -> None:
    page = visit.sign_in(somebody)
    page.get_by_role("button", name="Draw it").click()
    expect(page.locator("#order-problem")).to_have_text("The prompt says nothing: write what is to be drawn.")
    page.get_by_label("Seed").fill("many")
    expect(page.locator("#order-problem")).to_be_hidden()
    visit.order("a wren")
    expect(page.locator("#order-problem")).to_contain_text(f"from 0 to {LARGEST_SEED}")
    expect(page.locator(".card")).to_have_count(0)


def test_too_few_credits_show_the_balance_until_there_are_more(visit: Visit, studio: Shop) -> None:
    poor = studio.user(f"Poor {next(numbers)}", credits=1)
    page = visit.sign_in(poor)
    visit.order("a tall tower", "Tall")
    expect(page.locator("#order-problem")).to_contain_text("The price is 2")
    expect(page.locator("#order-problem")).to_contain_text("Your balance: 1 credit.")
    expect(page.locator(".card")).to_have_count(0)
    studio.people.grant(poor.name, 5, "more")
    visit.has_credits("6 credits")
    expect(page.locator("#order-problem")).to_be_hidden()


def test_an_order_that_waits_for_long_says_that_nobody_draws(browser: Browser, tmp_path: Path) -> None:
    with shop(tmp_path, "serve") as deserted:
        visit = Visit(browser, deserted)
        visit.page.clock.install()
        visit.sign_in(deserted.user("Ada"))
        card = visit.order("a desert")
        in_state(card, "queued")
        expect(card.locator(".reason")).to_be_hidden()
        # The first look at it begins the wait, and the one after twelve seconds ends it.
        visit.page.clock.run_for(2_000)
        visit.page.clock.run_for(12_000)
        expect(card.locator(".reason")).to_have_text("Nobody is drawing at the moment. It keeps its place.")
        visit.close()


def test_html_in_a_prompt_is_shown_as_text(visit: Visit, somebody: User) -> None:
    """On the card, above the large picture, and in the gallery."""
    page = visit.sign_in(somebody)
    card = visit.order(HTML)
    in_state(card, "completed")
    card.get_by_role("button", name="Open the picture").click()
    expect(page.locator("#large-prompt")).to_have_text(HTML)
    page.keyboard.press("Escape")
    visit.go("Gallery")
    expect(page.locator(".tile .words")).to_have_text(HTML)
    assert page.locator("b:has-text('bold'), img[src=x]").count() == 0
    assert page.title() == "Studio"


def test_a_link_that_has_ended_is_asked_for_anew(visit: Visit, somebody: User) -> None:
    page = visit.sign_in(somebody)
    ended: list[str] = []

    def first_time(route: Route) -> None:
        if ended:
            route.continue_()
            return
        ended.append(route.request.url)
        route.fulfill(status=403, json={"error": "The link has expired.", "reason": "link_expired"})

    page.route("**/images/**", first_time)
    card = visit.order("a mill by the weir")
    in_state(card, "completed")
    has_loaded(card.locator("img"), 1024)
    assert len(ended) == 1
    assert [each.status for each in visit.answered if each.url.endswith(f"/jobs/{card.get_attribute('data-id')}")] == [200]


def test_a_lost_connection_is_told_and_made_anew(visit: Visit, studio: Shop, somebody: User) -> None:
    page = visit.sign_in(somebody)
    expect(page.get_by_text("Nothing here yet.")).to_be_visible()
    studio.close()
    try:
        expect(page.get_by_text("reconnecting…")).to_be_visible()
        visit.order("a lamp in the window")
        expect(page.locator("#order-problem")).to_contain_text("did not answer")
    finally:
        studio.open()
    expect(page.get_by_text("reconnecting…")).to_be_hidden(timeout=20_000)
    expect(page.locator("#order-problem")).to_be_hidden()
    in_state(visit.order("a lamp in the window"), "completed")
