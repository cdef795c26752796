"""Reading over HTTP: tokens, the fields of a download, health, and errors without secrets."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from apps.common.health_cache import CACHE_SECONDS
from apps.librarian import api
from apps.librarian.service import LibraryService
from apps.librarian.tests.api.http_client import ApiUser, HttpClient, assert_error
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import (
    NO_ID,
    LibrarianKit,
    info_hash_of,
    magnet,
    set_complete,
    set_downloading,
    sqlite_only,
)
from interlock import Unavailable

# ---------------------------------------------------------------- access
ADDRESSES = [
    ("POST", "/downloads"),
    ("GET", "/downloads"),
    ("GET", f"/downloads/{NO_ID}"),
    ("DELETE", f"/downloads/{NO_ID}"),
    ("GET", "/books"),
    ("GET", "/books/1/assets"),
]


def test_every_address_needs_a_token(anonymous: HttpClient) -> None:
    for given in (None, "", "Bearer", "Bearer  ", "Bearer wrong", "Basic YW5uOmFubg==", "Bearer \xff"):
        headers = {} if given is None else {"Authorization": given.encode("latin-1")}
        for method, path in ADDRESSES:
            response = anonymous.request(method, path, headers=headers)
            assert_error(response, 401, "token")
            assert response.headers["www-authenticate"] == "Bearer"


@sqlite_only
def test_token_is_accepted_only_as_a_bearer_token(kit: LibrarianKit, anonymous: HttpClient) -> None:
    token = kit.service.add_user("ann").token
    assert anonymous.request("GET", "/books", headers={"Authorization": f"bearer  {token} "}).status_code == 200
    for header in ("{}", "Basic {}", "Token {}", "Bearer{}", "Bearer {} x"):
        assert_error(anonymous.request("GET", "/books", headers={"Authorization": header.format(token)}), 401)


@sqlite_only
def test_request_without_a_token_is_rejected_before_its_body_is_read(anonymous: HttpClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    assert_error(anonymous.post("/downloads", content=body()), 401)


def test_users_see_only_their_own_downloads(ann: ApiUser, bob: ApiUser) -> None:
    id = ann.start().json()["id"]
    assert [each["id"] for each in ann.http.get("/downloads").json()["downloads"]] == [id]
    assert bob.http.get("/downloads").json() == {"downloads": []}


def test_download_of_another_user_is_not_found(kit: LibrarianKit, ann: ApiUser, bob: ApiUser) -> None:
    """The error is the same as for an id that does not exist."""
    id = ann.start().json()["id"]
    before = kit.app.get(id), kit.row_counts()
    for method in ("GET", "DELETE"):
        foreign = assert_error(bob.http.request(method, f"/downloads/{id}"), 404)
        missing = assert_error(bob.http.request(method, f"/downloads/{NO_ID}"), 404)
        assert foreign.replace(id, NO_ID) == missing
    assert (kit.app.get(id), kit.row_counts()) == before


def test_malformed_id_is_not_found(ann: ApiUser) -> None:
    for id in ("nonsense", "%00", "..", "' OR 1=1 --", NO_ID.upper(), "\ud7ff" * 10):
        assert_error(ann.http.get(f"/downloads/{id}"), 404)
        assert_error(ann.http.delete(f"/downloads/{id}"), 404)


# ---------------------------------------------------------------- reading
def test_download_is_visible_from_the_request_to_the_asset(
    kit: LibrarianKit, ann: ApiUser, qbittorrent: FakeQbittorrent
) -> None:
    address = ann.start().headers["location"]
    book = {"id": 1, "title": "Emma", "author": "Jane Austen", "state": "Archive"}
    assert ann.http.get("/books").json() == {"books": [book]}
    kit.run()
    record = set_downloading(qbittorrent)
    kit.run_after()
    download = ann.http.get(address).json()
    assert (download["status"], download["external_job_id"]) == ("downloading", info_hash_of(1))
    assert json.dumps(download["progress"]) == '{"done": 250, "total": 1000, "note": "downloading"}'

    set_complete(record, "uploading")
    kit.run_after()
    download = ann.http.get(address).json()
    assert (download["status"], download["progress"]) == ("completed", None)
    assert datetime.fromisoformat(download["completed_at_utc"]) == kit.clock.now()
    assert ann.http.get("/books").json() == {"books": [book | {"state": "Library"}]}
    (asset,) = ann.http.get("/books/1/assets").json()["assets"]
    assert (asset["media_type"], asset["status"], asset["source_url"]) == ("text", "available", magnet(1))
    assert asset["storage_path"] == str(kit.settings.downloads / info_hash_of(1) / "emma.epub")


def test_failed_download_has_its_reason(kit: LibrarianKit, ann: ApiUser, qbittorrent: FakeQbittorrent) -> None:
    address = ann.start().headers["location"]
    kit.run()
    qbittorrent.torrents[info_hash_of(1)].state = "missingFiles"
    kit.run_after()
    download = ann.http.get(address).json()
    assert (download["status"], download["failure_reason"]) == ("failed", "qbittorrent_error: missingFiles")


def test_assets_of_an_unknown_book_are_not_found(ann: ApiUser) -> None:
    for id in ("2", str(10**30), "9" * 5000, "emma", "-1"):
        assert_error(ann.http.get(f"/books/{id}/assets"), 404, "book")


@sqlite_only
def test_unknown_addresses_and_methods_are_json_errors(ann: ApiUser) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/downloads/", 404),
        ("PUT", "/downloads", 405),
        ("DELETE", "/books", 405),
        ("POST", "/health", 405),
    ):
        assert_error(ann.http.request(method, path), status, "address")


# ---------------------------------------------------------------- health and errors
def test_health_reports_whether_qbittorrent_is_reachable(
    kit: LibrarianKit, ann: ApiUser, anonymous: HttpClient, qbittorrent: FakeQbittorrent
) -> None:
    reachable = {"reachable": True, "down_since_utc": None, "failures": 0}
    ann.start()
    kit.run()
    kit.run_after()
    assert anonymous.get("/health").json()["qbittorrent"] == reachable
    qbittorrent.down()
    kit.run_after()
    response = anonymous.get("/health")
    health = response.json()
    assert (response.status_code, health["ok"], health["followed"]) == (503, False, 1)
    assert health["qbittorrent"] == {
        "reachable": False,
        "down_since_utc": kit.clock.now().isoformat(),
        "failures": 1,
    }
    qbittorrent.up()
    kit.run_after(300)
    assert anonymous.get("/health").json()["qbittorrent"] == reachable


def test_health_queries_the_database_at_most_every_two_seconds(
    kit: LibrarianKit, anonymous: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no token, so anyone may call it as often as they like."""
    queries, status = list[int](), kit.app.status
    monkeypatch.setattr(kit.app, "status", lambda: (queries.append(1), status())[1])
    counts = list[int]()
    for seconds in (0, 0, CACHE_SECONDS, 0.1, 0):
        kit.clock.advance(seconds)
        anonymous.get("/health")
        counts.append(len(queries))
    assert (CACHE_SECONDS, counts) == (2.0, [1, 1, 1, 2, 2])


