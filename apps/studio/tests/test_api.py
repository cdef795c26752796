"""The HTTP API: authentication, ownership, lists, dead letters and the page."""

import itertools
import json
from datetime import datetime, timedelta

import pytest

from apps.studio.api import api
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.http_clients import JSON, NO_ID, ApiUser, HttpClient, refused
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import SESSION
from apps.studio.web.auth import COOKIE

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


# ---------------------------------------------------------------- authentication
ADDRESSES = [
    ("GET", "/session"),
    ("POST", "/jobs"),
    ("GET", "/jobs"),
    ("GET", f"/jobs/{NO_ID}"),
    ("GET", "/assets"),
    ("GET", "/credits"),
    ("GET", "/events"),
    ("GET", "/dead-letters"),
    ("POST", f"/dead-letters/{NO_ID}/redrive"),
    ("POST", f"/dead-letters/{NO_ID}/close"),
]


UNKNOWN = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer  "},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Basic YW5uOmFubg=="},
    {"Authorization": b"Bearer \xff"},
    {"Cookie": f"{COOKIE}=wrong"},
    {"Cookie": f"{COOKIE}="},
    {"Cookie": b"studio_session=\xff\x00"},
]


def test_requests_without_credentials_are_refused(kit: StudioKit, stranger: HttpClient) -> None:
    before = kit.stored()
    for (method, path), given in itertools.product(ADDRESSES, UNKNOWN):
        answer = stranger.request(method, path, headers=given)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert kit.stored() == before


@once
def test_access_key_is_accepted_only_as_bearer_token(ann: ApiUser, stranger: HttpClient) -> None:
    assert stranger.get("/jobs", headers={"Authorization": f"bearer  {ann.key} "}).status_code == 200
    for given in ("{}", "Basic {}", "Token {}", "Bearer{}", "Bearer {} x"):
        refused(stranger.get("/jobs", headers={"Authorization": given.format(ann.key)}), 401, "unauthorized")


@once
def test_wrong_key_is_refused_despite_a_valid_cookie(ann: ApiUser) -> None:
    """A request with a key is authenticated by the key alone."""
    refused(ann.browser().get("/jobs", headers={"Authorization": "Bearer wrong"}), 401, "unauthorized")


def test_sign_in_starts_a_session_with_a_cookie(ann: ApiUser, stranger: HttpClient) -> None:
    answer = stranger.post("/session", json={"key": ann.key})
    told = {
        "user": {"id": ann.id, "name": "ann", "admin": False},
        "credits": {"granted": 10, "available": 10, "reserved": 0, "captured": 0, "forfeited": 0},
    }
    assert (answer.status_code, answer.json()) == (200, told)
    name, *parts = answer.headers["set-cookie"].split("; ")
    assert name.startswith(f"{COOKIE}=")
    assert set(parts) == {"HttpOnly", "Path=/", "SameSite=strict", f"Max-Age={int(SESSION.total_seconds())}"}
    assert ann.browser().get("/session").json() == told
    assert ann.get("/session").json() == told


@once
def test_cookie_is_secure_over_https(ann: ApiUser) -> None:
    answer = HttpClient(ann.app, base="https://studio").post("/session", json={"key": ann.key})
    assert "Secure" in answer.headers["set-cookie"].split("; ")


@once
def test_cookie_is_secure_behind_a_tls_proxy(ann: ApiUser) -> None:
    """The request arrives over http; the Origin header shows that the page uses https."""
    for origin, secure in (("https://studio", True), ("HTTPS://studio", True), ("http://studio", False)):
        came = {"Origin": origin}
        entered = HttpClient(ann.app).post("/session", json={"key": ann.key}, headers=came)
        left = HttpClient(ann.app, {"Cookie": f"{COOKIE}={entered.cookies[COOKIE]}"}).delete("/session", headers=came)
        assert [("Secure" in answer.headers["set-cookie"].split("; ")) for answer in (entered, left)] == [
            secure,
            secure,
        ], origin


def test_wrong_key_cannot_sign_in(kit: StudioKit, stranger: HttpClient) -> None:
    before = kit.stored()
    for key in ("wrong", "", "\x00", "\ud800", "x" * 10_000):
        answer = stranger.post("/session", content=json.dumps({"key": key}), headers=JSON)
        refused(answer, 401, "unauthorized", "key")
        assert "set-cookie" not in answer.headers
    assert kit.stored() == before


def test_sign_out_ends_the_session(ann: ApiUser) -> None:
    browser, other = ann.browser(), ann.browser()
    answer = browser.delete("/session")
    assert (answer.status_code, answer.content) == (204, b"")
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    refused(browser.get("/session"), 401, "unauthorized")
    assert other.get("/session").status_code == 200
    assert browser.delete("/session").status_code == 204, "one that is over is as good as ended"


def test_session_expires(kit: StudioKit, ann: ApiUser) -> None:
    browser = ann.browser()
    kit.clock.advance(SESSION - timedelta(seconds=1))
    assert browser.get("/session").status_code == 200
    kit.clock.advance(1)
    refused(browser.get("/session"), 401, "unauthorized")


def test_new_key_ends_the_old_key_and_its_sessions(kit: StudioKit, ann: ApiUser) -> None:
    browser = ann.browser()
    kit.users.replace_key("ann")
    refused(ann.get("/session"), 401, "unauthorized")
    refused(browser.get("/session"), 401, "unauthorized")


# ---------------------------------------------------------------- ownership
def test_users_see_only_their_own_jobs_assets_and_credits(kit: StudioKit, ann: ApiUser, bob: ApiUser) -> None:
    id = ann.create().json()["id"]
    kit.run()
    assert [job["id"] for job in ann.get("/jobs").json()["jobs"]] == [id]
    assert [asset["jobId"] for asset in ann.get("/assets").json()["assets"]] == [id]
    assert (bob.get("/jobs").json(), bob.get("/assets").json()) == ({"jobs": []}, {"assets": []})
    assert [entry["jobId"] for entry in bob.get("/credits").json()["entries"]] == [None]


