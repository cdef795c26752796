"""Requests from other sites' pages are refused (CSRF)."""

import itertools

import pytest

from apps.studio.tests.http_clients import HOST, JSON, NO_ID, ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


@pytest.fixture
def ann(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "ann")


FOREIGN: list[dict[str, str]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://studio.evil.example"},
    {"Origin": "http://studio:81"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {},
]


def test_requests_from_another_site_change_nothing(kit: StudioKit) -> None:
    """Browsers send the cookie with them."""
    eve = ApiUser(kit, "eve", admin=True)
    cookie = {"Cookie": eve.browser().headers["Cookie"]}
    before = kit.stored()
    asked = [
        ("POST", "/jobs"),
        ("POST", f"/dead-letters/{NO_ID}/redrive"),
        ("POST", f"/dead-letters/{NO_ID}/close"),
        ("DELETE", "/session"),
    ]
    for (method, path), origin in itertools.product(asked, FOREIGN):
        refused(
            HttpClient(eve.app, {**cookie, **origin}).request(
                method, path, content='{"prompt": "a hill"}', headers=JSON
            ),
            403,
            "foreign_origin",
        )
    form = HttpClient(eve.app, {**cookie, "Origin": HOST, "Content-Type": "text/plain"})
    refused(form.post("/jobs", content='{"prompt": "a hill"}'), 415, "content_type")
    refused(form.post(f"/dead-letters/{NO_ID}/close"), 415, "content_type")
    assert kit.stored() == before
    for own in ({"Origin": HOST}, {"Origin": "https://studio"}, {"Sec-Fetch-Site": "same-origin"}):
        assert HttpClient(eve.app, {**cookie, **own}).post("/jobs", json={"prompt": "a hill"}).status_code in (200, 201)


def test_another_site_cannot_sign_a_user_in(kit: StudioKit, ann: ApiUser) -> None:
    before = kit.stored()
    for origin in FOREIGN[:-1]:
        answer = HttpClient(ann.app, origin).post("/session", json={"key": ann.key})
        refused(answer, 403, "foreign_origin")
        assert "set-cookie" not in answer.headers
    assert kit.stored() == before


@once
def test_http_origin_is_refused_over_https(ann: ApiUser) -> None:
    browser = ann.browser("https://studio")
    refused(
        browser.post("/jobs", json={"prompt": "a hill"}, headers={"Origin": "http://studio"}), 403, "foreign_origin"
    )
    assert browser.post("/jobs", json={"prompt": "a hill"}).status_code == 201
