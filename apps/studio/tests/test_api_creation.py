"""Promises about POST /jobs: one wish is one job and one deduction, however often it is sent, and what somebody wrote comes back as text."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from apps.studio.api import api
from apps.studio.tests.clients import JSON, Http, Somebody
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier
from apps.studio.tests.scenes import at_once

HTML = '<script>alert("1")</script><img src=x onerror=alert(1)> & \u2028 "quoted"'


@pytest.fixture
def ann(atelier: Atelier) -> Somebody:
    return Somebody(atelier, "ann")


def test_a_new_wish_is_created_with_its_address(atelier: Atelier, ann: Somebody) -> None:
    answer = ann.create("a hill", seed=7)
    assert (answer.status_code, answer.headers["location"]) == (201, f"/jobs/{answer.json()['id']}")
    assert ann.get(answer.headers["location"]).json() == answer.json()
    assert atelier.balance(ann.id).reserved == 1
    atelier.check()


def test_a_double_click_is_answered_with_the_same_job(atelier: Atelier, ann: Somebody) -> None:
    first, before = ann.create(), atelier.stored()
    again = ann.create()
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert atelier.stored() == before
    assert atelier.balance(ann.id).reserved == 1


def test_a_network_retry_of_what_was_done_meanwhile_finds_it_done(atelier: Atelier, ann: Somebody) -> None:
    """The first answer was lost on its way; the picture was made all the same."""
    id = ann.create().json()["id"]
    atelier.run()
    again = ann.create()
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (200, id, "completed")
    assert atelier.balance(ann.id).available == 9
    atelier.check()


def test_two_tabs_and_a_program_at_once_make_one_job(atelier: Atelier, ann: Somebody) -> None:
    """Each speaks to an interface of its own, as to processes behind a balancer."""
    wish = {"json": {"prompt": "a hill"}}
    browser = ann.browser()
    tabs = [Http(api(atelier.studio, now=atelier.clock.now), headers) for headers in (browser.headers, browser.headers, ann.headers, ann.headers)]
    answers = at_once(*(lambda tab=tab: tab.post("/jobs", **wish) for tab in tabs))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert atelier.balance(ann.id).reserved == 1
    atelier.check()


def test_the_same_wish_while_it_rests_after_a_failure_wakes_it(atelier: Atelier, ann: Somebody) -> None:
    id = ann.create().json()["id"]
    atelier.images.fail(Fault.trouble())
    atelier.run()
    assert ann.get(f"/jobs/{id}").json()["status"] == "failed"
    again = ann.create()
    assert (again.status_code, again.json()["id"]) == (200, id)
    assert datetime.fromisoformat(again.json()["dueAt"]) == atelier.clock.now()
    atelier.run()
    assert ann.get(f"/jobs/{id}").json()["status"] == "completed"
    assert atelier.balance(ann.id).available == 9
    atelier.check()


def test_the_minute_of_a_wish_is_the_one_in_which_it_arrived_however_long_it_is_read(atelier: Atelier, ann: Somebody) -> None:
    first = ann.create("a hill")

    async def slowly() -> AsyncIterator[bytes]:
        atelier.clock.advance(60)
        yield b'{"prompt": "a hill"}'

    again = ann.post("/jobs", content=slowly(), headers=JSON)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, first.json()["id"])
    assert atelier.balance(ann.id).reserved == 1
    atelier.check()


def test_another_minute_another_user_or_other_params_are_another_wish(atelier: Atelier, ann: Somebody) -> None:
    bob = Somebody(atelier, "bob")
    answers = [ann.create(), bob.create(), ann.create(seed=1), ann.create(seed=2), ann.create(size="1536x1024")]
    atelier.clock.advance(60)
    answers.append(ann.create())
    assert [answer.status_code for answer in answers] == [201] * 6
    assert len({answer.json()["id"] for answer in answers}) == 6
    assert (atelier.balance(ann.id).reserved, atelier.balance(bob.id).reserved) == (6, 1)


def test_what_is_left_out_has_its_usual_value(ann: Somebody) -> None:
    """So a client that sends it, and one that does not, mean the same."""
    first = ann.post("/jobs", json={"prompt": "a hill"})
    again = ann.post("/jobs", json={"prompt": "  a hill\r\n", "size": "1024x1024", "seed": None})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


def test_html_in_a_prompt_is_text_wherever_it_comes_back(atelier: Atelier, ann: Somebody) -> None:
    created = ann.create(HTML)
    atelier.run()
    for answer in (created, ann.get("/jobs"), ann.get(created.headers["location"]), ann.get("/assets")):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.content.isascii()
    assert ann.get("/jobs").json()["jobs"][0]["prompt"] == HTML
    assert ann.get("/assets").json()["assets"][0]["prompt"] == HTML