def test_health_contains_no_address_and_no_name(
    kit: LibrarianKit, ann: ApiUser, anonymous: HttpClient, qbittorrent: FakeQbittorrent
) -> None:
    ann.start()
    kit.run()
    qbittorrent.down()
    kit.run_after()
    assert "is unreachable" in (kit.app.status().external[0].error or "")
    health = anonymous.get("/health").text
    for secret in (
        qbittorrent.url,
        "127.0.0.1",
        qbittorrent.username,
        qbittorrent.password,
        str(kit.settings.downloads),
        kit.settings.database,
    ):
        assert secret not in health


def test_health_reports_that_no_worker_runs(ann: ApiUser, anonymous: HttpClient) -> None:
    """It does so before the first download, too."""
    for _ in range(2):
        response = anonymous.get("/health")
        assert (response.status_code, response.json()["ok"], response.json()["worker"]) == (503, False, False)
        ann.start()


@sqlite_only
def test_errors_contain_no_secret(ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the details of a database error or a bug."""
    for error, status, text in (
        (Unavailable("postgresql://ann:secret@db/library is unreachable"), 503, "database"),
        (OperationalError("SELECT secret FROM users", {"token": "secret"}, Exception("secret")), 503, "database"),
        (ZeroDivisionError("secret"), 500, "log"),
    ):
        monkeypatch.setattr(LibraryService, "books", _raise(error))
        assert "secret" not in assert_error(ann.http.get("/books"), status, text)


def _raise(error: Exception) -> Callable[[LibraryService], None]:
    def fail(_: LibraryService) -> None:
        raise error

    return fail


@sqlite_only
def test_api_has_only_the_documented_addresses(kit: LibrarianKit) -> None:
    """There is no page and no schema beside the addresses in the README."""
    paths = sorted({route.path for route in api.make_api(kit.librarian).routes})  # type: ignore[attr-defined]
    assert paths == ["/books", "/books/{id}/assets", "/downloads", "/downloads/{id}", "/health"]
    assert Path(api.__file__).read_text(encoding="utf-8").count("HTMLResponse") == 0
