"""Refused requests: a status and a code, whatever was sent, and nothing is stored or deducted."""

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

from apps.studio.gallery import Gallery
from apps.studio.order import MAX_SEED
from apps.studio.prompt_guard import MAX_LENGTH, PromptGuard
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.http_clients import JSON, NO_ID, ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit, studio_kit
from apps.studio.web.auth import COOKIE
from apps.studio.web.request_body import MAX_BODY, MAX_DISCARDED
from interlock import Unavailable

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


@pytest.fixture
def ann(kit: StudioKit) -> ApiUser:
    return ApiUser(kit, "ann")


@pytest.fixture
def strict(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[StudioKit]:
    """A studio with a block list, and a moderation model that fails for one word."""

    def moderator(prompt: str) -> str | None:
        if "away" in prompt:
            raise ConnectionError("secret")
        return "it is a weapon" if "sword" in prompt else None

    with studio_kit(
        database_url, images, quick_path, guard=PromptGuard.of(["forbidden hill"]), moderator=moderator
    ) as made:
        yield made


# ---------------------------------------------------------------- refused orders
REFUSED: list[tuple[dict[str, object], int, str]] = [
    ({"prompt": ""}, 422, "prompt_empty"),
    ({"prompt": " \n ... "}, 422, "prompt_empty"),
    ({"prompt": "x" * (MAX_LENGTH + 1)}, 422, "prompt_too_long"),
    ({"prompt": "a \x00 hill"}, 422, "prompt_characters"),
    ({"prompt": "a \ud800 hill"}, 422, "prompt_characters"),
    ({"prompt": "a \u202e hill"}, 422, "prompt_characters"),
    ({"prompt": "a FORBIDDEN  Hill"}, 422, "prompt_blocked"),
    ({"prompt": "a sword"}, 422, "prompt_flagged"),
    ({"prompt": "an away day"}, 503, "moderation_unavailable"),
    ({"size": "1x1"}, 400, "params_invalid"),
    ({"size": "\x00\ud800"}, 400, "params_invalid"),
    ({"seed": -1}, 400, "params_invalid"),
    ({"seed": MAX_SEED + 1}, 400, "params_invalid"),
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


def test_each_refusal_has_its_code_and_stores_nothing(strict: StudioKit) -> None:
    somebody = ApiUser(strict, "ann")
    before, balance = strict.stored(), strict.balance(somebody.id)
    for change, status, reason in REFUSED:
        answer = somebody.post("/jobs", content=json.dumps({"prompt": "a hill", **change}), headers=JSON)
        assert "secret" not in refused(answer, status, reason)
        assert (strict.stored(), strict.balance(somebody.id)) == (before, balance), change
    assert somebody.create().status_code == 201


def test_too_few_credits_give_402(kit: StudioKit) -> None:
    poor = ApiUser(kit, "poor", credits=1)
    before = kit.stored()
    refused(poor.create(size="1536x1024"), 402, "credits_insufficient", "credits")
    assert kit.stored() == before
    assert poor.create().status_code == 201


@once
def test_unreadable_body_is_refused(kit: StudioKit, ann: ApiUser) -> None:
    before = kit.stored()
    for body in (
        b"{",
        b"[]",
        b"null",
        b"",
        b"\xff\xfe",
        b'{"prompt": "a", "prompt": "b"}',
        b"[" * 60_000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'\xef\xbb\xbf{"prompt": "a"}',
        '{"prompt": "a"}'.encode("utf-16"),
    ):
        refused(ann.post("/jobs", content=body, headers=JSON), 400, "request_invalid")
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "application/jsonp",
        "",
    ):
        refused(ann.post("/jobs", content=b'{"prompt": "a"}', headers={"Content-Type": kind}), 415, "content_type")
    assert kit.stored() == before
    assert (
        ann.post(
            "/jobs", content=b'{"prompt": "a"}', headers={"Content-Type": "Application/JSON; charset=utf-8"}
        ).status_code
        == 201
    )


VALUES = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text(some.characters(), max_size=20)
    | some.lists(some.integers(), max_size=2)
)
BODIES = some.one_of(
    some.binary(max_size=200),
    some.dictionaries(some.sampled_from(["prompt", "size", "seed"]) | some.text(max_size=5), VALUES, max_size=4).map(
        lambda body: json.dumps(body).encode()
    ),
    some.fixed_dictionaries(
        {"prompt": some.text(some.characters(), max_size=40), "seed": some.integers() | some.floats() | some.none()}
    ).map(lambda body: json.dumps(body).encode()),
)


def test_any_input_is_an_order_or_a_refusal(kit: StudioKit) -> None:
    rich = ApiUser(kit, "rich", credits=1_000_000)

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(BODIES)
    def holds(body: bytes) -> None:
        before = kit.stored()
        answer = rich.post("/jobs", content=body, headers=JSON)
        if answer.status_code in (200, 201):
            assert answer.json()["prompt"]
            return
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["reason"]
        assert kit.stored() == before

    holds()
    kit.check()