def test_job_of_another_user_looks_like_a_missing_job(ann: ApiUser, bob: ApiUser) -> None:
    id = ann.create().json()["id"]
    theirs, none = (
        refused(bob.get(f"/jobs/{id}"), 404, "not_found"),
        refused(bob.get(f"/jobs/{NO_ID}"), 404, "not_found"),
    )
    assert theirs.replace(id, NO_ID) == none


def test_malformed_id_is_not_found(ann: ApiUser, eve: ApiUser) -> None:
    for id in ("nonsense", "%00", "' OR 1=1 --", NO_ID.replace("-", ""), "\ud7ff" * 10, "x" * 3000):
        refused(ann.get(f"/jobs/{id}"), 404, "not_found")
        refused(ann.get(f"/jobs?before={id}"), 404, "not_found")
        refused(ann.get(f"/assets?before={id}"), 404, "not_found")
        refused(eve.post(f"/dead-letters/{id}/redrive"), 404, "not_found")
        refused(eve.post(f"/dead-letters/{id}/close"), 404, "not_found")


# ---------------------------------------------------------------- responses
JOB = {
    "id",
    "prompt",
    "size",
    "seed",
    "cost",
    "status",
    "retryCount",
    "maxRetries",
    "createdAt",
    "startedAt",
    "updatedAt",
    "finishedAt",
    "dueAt",
    "resultUrl",
    "reason",
    "version",
}


def test_job_is_readable_from_order_to_picture(kit: StudioKit, ann: ApiUser) -> None:
    told = ann.create("a hill", size="1536x1024", seed=7).json()
    assert set(told) == JOB
    assert (told["status"], told["size"], told["seed"], told["cost"], told["retryCount"], told["resultUrl"]) == (
        "queued",
        "1536x1024",
        7,
        2,
        0,
        None,
    )
    assert datetime.fromisoformat(told["createdAt"]) == kit.clock.now()
    kit.images.fail(Fault.trouble())
    kit.run()
    told = ann.get(f"/jobs/{told['id']}").json()
    assert (told["status"], told["retryCount"], told["resultUrl"]) == ("failed", 1, None)
    assert "retried" in told["reason"]
    kit.run_after(4000)
    told = ann.get(f"/jobs/{told['id']}").json()
    assert (told["status"], told["reason"]) == ("completed", None)
    assert told["resultUrl"].startswith(f"/images/{told['id']}?")


@pytest.mark.parametrize(
    ("fault", "status", "word"),
    [(Fault.blocked(), "rejected", "not refunded"), (Fault.unauthorized(), "dead_letter", "were refunded")],
)
def test_reason_for_the_user_never_contains_the_provider_message(
    kit: StudioKit, ann: ApiUser, fault: Fault, status: str, word: str
) -> None:
    id = ann.create().json()["id"]
    kit.images.fail(fault)
    kit.run()
    answer = ann.get(f"/jobs/{id}")
    assert answer.json()["status"] == status
    assert word in answer.json()["reason"]
    assert kit.gallery.job(ann.id, id).last_error not in answer.text


def test_credits_include_the_ledger_entries(kit: StudioKit, ann: ApiUser) -> None:
    id = ann.create().json()["id"]
    kit.run()
    told = ann.get("/credits").json()
    assert told["balance"] == {"granted": 10, "available": 9, "reserved": 0, "captured": 1, "forfeited": 0}
    assert [(entry["entry"], entry["amount"], entry["jobId"]) for entry in told["entries"]] == [
        ("capture", 1, id),
        ("reserve", 1, id),
        ("grant", 10, None),
    ]
    assert set(told["entries"][0]) == {"at", "entry", "amount", "jobId", "note"}


def test_lists_are_paginated(kit: StudioKit, ann: ApiUser) -> None:
    ids = [ann.create(f"hill {n}").json()["id"] for n in range(3)]
    kit.run()
    for name, key in (("jobs", "id"), ("assets", "jobId")):
        first = [each[key] for each in ann.get(f"/{name}?limit=2").json()[name]]
        assert first == [ids[2], ids[1]]
        assert [each[key] for each in ann.get(f"/{name}?limit=2&before={first[-1]}").json()[name]] == [ids[0]]


@once
def test_invalid_limit_is_refused(ann: ApiUser) -> None:
    for limit, path in itertools.product(
        ("0", "-1", "101", "x", "", "1.0", "9" * 5000, "%00", "²"), ("/jobs", "/assets")
    ):
        refused(ann.get(f"{path}?limit={limit}"), 400, "request_invalid", "limit")


@once
def test_head_is_get_without_a_body(ann: ApiUser) -> None:
    for path in ("/session", "/jobs", "/assets", "/credits", "/events", "/"):
        answer = ann.request("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b"")


# ---------------------------------------------------------------- the page
@once
def test_page_runs_only_its_own_scripts(stranger: HttpClient) -> None:
    for path, kind in (
        ("/", "text/html; charset=utf-8"),
        ("/studio.css", "text/css; charset=utf-8"),
        ("/studio.js", "text/javascript; charset=utf-8"),
    ):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["content-type"], answer.headers["x-content-type-options"]) == (
            200,
            kind,
            "nosniff",
        )
        policy = answer.headers["content-security-policy"].split("; ")
        for rule in (
            "default-src 'self'",
            "img-src 'self'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ):
            assert rule in policy
        assert "unsafe" not in answer.headers["content-security-policy"]
