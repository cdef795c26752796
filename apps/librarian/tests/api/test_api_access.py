"""Promises about looking over HTTP: whose token sees what, what a download and health tell, and that what breaks shows no secret."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from apps.common.health import FRESH
from apps.librarian import api as interface
from apps.librarian.api import api
from apps.librarian.library import Library
from apps.librarian.tests.api.kit import Http, Reader, once, refused
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock import Unavailable

NO_ID = "01900000-0000-7000-8000-000000000000"


# ---------------------------------------------------------------- whose is what
ADDRESSES = [("POST", "/downloads"), ("GET", "/downloads"), ("GET", f"/downloads/{NO_ID}"), ("DELETE", f"/downloads/{NO_ID}"), ("GET", "/books"),
             ("GET", "/books/1/assets")]


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer  ", "Bearer wrong", "Basic YW5uOmFubg==", "Bearer \xff"])
def test_nobody_is_let_in_without_a_token(stranger: Http, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for method, path in ADDRESSES:
        answer = stranger.request(method, path, headers=headers)
        refused(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"


@once
@pytest.mark.parametrize("given", ["{}", "Basic {}", "Token {}", "Bearer{}", "Bearer {} x"])
def test_a_token_counts_only_as_a_bearer_s(branch: Branch, stranger: Http, given: str) -> None:
    token = branch.library.add_user("ann").token
    assert stranger.request("GET", "/books", headers={"Authorization": f"bearer  {token} "}).status_code == 200
    refused(stranger.request("GET", "/books", headers={"Authorization": given.format(token)}), 401)


@once
def test_who_has_no_token_is_turned_away_before_their_body_is_read(stranger: Http) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    refused(stranger.post("/downloads", content=body()), 401)


def test_a_users_downloads_are_theirs_alone(ann: Reader, bob: Reader) -> None:
    id = ann.start().json()["id"]
    assert [each["id"] for each in ann.http.get("/downloads").json()["downloads"]] == [id]
    assert bob.http.get("/downloads").json() == {"downloads": []}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_another_users_download_is_as_unknown_as_none(branch: Branch, ann: Reader, bob: Reader, method: str) -> None:
    id = ann.start().json()["id"]
    before = branch.app.get(id), branch.stored()
    theirs = refused(bob.http.request(method, f"/downloads/{id}"), 404)
    none = refused(bob.http.request(method, f"/downloads/{NO_ID}"), 404)
    assert theirs.replace(id, NO_ID) == none
    assert (branch.app.get(id), branch.stored()) == before


@pytest.mark.parametrize("id", ["nonsense", "%00", "..", "' OR 1=1 --", NO_ID.upper(), "\ud7ff" * 10])
def test_an_id_that_is_none_is_not_found(ann: Reader, id: str) -> None:
    refused(ann.http.get(f"/downloads/{id}"), 404)
    refused(ann.http.delete(f"/downloads/{id}"), 404)


# ---------------------------------------------------------------- looking
def test_a_download_is_told_from_the_request_to_the_shelf(branch: Branch, ann: Reader, qbittorrent: FakeQbittorrent) -> None:
    address = ann.start().headers["location"]
    assert ann.http.get("/books").json() == {"books": [{"id": 1, "title": "Emma", "author": "Jane Austen", "state": "Archive"}]}
    branch.run()
    record = qbittorrent.metadata(hash_of(1), name="emma.epub", size=1000)
    record.state, record.progress = "downloading", 0.25
    branch.later()
    told = ann.http.get(address).json()
    assert (told["status"], told["external_job_id"]) == ("downloading", hash_of(1))
    assert json.dumps(told["progress"]) == '{"done": 250, "total": 1000, "note": "downloading"}'

    record.state, record.progress = "uploading", 1.0
    branch.later()
    told = ann.http.get(address).json()
    assert (told["status"], datetime.fromisoformat(told["completed_at_utc"]), told["progress"]) == ("completed", branch.clock.now(), None)
    assert ann.http.get("/books").json()["books"][0]["state"] == "Library"
    (asset,) = ann.http.get("/books/1/assets").json()["assets"]
    assert (asset["media_type"], asset["status"], asset["source_url"]) == ("text", "available", magnet(1))
    assert asset["storage_path"] == str(branch.settings.downloads / hash_of(1) / "emma.epub")


def test_a_failed_download_tells_its_reason(branch: Branch, ann: Reader, qbittorrent: FakeQbittorrent) -> None:
    address = ann.start().headers["location"]
    branch.run()
    qbittorrent.torrents[hash_of(1)].state = "missingFiles"
    branch.later()
    told = ann.http.get(address).json()
    assert (told["status"], told["failure_reason"]) == ("failed", "qbittorrent_error: missingFiles")


@pytest.mark.parametrize("path", ["/books/2/assets", f"/books/{10**30}/assets", f"/books/{'9' * 5000}/assets", "/books/emma/assets", "/books/-1/assets"])
def test_the_assets_of_no_book_are_not_found(ann: Reader, path: str) -> None:
    refused(ann.http.get(path), 404, "book")


@once
@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/", 404), ("GET", "/downloads/", 404), ("PUT", "/downloads", 405), ("DELETE", "/books", 405),
    ("POST", "/health", 405),
])
def test_other_addresses_and_methods_are_refused_as_json(ann: Reader, method: str, path: str, status: int) -> None:
    refused(ann.http.request(method, path), status, "address")


# ---------------------------------------------------------------- health, and what breaks
def test_health_says_whether_qbittorrent_can_be_asked(branch: Branch, ann: Reader, stranger: Http, qbittorrent: FakeQbittorrent) -> None:
    ann.start()
    branch.run()
    branch.later()
    assert stranger.get("/health").json()["qbittorrent"] == {"reachable": True, "down_since_utc": None, "failures": 0}
    qbittorrent.down()
    branch.later()
    answer = stranger.get("/health")
    told = answer.json()
    assert (answer.status_code, told["ok"], told["followed"]) == (503, False, 1)
    assert told["qbittorrent"] == {"reachable": False, "down_since_utc": branch.clock.now().isoformat(), "failures": 1}
    qbittorrent.up()
    branch.later(300)
    assert stranger.get("/health").json()["qbittorrent"] == {"reachable": True, "down_since_utc": None, "failures": 0}


def test_health_asks_the_database_once_in_two_seconds(branch: Branch, stranger: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no token, so anyone may ask as often as they like."""
    asked, status = list[int](), branch.app.status
    monkeypatch.setattr(branch.app, "status", lambda: (asked.append(1), status())[1])
    seen = list[int]()
    for seconds in (0, 0, FRESH, 0.1, 0):
        branch.clock.advance(seconds)
        stranger.get("/health")
        seen.append(len(asked))
    assert (FRESH, seen) == (2.0, [1, 1, 1, 2, 2])


