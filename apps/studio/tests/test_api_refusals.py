"""Promises about what the interface refuses: a 4xx with a code for programs, whatever was sent, and nothing is stored or deducted."""

import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from sqlalchemy.exc import OperationalError

from apps.studio.body import DROPPED, LARGEST
from apps.studio.gallery import Gallery
from apps.studio.order import LARGEST_SEED
from apps.studio.prompt_guard import LONGEST, PromptGuard
from apps.studio.session import COOKIE
from apps.studio.tests import kit
from apps.studio.tests.clients import HOST, JSON, NO_ID, Http, Somebody, refused
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier
from interlock import Unavailable

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


@pytest.fixture
def ann(atelier: Atelier) -> Somebody:
    return Somebody(atelier, "ann")


@pytest.fixture
def strict(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[Atelier]:
    """An atelier with a list of words, and a moderation model that is away while somebody speaks of it."""
    def moderator(prompt: str) -> str | None:
        if "away" in prompt:
            raise ConnectionError("secret")
        return "it is a weapon" if "sword" in prompt else None

    with kit.atelier(database_url, images, quick_path, guard=PromptGuard.of(["forbidden hill"]), moderator=moderator) as made:
        yield made


# ---------------------------------------------------------------- orders that are refused
REFUSED: list[tuple[dict[str, object], int, str]] = [
    ({"prompt": ""}, 422, "prompt_empty"),
    ({"prompt": " \n ... "}, 422, "prompt_empty"),
    ({"prompt": "x" * (LONGEST + 1)}, 422, "prompt_too_long"),
    ({"prompt": "a \x00 hill"}, 422, "prompt_characters"),
    ({"prompt": "a \ud800 hill"}, 422, "prompt_characters"),
    ({"prompt": "a \u202e hill"}, 422, "prompt_characters"),
    ({"prompt": "a FORBIDDEN  Hill"}, 422, "prompt_blocked"),
    ({"prompt": "a sword"}, 422, "prompt_flagged"),
    ({"prompt": "an away day"}, 503, "moderation_unavailable"),
    ({"size": "1x1"}, 400, "params_invalid"),
    ({"size": "\x00\ud800"}, 400, "params_invalid"),
    ({"seed": -1}, 400, "params_invalid"),
    ({"seed": LARGEST_SEED + 1}, 400, "params_invalid"),
    ({"seed": 10**300}, 400, "params_invalid"),
    ({"seed": 1.0}, 400, "request_invalid"),
    ({"seed": True}, 400, "request_invalid"),
    ({"seed": "7"}, 400, "request_invalid"),
    ({"seed": float("nan")}, 400, "request_invalid"),
    ({"seed": float("inf")}, 400, "request_invalid"),
    ({"size": 1024}, 400, "request_invalid"),
    ({"prompt": None}, 400, "request_invalid"),
    ({"prompt": ["a hill"]}, 400, "request_invalid"),
    ({"user": 1}, 400, "request_invalid"),
    ({"cost": 0}, 400, "request_invalid"),
    ({"\ud800": 0}, 400, "request_invalid"),
]


def test_every_refusal_has_its_code_and_stores_nothing(strict: Atelier) -> None:
    somebody = Somebody(strict, "ann")
    before, balance = strict.stored(), strict.balance(somebody.id)
    for change, status, reason in REFUSED:
        answer = somebody.post("/jobs", content=json.dumps({"prompt": "a hill", **change}), headers=JSON)
        assert "secret" not in refused(answer, status, reason)
        assert (strict.stored(), strict.balance(somebody.id)) == (before, balance), change
    assert somebody.create().status_code == 201


def test_who_has_too_few_credits_is_told_to_pay(atelier: Atelier) -> None:
    poor = Somebody(atelier, "poor", credits=1)
    before = atelier.stored()
    refused(poor.create(size="1536x1024"), 402, "credits_insufficient", "credits")
    assert atelier.stored() == before
    assert poor.create().status_code == 201


@once
def test_a_body_that_nobody_can_read_is_refused(atelier: Atelier, ann: Somebody) -> None:
    before = atelier.stored()
    for body in (
        b"{", b"[]", b"null", b"", b"\xff\xfe", b'{"prompt": "a", "prompt": "b"}', b"[" * 60_000, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'\xef\xbb\xbf{"prompt": "a"}', '{"prompt": "a"}'.encode("utf-16"),
    ):
        refused(ann.post("/jobs", content=body, headers=JSON), 400, "request_invalid")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/jsonp", ""):
        refused(ann.post("/jobs", content=b'{"prompt": "a"}', headers={"Content-Type": kind}), 415, "content_type")
    assert atelier.stored() == before
    assert ann.post("/jobs", content=b'{"prompt": "a"}', headers={"Content-Type": "Application/JSON; charset=utf-8"}).status_code == 201


VALUES = some.none() | some.booleans() | some.integers() | some.floats() | some.text(some.characters(), max_size=20) | some.lists(some.integers(), max_size=2)
BODIES = some.one_of(
    some.binary(max_size=200),
    some.dictionaries(some.sampled_from(["prompt", "size", "seed"]) | some.text(max_size=5), VALUES, max_size=4).map(lambda body: json.dumps(body).encode()),
    some.fixed_dictionaries({"prompt": some.text(some.characters(), max_size=40), "seed": some.integers() | some.floats() | some.none()}).map(
        lambda body: json.dumps(body).encode()),
)


def test_whatever_is_sent_is_an_order_or_a_refusal(atelier: Atelier) -> None:
    rich = Somebody(atelier, "rich", credits=1_000_000)

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(BODIES)
    def holds(body: bytes) -> None:
        before = atelier.stored()
        answer = rich.post("/jobs", content=body, headers=JSON)
        if answer.status_code in (200, 201):
            assert answer.json()["prompt"]
            return
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["reason"]
        assert atelier.stored() == before

    holds()
    atelier.check()


@once
@pytest.mark.parametrize(("size", "read"), [(LARGEST + 1, LARGEST + 1), (2 * DROPPED, LARGEST + DROPPED)])
def test_a_body_that_is_too_long_is_dropped_up_to_a_bound(atelier: Atelier, ann: Somebody, size: int, read: int) -> None:
    """Whatever its head said: it is counted as it comes."""
    sent, before = [0], atelier.stored()

    async def body() -> AsyncIterator[bytes]:
        while sent[0] < size:
            chunk = min(2**16, size - sent[0])
            sent[0] += chunk
            yield b" " * chunk

    refused(ann.post("/jobs", content=body(), headers=JSON), 413, "body_too_large", "64 KiB")
    assert read <= sent[0] <= read + 2**16
    assert atelier.stored() == before


@once
def test_who_is_unknown_is_turned_away_before_their_body_is_read(ann: Somebody) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    refused(Http(ann.app).post("/jobs", content=body(), headers=JSON), 401, "unauthorized")


def test_notes_of_a_review_are_checked_before_anything_is_decided(atelier: Atelier, ann: Somebody) -> None:
    eve = Somebody(atelier, "eve", admin=True)
    id = ann.create().json()["id"]
    atelier.images.fail(Fault.unauthorized())
    atelier.run()
    before = atelier.stored()
    for (verb, name), value in itertools.product((("redrive", "reason"), ("close", "note")), ("a\x00b", "a\ud800", "a\nb", "x" * 501, 7, ["a"])):
        refused(eve.post(f"/dead-letters/{id}/{verb}", content=json.dumps({name: value}), headers=JSON), 400, "request_invalid", name)
        refused(eve.post(f"/dead-letters/{id}/{verb}", content=json.dumps({"by": "ann"}), headers=JSON), 400, "request_invalid", "by")
    assert atelier.stored() == before


# ---------------------------------------------------------------- another site's page
FOREIGN: list[dict[str, str]] = [
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://studio.evil.example"}, {"Origin": "http://studio:81"}, {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"}, {},
]


def test_another_site_s_page_does_nothing_in_anybody_s_name(atelier: Atelier) -> None:
    """Its requests carry the cookie all the same."""
    eve = Somebody(atelier, "eve", admin=True)
    cookie = {"Cookie": eve.browser().headers["Cookie"]}
    before = atelier.stored()
    asked = [("POST", "/jobs"), ("POST", f"/dead-letters/{NO_ID}/redrive"), ("POST", f"/dead-letters/{NO_ID}/close"), ("DELETE", "/session")]
    for (method, path), origin in itertools.product(asked, FOREIGN):
        refused(Http(eve.app, {**cookie, **origin}).request(method, path, content='{"prompt": "a hill"}', headers=JSON), 403, "foreign_origin")
    form = Http(eve.app, {**cookie, "Origin": HOST, "Content-Type": "text/plain"})
    refused(form.post("/jobs", content='{"prompt": "a hill"}'), 415, "content_type")
    refused(form.post(f"/dead-letters/{NO_ID}/close"), 415, "content_type")
    assert atelier.stored() == before
    for own in ({"Origin": HOST}, {"Origin": "https://studio"}, {"Sec-Fetch-Site": "same-origin"}):
        assert Http(eve.app, {**cookie, **own}).post("/jobs", json={"prompt": "a hill"}).status_code in (200, 201)


def test_another_site_s_page_signs_nobody_in(atelier: Atelier, ann: Somebody) -> None:
    before = atelier.stored()
    for origin in FOREIGN[:-1]:
        answer = Http(ann.app, origin).post("/session", json={"key": ann.key})
        refused(answer, 403, "foreign_origin")
        assert "set-cookie" not in answer.headers
    assert atelier.stored() == before


@once
def test_from_a_page_over_https_nothing_unencrypted_is_taken(ann: Somebody) -> None:
    browser = ann.browser("https://studio")
    refused(browser.post("/jobs", json={"prompt": "a hill"}, headers={"Origin": "http://studio"}), 403, "foreign_origin")
    assert browser.post("/jobs", json={"prompt": "a hill"}).status_code == 201


# ---------------------------------------------------------------- what is away or broken
@pytest.mark.parametrize("error", [
    Unavailable("postgresql://ann:secret@db/studio is away"), OperationalError("SELECT secret FROM users", {"token": "secret"}, Exception("gone")),
])
def test_a_database_that_is_away_is_told_so(ann: Somebody, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(Gallery, "jobs", _raises(error))
    assert "secret" not in refused(ann.get("/jobs"), 503, "database_unavailable", "try again")


@once
def test_a_database_that_is_gone_is_told_so_at_every_address(atelier: Atelier, ann: Somebody) -> None:
    atelier.studio.engine.dispose()
    asked = [("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/credits"), ("GET", "/events"), ("GET", f"/images/{NO_ID}")]
    file = Path(str(atelier.studio.engine.url.database))
    aside = file.rename(file.with_suffix(".aside"))
    file.mkdir()
    try:
        for method, path in asked:
            refused(ann.request(method, path), 503, "database_unavailable")
        refused(Http(ann.app).post("/session", json={"key": ann.key}), 503, "database_unavailable")
    finally:
        file.rmdir()
        aside.rename(file)


@once
def test_what_breaks_is_told_in_one_sentence_and_left_to_the_log(ann: Somebody, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gallery, "jobs", _raises(ZeroDivisionError("secret")))
    ann.quiet = True
    assert "secret" not in refused(ann.get("/jobs"), 500, "broken", "log")


def _raises(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@once
def test_other_addresses_and_methods_are_refused_as_json(ann: Somebody) -> None:
    nowhere = [("GET", path, 404, "not_found") for path in ("/nowhere", "/jobs/", "/index.html", "/api.py", "/page/studio.js")]
    unable = [(method, path, 405, "method_not_allowed") for method, path in (("PUT", "/jobs"), ("DELETE", "/credits"), ("POST", "/"))]
    for method, path, status, reason in (*nowhere, *unable):
        refused(ann.request(method, path), status, reason, "address")


def test_keys_and_tokens_are_in_no_log_and_no_refusal(
        atelier: Atelier, ann: Somebody, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG)
    browser, wrong = ann.browser(), "studio_a_key_that_nobody_has"
    token = browser.headers["Cookie"].removeprefix(f"{COOKIE}=")
    answers = [
        Http(ann.app).post("/session", json={"key": wrong}), Http(ann.app).get("/jobs", headers={"Authorization": f"Bearer {wrong}"}),
        Http(ann.app).post("/session", json={"key": ann.key, "password": "x"}), browser.get("/session"), browser.post("/jobs", json={"prompt": ""}),
        ann.create(), ann.get("/credits"), ann.get("/jobs/nonsense"), ann.post("/jobs", content=ann.key, headers=JSON),
    ]
    monkeypatch.setattr(Gallery, "jobs", _raises(OperationalError("SELECT", {"key": ann.key}, Exception("gone"))))
    answers.append(ann.get("/jobs"))
    atelier.run()
    told = caplog.text + "".join(answer.text for answer in answers)
    assert "The database cannot be asked: gone" in caplog.text
    for secret in (ann.key, token, wrong):
        assert secret not in told
