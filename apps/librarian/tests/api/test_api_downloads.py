"""Starting and canceling downloads over HTTP: status codes, and rejected requests change nothing."""

import json
from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import datetime

import pytest

from apps.librarian.api import MAX_BODY, MAX_DISCARDED
from apps.librarian.models import Download
from apps.librarian.tests import torrent_files
from apps.librarian.tests.api.http_client import ApiUser, assert_error
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, magnet, sqlite_only

FIELDS = [
    "id",
    "user_id",
    "book_id",
    "media_type",
    "status",
    "source",
    "external_job_id",
    "created_at_utc",
    "updated_at_utc",
    "completed_at_utc",
    "cancel_requested_at_utc",
    "first_not_found_at_utc",
    "failure_reason",
    "progress",
]
JSON = {"Content-Type": "application/json"}


# ---------------------------------------------------------------- starting
def test_new_download_is_created_and_returned_with_all_fields(kit: LibrarianKit, ann: ApiUser) -> None:
    response = ann.start()
    download = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"/downloads/{download['id']}")
    assert list(download) == FIELDS == [field.name for field in fields(Download)]
    wanted = {"status": "queued", "user_id": ann.id, "book_id": 1, "media_type": "text", "source": magnet(1)}
    assert {name: download[name] for name in wanted} == wanted
    assert datetime.fromisoformat(download["created_at_utc"]) == kit.clock.now()
    assert ann.http.get(response.headers["location"]).json() == download


def test_same_request_returns_the_active_download(kit: LibrarianKit, ann: ApiUser) -> None:
    first = ann.start()
    before = kit.row_counts()
    again = ann.start()
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert kit.row_counts() == before


def test_torrent_file_is_accepted_in_a_form(kit: LibrarianKit, ann: ApiUser, qbittorrent: FakeQbittorrent) -> None:
    data = torrent_files.v1()
    form = {"book_id": "1", "media_type": "audio"}
    response = ann.http.post("/downloads", data=form, files={"source": ("night.torrent", data)})
    assert response.status_code == 201, response.text
    kit.run()
    (request,) = qbittorrent.requests_to("torrents/add")
    assert list(request.files.values()) == [data]


def test_magnet_link_is_accepted_in_a_form(ann: ApiUser) -> None:
    form = {"book_id": (None, "1"), "media_type": (None, "text"), "source": (None, magnet(1))}
    assert ann.http.post("/downloads", files=form).json()["source"] == magnet(1)


VALID = {"book_id": 1, "media_type": "text", "source": magnet(1)}
INVALID: list[tuple[dict[str, object], int, str]] = [
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
]


def test_invalid_request_is_rejected_and_stores_nothing(kit: LibrarianKit, ann: ApiUser) -> None:
    before = kit.row_counts()
    for change, status, text in INVALID:
        assert_error(ann.http.post("/downloads", content=json.dumps(VALID | change), headers=JSON), status, text)
    assert kit.row_counts() == before


@sqlite_only
def test_missing_and_unknown_fields_are_named(kit: LibrarianKit, ann: ApiUser) -> None:
    before = kit.row_counts()
    for missing in VALID:
        body = {name: value for name, value in VALID.items() if name != missing}
        assert_error(ann.http.post("/downloads", json=body), 400, f"The field {missing} is missing")
    unknown = VALID | {"medium": "text"}
    form = {name: (None, str(value)) for name, value in unknown.items()}
    for response in (ann.http.post("/downloads", json=unknown), ann.http.post("/downloads", files=form)):
        assert_error(response, 400, "There is no field 'medium'. Send book_id")
    assert kit.row_counts() == before


@sqlite_only
def test_malformed_body_is_rejected(kit: LibrarianKit, ann: ApiUser) -> None:
    before = kit.row_counts()
    for content_type, body, status in (
        ("application/json", b"{", 400),
        ("multipart/form-data; boundary=b", b"--b", 400),
        ("text/plain", b"{}", 415),
        ("", b"{}", 415),
    ):
        headers = {"Content-Type": content_type} if content_type else {}
        assert_error(ann.http.post("/downloads", content=body, headers=headers), status)
    form = {"book_id": "1", "media_type": "text"}
    assert_error(ann.http.post("/downloads", data=form, files={"source": ("x", b"not a torrent")}), 400)
    assert kit.row_counts() == before


@sqlite_only
@pytest.mark.parametrize(("mebibytes", "read"), [(20, 20), (200, (MAX_BODY + MAX_DISCARDED) // 2**20 + 1)])
def test_oversized_body_is_discarded_up_to_a_limit(kit: LibrarianKit, ann: ApiUser, mebibytes: int, read: int) -> None:
    """The API counts the bytes as they arrive. Most clients read the error only after they sent everything."""
    sent, before = [0], kit.row_counts()

    async def body() -> AsyncIterator[bytes]:
        while sent[0] < mebibytes:
            sent[0] += 1
            yield b" " * 2**20

    assert_error(ann.http.post("/downloads", content=body(), headers=JSON), 413, "11 MiB")
    assert sent[0] == read
    assert kit.row_counts() == before


def test_other_source_for_an_active_download_is_a_conflict(kit: LibrarianKit, ann: ApiUser) -> None:
    ann.start(1)
    before = kit.row_counts()
    assert_error(ann.start(2), 409, "another source")
    assert kit.row_counts() == before


# ---------------------------------------------------------------- canceling
def test_waiting_download_is_canceled_at_once(ann: ApiUser) -> None:
    id = ann.start().json()["id"]
    response = ann.http.delete(f"/downloads/{id}")
    assert (response.status_code, response.json()["status"]) == (200, "canceled")
    assert_error(ann.http.delete(f"/downloads/{id}"), 409, "canceled")


def test_worker_cancels_a_download_that_qbittorrent_has(
    kit: LibrarianKit, ann: ApiUser, qbittorrent: FakeQbittorrent
) -> None:
    id = ann.start().json()["id"]
    kit.run()
    assert info_hash_of(1) in qbittorrent.torrents
    response = ann.http.delete(f"/downloads/{id}")
    assert (response.status_code, response.json()["status"]) == (202, "queued")
    assert datetime.fromisoformat(response.json()["cancel_requested_at_utc"]) == kit.clock.now()
    kit.run_after(1)
    assert ann.http.get(f"/downloads/{id}").json()["status"] == "canceled"
    assert qbittorrent.torrents == {}
