"""Promises about the interface over HTTP: who is known, whose is what, what each address tells, and what it says when something is away."""

import itertools
import json
from datetime import datetime, timedelta

import pytest

from apps.studio.api import api
from apps.studio.people import SESSION
from apps.studio.session import COOKIE
from apps.studio.tests.clients import JSON, NO_ID, Http, Somebody, refused
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


@pytest.fixture
def ann(atelier: Atelier) -> Somebody:
    return Somebody(atelier, "ann")


@pytest.fixture
def bob(atelier: Atelier) -> Somebody:
    return Somebody(atelier, "bob")


@pytest.fixture
def eve(atelier: Atelier) -> Somebody:
    """An administrator."""
    return Somebody(atelier, "eve", admin=True)


@pytest.fixture
def stranger(atelier: Atelier) -> Http:
    """Somebody without a key."""
    return Http(api(atelier.studio, now=atelier.clock.now))


# ---------------------------------------------------------------- who asks
ADDRESSES = [
    ("GET", "/session"), ("POST", "/jobs"), ("GET", "/jobs"), ("GET", f"/jobs/{NO_ID}"), ("GET", "/assets"), ("GET", "/credits"), ("GET", "/events"),
    ("GET", "/dead-letters"), ("POST", f"/dead-letters/{NO_ID}/redrive"), ("POST", f"/dead-letters/{NO_ID}/close"),
]


