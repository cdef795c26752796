"""Promises about the interface over HTTP: whose token sees what, which status means what, and that what is refused changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from apps.librarian import api as interface
from apps.librarian.api import DROPPED, LARGEST, api
from apps.librarian.library import Library
from apps.librarian.tests import torrents
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock import Unavailable

FIELDS = {
    "id", "user_id", "book_id", "media_type", "status", "source", "external_job_id", "created_at_utc", "updated_at_utc", "completed_at_utc",
    "cancel_requested_at_utc", "first_not_found_at_utc", "failure_reason", "progress",
}
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
NO_ID = "01900000-0000-7000-8000-000000000000"


class Http:
    """Speaks to an application as a server would, without one."""

    def __init__(self, app: Starlette, token: str | None = None) -> None:
        self._app, self._headers = app, {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, *, headers: dict[str, Any] | None = None, **body: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, headers=self._headers | (headers or {}), **body))

    async def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://library") as client:
            return await client.request(method, path, **given)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def delete(self, path: str) -> httpx.Response:
        return self.request("DELETE", path)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)


class Reader:
    """A user of the library, and the way they speak to it."""

    def __init__(self, branch: Branch, name: str) -> None:
        user = branch.library.add_user(name)
        self.id = user.id
        self.http = Http(api(branch.librarian), user.token)

    def start(self, number: int = 1, *, book: int = 1, media_type: str = "text") -> httpx.Response:
        return self.http.post("/downloads", json={"book_id": book, "media_type": media_type, "source": magnet(number)})


@pytest.fixture
def ann(branch: Branch) -> Reader:
    branch.library.add_book("Emma", "Jane Austen")
    return Reader(branch, "ann")


@pytest.fixture
def bob(branch: Branch) -> Reader:
    return Reader(branch, "bob")


@pytest.fixture
def stranger(branch: Branch) -> Http:
    """Somebody without a token."""
    return Http(api(branch.librarian))


def refused(answer: httpx.Response, status: int, word: str = "") -> str:
    """It was refused with this status, and one sentence has this word."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    sentence: str = answer.json()["error"]
    assert word in sentence
    assert "Traceback" not in sentence
    return sentence


# ---------------------------------------------------------------- starting
def test_a_new_download_is_created_and_told_whole(branch: Branch, ann: Reader) -> None:
    answer = ann.start()
    told = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/downloads/{told['id']}")
    assert set(told) == FIELDS
    assert (told["status"], told["user_id"], told["book_id"], told["media_type"], told["source"]) == ("queued", ann.id, 1, "text", magnet(1))
    assert datetime.fromisoformat(told["created_at_utc"]) == branch.clock.now()
    assert ann.http.get(answer.headers["location"]).json() == told


def test_the_same_request_answers_the_same_download(branch: Branch, ann: Reader) -> None:
    first = ann.start()
    before = branch.stored()
    again = ann.start()
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert branch.stored() == before


def test_a_torrent_file_is_taken_in_a_form(branch: Branch, ann: Reader, qbittorrent: FakeQbittorrent) -> None:
    data = torrents.v1()
    answer = ann.http.post("/downloads", data={"book_id": "1", "media_type": "audio"}, files={"source": ("night.torrent", data)})
    assert answer.status_code == 201, answer.text
    branch.run()
    (asked,) = qbittorrent.asked("torrents/add")
    assert list(asked.files.values()) == [data]


def test_a_magnet_link_may_come_in_a_form(ann: Reader) -> None:
    fields = {"book_id": (None, "1"), "media_type": (None, "text"), "source": (None, magnet(1))}
    assert ann.http.post("/downloads", files=fields).json()["source"] == magnet(1)


GOOD = {"book_id": 1, "media_type": "text", "source": magnet(1)}


