"""The HTTP API for administrators: dead letters are listed, redriven and closed."""

import pytest

from apps.studio.api import api
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.http_clients import JSON, ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


@pytest.fixture
def ann(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "ann")


@pytest.fixture
def bob(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "bob")


@pytest.fixture
def eve(kit: StudioKit) -> ApiUser:
    """An administrator."""
    return ApiUser(kit, "eve", admin=True)


@pytest.fixture
def stranger(kit: StudioKit) -> HttpClient:
    """A client without an access key."""
    return HttpClient(api(kit.studio, now=kit.clock.now))


def dead(kit: StudioKit, somebody: ApiUser) -> str:
    id: str = somebody.create().json()["id"]
    kit.images.fail(Fault.unauthorized())
    kit.run()
    assert kit.state(id) == "dead_letter"
    return id


def test_only_administrators_review_dead_letters(kit: StudioKit, ann: ApiUser) -> None:
    """The owner of the job is refused, too."""
    id, before = dead(kit, ann), kit.stored()
    for browser in (ann, ann.browser()):
        before["studio_sessions"] = kit.stored()["studio_sessions"]
        for method, path in (
            ("GET", "/dead-letters"),
            ("POST", f"/dead-letters/{id}/redrive"),
            ("POST", f"/dead-letters/{id}/close"),
        ):
            refused(browser.request(method, path, headers=JSON), 403, "forbidden", "administrator")
    assert kit.stored() == before


def test_redrive_creates_a_job_and_reserves_credits_again(kit: StudioKit, ann: ApiUser, eve: ApiUser) -> None:
    id = dead(kit, ann)
    (letter,) = eve.get("/dead-letters").json()["deadLetters"]
    assert (letter["job"]["id"], letter["userName"], letter["decision"]) == (id, "ann", None)
    assert set(letter) == {"job", "userName", "reason", "decision", "successor", "note", "by", "at"}
    assert "401" in letter["reason"]
    answer = eve.post(f"/dead-letters/{id}/redrive", json={"reason": "the key is fixed"})
    assert answer.status_code == 201
    assert kit.balance(ann.id).reserved == 1
    assert eve.get("/dead-letters").json() == {"deadLetters": []}
    kit.run()
    assert ann.get(f"/jobs/{answer.json()['id']}").json()["status"] == "completed"
    refused(eve.post(f"/dead-letters/{id}/redrive"), 409, "conflict")
    kit.check()


def test_dead_letter_is_closed_once(kit: StudioKit, ann: ApiUser, eve: ApiUser) -> None:
    id = dead(kit, ann)
    answer = eve.browser().post(f"/dead-letters/{id}/close", json={"note": "not needed"})
    told = answer.json()
    assert (answer.status_code, told["decision"], told["by"], told["note"]) == (200, "closed", "eve", "not needed")
    before = kit.stored()
    refused(eve.post(f"/dead-letters/{id}/close"), 409, "conflict")
    refused(eve.post(f"/dead-letters/{id}/redrive"), 409, "conflict")
    assert kit.stored() == before


def test_redrive_without_credits_is_refused(kit: StudioKit, eve: ApiUser) -> None:
    poor = ApiUser(kit, "poor", credits=1)
    id = dead(kit, poor)
    poor.create("something else")
    before = kit.stored()
    refused(eve.post(f"/dead-letters/{id}/redrive"), 402, "credits_insufficient")
    assert kit.stored() == before


def test_only_dead_letters_can_be_reviewed(kit: StudioKit, ann: ApiUser, eve: ApiUser) -> None:
    id, before = ann.create().json()["id"], kit.stored()["studio_reviews"]
    refused(eve.post(f"/dead-letters/{id}/close"), 404, "not_found")
    assert eve.post(f"/dead-letters/{id}/redrive").status_code == 409
    assert kit.stored()["studio_reviews"] == before
