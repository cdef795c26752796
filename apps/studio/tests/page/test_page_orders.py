"""Orders on the page in a real browser: from the prompt to the picture."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from apps.common.tests.waiting import wait_until
from apps.studio.gallery import INTERRUPTED
from apps.studio.order import MAX_SEED
from apps.studio.tests.browser_session import BrowserSession, has_loaded, in_state
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.page.page_kit import numbers
from apps.studio.tests.running_studio import RunningStudio, running_studio
from apps.studio.users import User

pytestmark = pytest.mark.real

HTML = """<img src=x onerror="document.title='taken'"><b>bold</b> & "quoted" 'words'"""


# ---------------------------------------------------------------- from the prompt to the picture
def test_prompt_becomes_a_picture(visit: BrowserSession, studio: RunningStudio, somebody: User, tmp_path: Path) -> None:
    """The card and the balance update, and the picture opens, downloads and appears in the gallery."""
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

    card.get_by_role("button", name="Open picture").click()
    has_loaded(page.get_by_role("dialog").get_by_alt_text("a lighthouse at dusk"), 1536)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    assert saved.value.suggested_filename == "a-lighthouse-at-dusk.png"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    visit.go("Gallery")
    has_loaded(page.locator(".tile img"), 1536)


def test_reloaded_page_shows_existing_jobs(visit: BrowserSession, somebody: User) -> None:
    page = visit.sign_in(somebody)
    in_state(visit.order("a boat in the reeds"), "completed")
    page.reload()
    in_state(visit.card("a boat in the reeds"), "completed")
    has_loaded(visit.card("a boat in the reeds").locator("img"), 1024)
    visit.has_credits("9 credits")


def test_page_works_with_the_keyboard_alone(visit: BrowserSession, somebody: User) -> None:
    page = visit.page
    page.goto(visit.studio.url)
    expect(page.get_by_label("Access key")).to_be_focused()
    page.keyboard.insert_text(somebody.key or "")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Describe your picture")).to_be_focused()
    page.keyboard.insert_text("a heron")
    page.keyboard.press("Control+Enter")
    in_state(visit.card("a heron"), "completed")
    expect(page.locator("#announcements")).to_have_text("Done: a heron")
    visit.card("a heron").get_by_role("button", name="Open picture").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_double_click_creates_one_job(visit: BrowserSession, studio: RunningStudio, somebody: User) -> None:
    """There is one card and one deduction, and the page says so until the order changes."""
    page = visit.sign_in(somebody)
    page.get_by_label("Describe your picture").fill("two foxes")
    # In the next minute the same order would be a new job.
    wait_until(lambda: datetime.now(UTC).second < 50)
    page.get_by_role("button", name="Draw it").dblclick()
    in_state(visit.card("two foxes"), "completed")
    # The server may answer the second request first.
    posted = [each for each in visit.answered if each.request.method == "POST" and each.url.endswith("/jobs")]
    assert sorted(each.status for each in posted) == [200, 201]
    note = page.get_by_text(
        "You already ordered this picture. To get another one, change the seed or wait until the next minute."
    )
    expect(note).to_be_visible()
    expect(page.locator(".card")).to_have_count(1)
    assert studio.available(somebody) == 9
    page.get_by_label("Seed").fill("7")
    expect(note).to_be_hidden()


def test_back_closes_the_viewer_and_keeps_the_view(visit: BrowserSession, somebody: User) -> None:
    """After any way of closing it, the next Back leads to the previous view."""
    page = visit.sign_in(somebody)
    in_state(visit.order("a kite"), "completed")
    visit.go("Gallery")
    opener, dialog = page.locator(".tile").get_by_role("button", name="Open picture"), page.get_by_role("dialog")
    for close in (
        page.go_back,
        lambda: page.keyboard.press("Escape"),
        dialog.get_by_role("button", name="Close").click,
    ):
        opener.click()
        expect(dialog).to_be_visible()
        close()
        expect(dialog).to_have_count(0)
        expect(page.locator("#gallery")).to_be_visible()
    page.go_back()
    expect(page.locator("#create")).to_be_visible()


def test_arrow_keys_show_the_next_and_previous_picture(visit: BrowserSession, somebody: User) -> None:
    page = visit.sign_in(somebody)
    for prompt in ("the older", "the newer"):
        in_state(visit.order(prompt), "completed")
    visit.card("the newer").get_by_role("button", name="Open picture").click()
    for key, prompt in (("ArrowRight", "the older"), ("ArrowRight", "the older"), ("ArrowLeft", "the newer")):
        page.keyboard.press(key)
        expect(page.locator("#large-prompt")).to_have_text(prompt)


# ---------------------------------------------------------------- failures
def test_rejected_picture_shows_the_reason_and_is_not_refunded(
    visit: BrowserSession, studio: RunningStudio, somebody: User
) -> None:
    page = visit.sign_in(somebody)
    studio.images.block_words.add("gruesome")
    card = visit.order("a gruesome scene")
    in_state(card, "rejected")
    expect(card.locator(".reason")).to_contain_text("Rejected as unsafe. Its 1 credit is not refunded.")
    expect(card.locator("img")).to_have_count(0)
    visit.has_credits("9 credits")
    page.locator("#credits").click()
    expect(page.get_by_role("dialog").locator("#sums")).to_contain_text("Not refunded after a rejection1")
    # The reserve and the forfeit are shown as one line.
    expect(page.locator("#entries li")).to_have_text([re.compile("^a gruesome scene−1"), re.compile(r"^Granted\+10")])


def test_failed_job_shows_when_it_is_retried(visit: BrowserSession, studio: RunningStudio, somebody: User) -> None:
    visit.sign_in(somebody)
    studio.images.fail(Fault.limited(900))
    card = visit.order("a slow river")
    in_state(card, "failed")
    expect(card.locator(".reason")).to_contain_text(re.compile(r"Retrying in 1\d min\."))
    expect(card.locator(".try")).to_have_text("1 of 4 tries failed")


def test_interrupted_job_is_not_shown_as_a_failure(
    visit: BrowserSession, studio: RunningStudio, somebody: User
) -> None:
    studio.images.fail(Fault.limited(900))
    visit.sign_in(somebody)
    card = visit.order("a ferry in the fog")
    in_state(card, "failed")

    def told(route: Route) -> None:
        # A job that its worker returned when it was stopped.
        job = visit.page.request.get(f"{studio.url}/jobs/{card.get_attribute('data-id')}").json()
        data = json.dumps(
            {**job, "version": job["version"] + 1, "retryCount": 0, "reason": INTERRUPTED, "dueAt": job["createdAt"]}
        )
        route.fulfill(content_type="text/event-stream", body=f"retry: 60000\n\nevent: job\ndata: {data}\n\n")

    visit.page.route("**/events", told)
    visit.page.reload()
    expect(card.locator(".reason")).to_have_text(INTERRUPTED)
    expect(card.locator(".try")).to_be_hidden()


def test_error_is_shown_until_the_form_changes(visit: BrowserSession, somebody: User) -> None:
    page = visit.sign_in(somebody)
    page.get_by_role("button", name="Draw it").click()
    expect(page.locator("#order-problem")).to_have_text("Enter a prompt.")
    page.get_by_label("Seed").fill("many")
    expect(page.locator("#order-problem")).to_be_hidden()
    visit.order("a wren")
    expect(page.locator("#order-problem")).to_contain_text(f"from 0 to {MAX_SEED}")
    expect(page.locator(".card")).to_have_count(0)


def test_too_few_credits_show_the_balance_until_a_grant(visit: BrowserSession, studio: RunningStudio) -> None:
    poor = studio.user(f"Poor {next(numbers)}", credits=1)
    page = visit.sign_in(poor)
    visit.order("a tall tower", "Tall")
    expect(page.locator("#order-problem")).to_contain_text("This picture costs 2 credits; you have 1")
    expect(page.locator("#order-problem")).to_contain_text("Your balance: 1 credit.")
    expect(page.locator(".card")).to_have_count(0)
    studio.users.grant(poor.name, 5, "more")
    visit.has_credits("6 credits")
    expect(page.locator("#order-problem")).to_be_hidden()


def test_long_wait_shows_that_no_worker_is_running(browser: Browser, tmp_path: Path) -> None:
    with running_studio(tmp_path, "serve") as deserted:
        visit = BrowserSession(browser, deserted)
        visit.page.clock.install()
        visit.sign_in(deserted.user("Ada"))
        card = visit.order("a desert")
        in_state(card, "queued")
        expect(card.locator(".reason")).to_be_hidden()
        # The first tick starts the wait; the one after twelve seconds checks the health.
        visit.page.clock.run_for(2_000)
        visit.page.clock.run_for(12_000)
        expect(card.locator(".reason")).to_have_text("No worker is running. Your order stays in the queue.")
        visit.close()


def test_html_in_a_prompt_is_shown_as_text(visit: BrowserSession, somebody: User) -> None:
    """This holds on the card, in the viewer and in the gallery."""
    page = visit.sign_in(somebody)
    card = visit.order(HTML)
    in_state(card, "completed")
    card.get_by_role("button", name="Open picture").click()
    expect(page.locator("#large-prompt")).to_have_text(HTML)
    page.keyboard.press("Escape")
    visit.go("Gallery")
    expect(page.locator(".tile .words")).to_have_text(HTML)
    assert page.locator("b:has-text('bold'), img[src=x]").count() == 0
    assert page.title() == "Studio"


def test_expired_link_is_renewed(visit: BrowserSession, somebody: User) -> None:
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
    assert [each.status for each in visit.answered if each.url.endswith(f"/jobs/{card.get_attribute('data-id')}")] == [
        200
    ]


def test_lost_connection_is_shown_and_restored(visit: BrowserSession, studio: RunningStudio, somebody: User) -> None:
    page = visit.sign_in(somebody)
    expect(page.get_by_text("Nothing here yet.")).to_be_visible()
    studio.close()
    try:
        expect(page.get_by_text("reconnecting…")).to_be_visible()
        visit.order("a lamp in the window")
        expect(page.locator("#order-problem")).to_contain_text("did not respond")
    finally:
        studio.open()
    expect(page.get_by_text("reconnecting…")).to_be_hidden(timeout=20_000)
    expect(page.locator("#order-problem")).to_be_hidden()
    in_state(visit.order("a lamp in the window"), "completed")