UNKNOWN = [
    {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer  "}, {"Authorization": "Bearer wrong"},
    {"Authorization": "Basic YW5uOmFubg=="}, {"Authorization": b"Bearer \xff"}, {"Cookie": f"{COOKIE}=wrong"}, {"Cookie": f"{COOKIE}="},
    {"Cookie": b"studio_session=\xff\x00"},
]


def test_nobody_is_let_in_unknown(atelier: Atelier, stranger: Http) -> None:
    before = atelier.stored()
    for (method, path), given in itertools.product(ADDRESSES, UNKNOWN):
        answer = stranger.request(method, path, headers=given)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert atelier.stored() == before


@once
def test_a_key_counts_only_as_a_bearer_s(ann: Somebody, stranger: Http) -> None:
    assert stranger.get("/jobs", headers={"Authorization": f"bearer  {ann.key} "}).status_code == 200
    for given in ("{}", "Basic {}", "Token {}", "Bearer{}", "Bearer {} x"):
        refused(stranger.get("/jobs", headers={"Authorization": given.format(ann.key)}), 401, "unauthorized")


@once
def test_a_wrong_key_is_not_saved_by_a_good_cookie(ann: Somebody) -> None:
    """Whoever sends a key wants to be known by it."""
    refused(ann.browser().get("/jobs", headers={"Authorization": "Bearer wrong"}), 401, "unauthorized")


def test_a_key_opens_a_session_and_a_cookie_carries_it(ann: Somebody, stranger: Http) -> None:
    answer = stranger.post("/session", json={"key": ann.key})
    told = {"user": {"id": ann.id, "name": "ann", "admin": False}, "credits": {"granted": 10, "available": 10, "reserved": 0, "captured": 0, "forfeited": 0}}
    assert (answer.status_code, answer.json()) == (200, told)
    name, *parts = answer.headers["set-cookie"].split("; ")
    assert name.startswith(f"{COOKIE}=")
    assert set(parts) == {"HttpOnly", "Path=/", "SameSite=strict", f"Max-Age={int(SESSION.total_seconds())}"}
    assert ann.browser().get("/session").json() == told
    assert ann.get("/session").json() == told


@once
def test_over_https_the_cookie_goes_over_nothing_else(ann: Somebody) -> None:
    answer = Http(ann.app, base="https://studio").post("/session", json={"key": ann.key})
    assert "Secure" in answer.headers["set-cookie"].split("; ")


@once
def test_behind_a_proxy_that_ends_tls_the_cookie_goes_over_nothing_else_either(ann: Somebody) -> None:
    """What arrives here is http then, and the page's own origin says what the browser sees."""
    for origin, secure in (("https://studio", True), ("HTTPS://studio", True), ("http://studio", False)):
        came = {"Origin": origin}
        entered = Http(ann.app).post("/session", json={"key": ann.key}, headers=came)
        left = Http(ann.app, {"Cookie": f"{COOKIE}={entered.cookies[COOKIE]}"}).delete("/session", headers=came)
        assert [("Secure" in answer.headers["set-cookie"].split("; ")) for answer in (entered, left)] == [secure, secure], origin


def test_a_wrong_key_opens_nothing(atelier: Atelier, stranger: Http) -> None:
    before = atelier.stored()
    for key in ("wrong", "", "\x00", "\ud800", "x" * 10_000):
        answer = stranger.post("/session", content=json.dumps({"key": key}), headers=JSON)
        refused(answer, 401, "unauthorized", "key")
        assert "set-cookie" not in answer.headers
    assert atelier.stored() == before


def test_a_session_ends_when_its_user_says_so(ann: Somebody) -> None:
    browser, other = ann.browser(), ann.browser()
    answer = browser.delete("/session")
    assert (answer.status_code, answer.content) == (204, b"")
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    refused(browser.get("/session"), 401, "unauthorized")
    assert other.get("/session").status_code == 200
    assert browser.delete("/session").status_code == 204, "one that is over is as good as ended"


def test_a_session_ends_by_itself(atelier: Atelier, ann: Somebody) -> None:
    browser = ann.browser()
    atelier.clock.advance(SESSION - timedelta(seconds=1))
    assert browser.get("/session").status_code == 200
    atelier.clock.advance(1)
    refused(browser.get("/session"), 401, "unauthorized")


def test_a_new_key_ends_the_old_one_and_its_sessions(atelier: Atelier, ann: Somebody) -> None:
    browser = ann.browser()
    atelier.people.rekey("ann")
    refused(ann.get("/session"), 401, "unauthorized")
    refused(browser.get("/session"), 401, "unauthorized")


# ---------------------------------------------------------------- whose is what
def test_jobs_assets_and_credits_are_their_users_alone(atelier: Atelier, ann: Somebody, bob: Somebody) -> None:
    id = ann.create().json()["id"]
    atelier.run()
    assert [job["id"] for job in ann.get("/jobs").json()["jobs"]] == [id]
    assert [asset["jobId"] for asset in ann.get("/assets").json()["assets"]] == [id]
    assert (bob.get("/jobs").json(), bob.get("/assets").json()) == ({"jobs": []}, {"assets": []})
    assert [entry["jobId"] for entry in bob.get("/credits").json()["entries"]] == [None]


def test_another_s_job_is_as_unknown_as_none(ann: Somebody, bob: Somebody) -> None:
    id = ann.create().json()["id"]
    theirs, none = refused(bob.get(f"/jobs/{id}"), 404, "not_found"), refused(bob.get(f"/jobs/{NO_ID}"), 404, "not_found")
    assert theirs.replace(id, NO_ID) == none


def test_an_id_that_is_none_is_not_found(ann: Somebody, eve: Somebody) -> None:
    for id in ("nonsense", "%00", "' OR 1=1 --", NO_ID.replace("-", ""), "\ud7ff" * 10, "x" * 3000):
        refused(ann.get(f"/jobs/{id}"), 404, "not_found")
        refused(ann.get(f"/jobs?before={id}"), 404, "not_found")
        refused(ann.get(f"/assets?before={id}"), 404, "not_found")
        refused(eve.post(f"/dead-letters/{id}/redrive"), 404, "not_found")
        refused(eve.post(f"/dead-letters/{id}/close"), 404, "not_found")


# ---------------------------------------------------------------- what is told
JOB = {
    "id", "prompt", "size", "seed", "cost", "status", "retryCount", "maxRetries", "createdAt", "startedAt", "updatedAt", "finishedAt", "dueAt", "resultUrl",
    "reason", "version",
}


def test_a_job_is_told_from_the_order_to_the_picture(atelier: Atelier, ann: Somebody) -> None:
    told = ann.create("a hill", size="1536x1024", seed=7).json()
    assert set(told) == JOB
    assert (told["status"], told["size"], told["seed"], told["cost"], told["retryCount"], told["resultUrl"]) == ("queued", "1536x1024", 7, 2, 0, None)
    assert datetime.fromisoformat(told["createdAt"]) == atelier.clock.now()
    atelier.images.fail(Fault.trouble())
    atelier.run()
    told = ann.get(f"/jobs/{told['id']}").json()
    assert (told["status"], told["retryCount"], told["resultUrl"]) == ("failed", 1, None)
    assert "tried again" in told["reason"]
    atelier.later(4000)
    told = ann.get(f"/jobs/{told['id']}").json()
    assert (told["status"], told["reason"]) == ("completed", None)
    assert told["resultUrl"].startswith(f"/images/{told['id']}?")


@pytest.mark.parametrize(("fault", "status", "word"), [(Fault.blocked(), "rejected", "not given back"), (Fault.unauthorized(), "dead_letter", "back")])
def test_a_users_reason_is_never_the_provider_s(atelier: Atelier, ann: Somebody, fault: Fault, status: str, word: str) -> None:
    id = ann.create().json()["id"]
    atelier.images.fail(fault)
    atelier.run()
    answer = ann.get(f"/jobs/{id}")
    assert answer.json()["status"] == status
    assert word in answer.json()["reason"]
    assert atelier.gallery.job(ann.id, id).last_error not in answer.text


def test_credits_are_told_with_their_entries(atelier: Atelier, ann: Somebody) -> None:
    id = ann.create().json()["id"]
    atelier.run()
    told = ann.get("/credits").json()
    assert told["balance"] == {"granted": 10, "available": 9, "reserved": 0, "captured": 1, "forfeited": 0}
    assert [(entry["entry"], entry["amount"], entry["jobId"]) for entry in told["entries"]] == [("capture", 1, id), ("reserve", 1, id), ("grant", 10, None)]
    assert set(told["entries"][0]) == {"at", "entry", "amount", "jobId", "note"}


def test_lists_are_read_page_by_page(atelier: Atelier, ann: Somebody) -> None:
    ids = [ann.create(f"hill {n}").json()["id"] for n in range(3)]
    atelier.run()
    for name, key in (("jobs", "id"), ("assets", "jobId")):
        first = [each[key] for each in ann.get(f"/{name}?limit=2").json()[name]]
        assert first == [ids[2], ids[1]]
        assert [each[key] for each in ann.get(f"/{name}?limit=2&before={first[-1]}").json()[name]] == [ids[0]]


@once
def test_a_limit_that_is_none_is_refused(ann: Somebody) -> None:
    for limit, path in itertools.product(("0", "-1", "101", "x", "", "1.0", "9" * 5000, "%00", "²"), ("/jobs", "/assets")):
        refused(ann.get(f"{path}?limit={limit}"), 400, "request_invalid", "limit")


@once
def test_head_answers_as_get_does_without_a_body(ann: Somebody) -> None:
    for path in ("/session", "/jobs", "/assets", "/credits", "/events", "/"):
        answer = ann.request("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b"")


# ---------------------------------------------------------------- administrators
def dead(atelier: Atelier, somebody: Somebody) -> str:
    id: str = somebody.create().json()["id"]
    atelier.images.fail(Fault.unauthorized())
    atelier.run()
    assert atelier.state(id) == "dead_letter"
    return id


def test_only_administrators_review_dead_letters(atelier: Atelier, ann: Somebody) -> None:
    """Not even their own."""
    id, before = dead(atelier, ann), atelier.stored()
    for browser in (ann, ann.browser()):
        before["studio_sessions"] = atelier.stored()["studio_sessions"]
        for method, path in (("GET", "/dead-letters"), ("POST", f"/dead-letters/{id}/redrive"), ("POST", f"/dead-letters/{id}/close")):
            refused(browser.request(method, path, headers=JSON), 403, "forbidden", "administrator")
    assert atelier.stored() == before


def test_a_dead_letter_is_driven_again_and_reserves_again(atelier: Atelier, ann: Somebody, eve: Somebody) -> None:
    id = dead(atelier, ann)
    (letter,) = eve.get("/dead-letters").json()["deadLetters"]
    assert (letter["job"]["id"], letter["userName"], letter["decision"]) == (id, "ann", None)
    assert set(letter) == {"job", "userName", "reason", "decision", "successor", "note", "by", "at"}
    assert "401" in letter["reason"]
    answer = eve.post(f"/dead-letters/{id}/redrive", json={"reason": "the key is mended"})
    assert answer.status_code == 201
    assert atelier.balance(ann.id).reserved == 1
    assert eve.get("/dead-letters").json() == {"deadLetters": []}
    atelier.run()
    assert ann.get(f"/jobs/{answer.json()['id']}").json()["status"] == "completed"
    refused(eve.post(f"/dead-letters/{id}/redrive"), 409, "conflict")
    atelier.check()


def test_a_dead_letter_is_closed_once(atelier: Atelier, ann: Somebody, eve: Somebody) -> None:
    id = dead(atelier, ann)
    answer = eve.browser().post(f"/dead-letters/{id}/close", json={"note": "nobody wants it"})
    told = answer.json()
    assert (answer.status_code, told["decision"], told["by"], told["note"]) == (200, "closed", "eve", "nobody wants it")
    before = atelier.stored()
    refused(eve.post(f"/dead-letters/{id}/close"), 409, "conflict")
    refused(eve.post(f"/dead-letters/{id}/redrive"), 409, "conflict")
    assert atelier.stored() == before


def test_a_redrive_that_nobody_can_pay_for_is_refused(atelier: Atelier, eve: Somebody) -> None:
    poor = Somebody(atelier, "poor", credits=1)
    id = dead(atelier, poor)
    poor.create("something else")
    before = atelier.stored()
    refused(eve.post(f"/dead-letters/{id}/redrive"), 402, "credits_insufficient")
    assert atelier.stored() == before


def test_a_job_that_is_no_dead_letter_is_not_reviewed(atelier: Atelier, ann: Somebody, eve: Somebody) -> None:
    id, before = ann.create().json()["id"], atelier.stored()["studio_reviews"]
    refused(eve.post(f"/dead-letters/{id}/close"), 404, "not_found")
    assert eve.post(f"/dead-letters/{id}/redrive").status_code == 409
    assert atelier.stored()["studio_reviews"] == before


# ---------------------------------------------------------------- the page, and monitors
@once
def test_the_page_runs_nothing_but_its_own_files(stranger: Http) -> None:
    for path, kind in (("/", "text/html; charset=utf-8"), ("/studio.css", "text/css; charset=utf-8"), ("/studio.js", "text/javascript; charset=utf-8")):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["content-type"], answer.headers["x-content-type-options"]) == (200, kind, "nosniff")
        policy = answer.headers["content-security-policy"].split("; ")
        for rule in ("default-src 'self'", "img-src 'self'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert rule in policy
        assert "unsafe" not in answer.headers["content-security-policy"]