def test_health_tells_no_address_and_no_name(branch: Branch, ann: Reader, stranger: Http, qbittorrent: FakeQbittorrent) -> None:
    ann.start()
    branch.run()
    qbittorrent.down()
    branch.later()
    assert "cannot be reached" in (branch.app.status().outside[0].error or "")
    told = stranger.get("/health").text
    for secret in (qbittorrent.url, "127.0.0.1", qbittorrent.username, qbittorrent.password, str(branch.settings.downloads), branch.settings.database):
        assert secret not in told


def test_health_says_that_no_worker_runs(ann: Reader, stranger: Http) -> None:
    """Also where nothing waits yet: whoever looks wants to know before somebody does."""
    for _ in range(2):
        answer = stranger.get("/health")
        assert (answer.status_code, answer.json()["ok"], answer.json()["worker"]) == (503, False, False)
        ann.start()


@pytest.mark.parametrize("error", [
    Unavailable("postgresql://ann:secret@db/library is away"),
    OperationalError("SELECT secret FROM users", {"token": "secret"}, Exception("secret")),
])
def test_a_database_that_is_away_is_no_stack_trace(ann: Reader, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(Library, "books", _raises(error))
    assert "secret" not in refused(ann.http.get("/books"), 503, "database")


@once
def test_what_breaks_is_told_in_one_sentence_and_left_to_the_log(ann: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "books", _raises(ZeroDivisionError("secret")))
    assert "secret" not in refused(ann.http.get("/books"), 500, "log")


def _raises(error: Exception) -> Callable[[Library], None]:
    def fail(_: Library) -> None:
        raise error

    return fail


@once
def test_only_the_json_of_this_module_is_ever_answered(branch: Branch) -> None:
    """No page, no schema, no document beside the addresses that the README lists."""
    paths = sorted({route.path for route in api(branch.librarian).routes})  # type: ignore[attr-defined]
    assert paths == ["/books", "/books/{id}/assets", "/downloads", "/downloads/{id}", "/health"]
    assert Path(interface.__file__).read_text(encoding="utf-8").count("HTMLResponse") == 0