@once
@pytest.mark.parametrize(
    ("size", "read"), [(MAX_BODY + 1, MAX_BODY + 1), (2 * MAX_DISCARDED, MAX_BODY + MAX_DISCARDED)]
)
def test_oversized_body_is_discarded_up_to_a_limit(kit: StudioKit, ann: ApiUser, size: int, read: int) -> None:
    """The server counts the bytes and does not trust the Content-Length header."""
    sent, before = [0], kit.stored()

    async def body() -> AsyncIterator[bytes]:
        while sent[0] < size:
            chunk = min(2**16, size - sent[0])
            sent[0] += chunk
            yield b" " * chunk

    refused(ann.post("/jobs", content=body(), headers=JSON), 413, "body_too_large", "64 KiB")
    assert read <= sent[0] <= read + 2**16
    assert kit.stored() == before


@once
def test_unauthenticated_request_is_refused_before_its_body_is_read(ann: ApiUser) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    refused(HttpClient(ann.app).post("/jobs", content=body(), headers=JSON), 401, "unauthorized")


def test_invalid_review_note_is_refused_without_a_decision(kit: StudioKit, ann: ApiUser) -> None:
    eve = ApiUser(kit, "eve", admin=True)
    id = ann.create().json()["id"]
    kit.images.fail(Fault.unauthorized())
    kit.run()
    before = kit.stored()
    for (verb, name), value in itertools.product(
        (("redrive", "reason"), ("close", "note")), ("a\x00b", "a\ud800", "a\nb", "x" * 501, 7, ["a"])
    ):
        refused(
            eve.post(f"/dead-letters/{id}/{verb}", content=json.dumps({name: value}), headers=JSON),
            400,
            "request_invalid",
            name,
        )
        refused(
            eve.post(f"/dead-letters/{id}/{verb}", content=json.dumps({"by": "ann"}), headers=JSON),
            400,
            "request_invalid",
            "by",
        )
    assert kit.stored() == before


# ---------------------------------------------------------------- outages and internal errors
@pytest.mark.parametrize(
    "error",
    [
        Unavailable("postgresql://ann:secret@db/studio is unreachable"),
        OperationalError("SELECT secret FROM users", {"token": "secret"}, Exception("gone")),
    ],
)
def test_database_error_gives_503(ann: ApiUser, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(Gallery, "jobs", _raises(error))
    assert "secret" not in refused(ann.get("/jobs"), 503, "database_unavailable", "try again")


@once
def test_every_address_gives_503_without_a_database(kit: StudioKit, ann: ApiUser) -> None:
    kit.studio.engine.dispose()
    asked = [("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/credits"), ("GET", "/events"), ("GET", f"/images/{NO_ID}")]
    file = Path(str(kit.studio.engine.url.database))
    aside = file.rename(file.with_suffix(".aside"))
    file.mkdir()
    try:
        for method, path in asked:
            refused(ann.request(method, path), 503, "database_unavailable")
        refused(HttpClient(ann.app).post("/session", json={"key": ann.key}), 503, "database_unavailable")
    finally:
        file.rmdir()
        aside.rename(file)


@once
def test_internal_error_gives_500_and_is_logged(ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gallery, "jobs", _raises(ZeroDivisionError("secret")))
    ann.quiet = True
    assert "secret" not in refused(ann.get("/jobs"), 500, "broken", "log")


def _raises(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@once
def test_unknown_addresses_and_methods_are_refused_as_json(ann: ApiUser) -> None:
    nowhere = [
        ("GET", path, 404, "not_found") for path in ("/nowhere", "/jobs/", "/index.html", "/api.py", "/page/studio.js")
    ]
    unable = [
        (method, path, 405, "method_not_allowed")
        for method, path in (("PUT", "/jobs"), ("DELETE", "/credits"), ("POST", "/"))
    ]
    for method, path, status, reason in (*nowhere, *unable):
        refused(ann.request(method, path), status, reason, "address")


def test_logs_and_refusals_contain_no_keys_or_tokens(
    kit: StudioKit, ann: ApiUser, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    browser, wrong = ann.browser(), "studio_a_key_that_nobody_has"
    token = browser.headers["Cookie"].removeprefix(f"{COOKIE}=")
    answers = [
        HttpClient(ann.app).post("/session", json={"key": wrong}),
        HttpClient(ann.app).get("/jobs", headers={"Authorization": f"Bearer {wrong}"}),
        HttpClient(ann.app).post("/session", json={"key": ann.key, "password": "x"}),
        browser.get("/session"),
        browser.post("/jobs", json={"prompt": ""}),
        ann.create(),
        ann.get("/credits"),
        ann.get("/jobs/nonsense"),
        ann.post("/jobs", content=ann.key, headers=JSON),
    ]
    monkeypatch.setattr(Gallery, "jobs", _raises(OperationalError("SELECT", {"key": ann.key}, Exception("gone"))))
    answers.append(ann.get("/jobs"))
    kit.run()
    told = caplog.text + "".join(answer.text for answer in answers)
    assert "The database is unreachable: gone" in caplog.text
    for secret in (ann.key, token, wrong):
        assert secret not in told