@pytest.mark.parametrize(("change", "status", "word"), [
    ({"source": "http://example.org/x"}, 400, "magnet"),
    ({"source": "magnet:?dn=emma"}, 400, "hash"),
    ({"source": magnet(1) + "&dn=../../etc/passwd"}, 400, ""),
    ({"source": magnet(1) + "\ud800"}, 400, ""),
    ({"source": 7}, 400, "source"),
    ({"source": None}, 400, "source"),
    ({"media_type": "video"}, 400, "text, audio"),
    ({"media_type": ["text"]}, 400, "media_type"),
    ({"media_type": "\ud800\x1b[2J"}, 400, "text, audio"),
    ({"book_id": "one"}, 400, "whole number"),
    ({"book_id": True}, 400, "whole number"),
    ({"book_id": 1.0}, 400, "whole number"),
    ({"book_id": 99}, 404, "no book 99"),
    ({"book_id": -1}, 404, "no book"),
    ({"book_id": 10**30}, 404, "no book"),
])
def test_a_request_that_cannot_be_is_refused_and_stores_nothing(branch: Branch, ann: Reader, change: dict[str, object], status: int, word: str) -> None:
    before = branch.stored()
    body = json.dumps(GOOD | change)
    refused(ann.http.post("/downloads", content=body, headers={"Content-Type": "application/json"}), status, word)
    assert branch.stored() == before


@once
@pytest.mark.parametrize("missing", list(GOOD))
def test_a_field_that_is_missing_is_named(branch: Branch, ann: Reader, missing: str) -> None:
    before = branch.stored()
    refused(ann.http.post("/downloads", json={name: value for name, value in GOOD.items() if name != missing}), 400, f"The field {missing} is missing")
    assert branch.stored() == before


@once
@pytest.mark.parametrize("form", [False, True])
def test_a_field_that_nobody_reads_is_named(branch: Branch, ann: Reader, form: bool) -> None:
    before, given = branch.stored(), GOOD | {"medium": "text"}
    answer = ann.http.post("/downloads", **({"files": {name: (None, str(value)) for name, value in given.items()}} if form else {"json": given}))
    refused(answer, 400, "There is no field 'medium': give book_id")
    assert branch.stored() == before


@once
@pytest.mark.parametrize(("kind", "body", "status"), [
    ("application/json", b"{", 400), ("multipart/form-data; boundary=b", b"--b", 400), ("text/plain", b"{}", 415), ("", b"{}", 415),
])
def test_a_body_that_nobody_can_read_is_refused(branch: Branch, ann: Reader, kind: str, body: bytes, status: int) -> None:
    before = branch.stored()
    refused(ann.http.post("/downloads", content=body, headers={"Content-Type": kind} if kind else {}), status)
    assert branch.stored() == before


@once
def test_a_file_that_is_no_torrent_is_refused(branch: Branch, ann: Reader) -> None:
    before = branch.stored()
    refused(ann.http.post("/downloads", data={"book_id": "1", "media_type": "text"}, files={"source": ("x", b"not a torrent")}), 400)
    assert branch.stored() == before


@once
@pytest.mark.parametrize(("mebibytes", "read"), [(20, 20), (200, (LARGEST + DROPPED) // 2**20 + 1)])
def test_a_body_that_is_too_long_is_dropped_up_to_a_bound(branch: Branch, ann: Reader, mebibytes: int, read: int) -> None:
    """Whatever its head said: it is counted as it comes. Whoever is refused amid their sending hears of a broken connection, and not why."""
    sent, before = [0], branch.stored()

    async def body() -> AsyncIterator[bytes]:
        while sent[0] < mebibytes:
            sent[0] += 1
            yield b" " * 2**20

    refused(ann.http.post("/downloads", content=body(), headers={"Content-Type": "application/json"}), 413, "11 MiB")
    assert sent[0] == read
    assert branch.stored() == before


def test_another_source_for_what_is_active_is_a_conflict(branch: Branch, ann: Reader) -> None:
    ann.start(1)
    before = branch.stored()
    refused(ann.start(2), 409, "another source")
    assert branch.stored() == before


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


# ---------------------------------------------------------------- cancelling
def test_a_waiting_download_is_canceled_at_once(ann: Reader) -> None:
    id = ann.start().json()["id"]
    answer = ann.http.delete(f"/downloads/{id}")
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled")
    refused(ann.http.delete(f"/downloads/{id}"), 409, "canceled")


def test_a_download_that_qbittorrent_has_is_being_stopped(branch: Branch, ann: Reader, qbittorrent: FakeQbittorrent) -> None:
    id = ann.start().json()["id"]
    branch.run()
    assert hash_of(1) in qbittorrent.torrents
    answer = ann.http.delete(f"/downloads/{id}")
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    assert datetime.fromisoformat(answer.json()["cancel_requested_at_utc"]) == branch.clock.now()
    branch.later(1)
    assert ann.http.get(f"/downloads/{id}").json()["status"] == "canceled"
    assert qbittorrent.torrents == {}


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
