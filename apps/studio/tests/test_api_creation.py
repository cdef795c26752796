"""POST /jobs: an order creates one job and one deduction, however often it is sent, and prompts come back as text."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from apps.studio.api import api
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.http_clients import JSON, ApiUser, HttpClient
from apps.studio.tests.scenarios import run_concurrently
from apps.studio.tests.studio_kit import StudioKit

HTML = '<script>alert("1")</script><img src=x onerror=alert(1)> & \u2028 "quoted"'


@pytest.fixture
def ann(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "ann")


def test_new_order_is_created_with_its_location(kit: StudioKit, ann: ApiUser) -> None:
    answer = ann.create("a hill", seed=7)
    assert (answer.status_code, answer.headers["location"]) == (201, f"/jobs/{answer.json()['id']}")
    assert ann.get(answer.headers["location"]).json() == answer.json()
    assert kit.balance(ann.id).reserved == 1
    kit.check()


def test_double_click_returns_the_same_job(kit: StudioKit, ann: ApiUser) -> None:
    first, before = ann.create(), kit.stored()
    again = ann.create()
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert kit.stored() == before
    assert kit.balance(ann.id).reserved == 1


def test_network_retry_finds_the_completed_job(kit: StudioKit, ann: ApiUser) -> None:
    """The first response was lost, but the picture was made."""
    id = ann.create().json()["id"]
    kit.run()
    again = ann.create()
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (200, id, "completed")
    assert kit.balance(ann.id).available == 9
    kit.check()


def test_two_tabs_and_a_program_at_once_create_one_job(kit: StudioKit, ann: ApiUser) -> None:
    """Each uses its own API instance, like processes behind a load balancer."""
    new_prompt = {"json": {"prompt": "a hill"}}
    browser = ann.browser()
    tabs = [
        HttpClient(api(kit.studio, now=kit.clock.now), headers)
        for headers in (browser.headers, browser.headers, ann.headers, ann.headers)
    ]
    answers = run_concurrently(*(lambda tab=tab: tab.post("/jobs", **new_prompt) for tab in tabs))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert kit.balance(ann.id).reserved == 1
    kit.check()


def test_same_order_makes_a_failed_job_due(kit: StudioKit, ann: ApiUser) -> None:
    id = ann.create().json()["id"]
    kit.images.fail(Fault.trouble())
    kit.run()
    assert ann.get(f"/jobs/{id}").json()["status"] == "failed"
    again = ann.create()
    assert (again.status_code, again.json()["id"]) == (200, id)
    assert datetime.fromisoformat(again.json()["dueAt"]) == kit.clock.now()
    kit.run()
    assert ann.get(f"/jobs/{id}").json()["status"] == "completed"
    assert kit.balance(ann.id).available == 9
    kit.check()


def test_minute_of_arrival_counts_even_if_the_body_is_slow(kit: StudioKit, ann: ApiUser) -> None:
    first = ann.create("a hill")

    async def slowly() -> AsyncIterator[bytes]:
        kit.clock.advance(60)
        yield b'{"prompt": "a hill"}'

    again = ann.post("/jobs", content=slowly(), headers=JSON)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, first.json()["id"])
    assert kit.balance(ann.id).reserved == 1
    kit.check()


def test_another_minute_user_or_parameter_is_another_order(kit: StudioKit, ann: ApiUser) -> None:
    bob = ApiUser(kit, "bob")
    answers = [ann.create(), bob.create(), ann.create(seed=1), ann.create(seed=2), ann.create(size="1536x1024")]
    kit.clock.advance(60)
    answers.append(ann.create())
    assert [answer.status_code for answer in answers] == [201] * 6
    assert len({answer.json()["id"] for answer in answers}) == 6
    assert (kit.balance(ann.id).reserved, kit.balance(bob.id).reserved) == (6, 1)


def test_missing_parameters_equal_their_defaults(ann: ApiUser) -> None:
    """A request with the default value and one without it are the same order."""
    first = ann.post("/jobs", json={"prompt": "a hill"})
    again = ann.post("/jobs", json={"prompt": "  a hill\r\n", "size": "1024x1024", "seed": None})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


def test_html_in_a_prompt_is_returned_as_text(kit: StudioKit, ann: ApiUser) -> None:
    created = ann.create(HTML)
    kit.run()
    for answer in (created, ann.get("/jobs"), ann.get(created.headers["location"]), ann.get("/assets")):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.content.isascii()
    assert ann.get("/jobs").json()["jobs"][0]["prompt"] == HTML
    assert ann.get("/assets").json()["assets"][0]["prompt"] == HTML
