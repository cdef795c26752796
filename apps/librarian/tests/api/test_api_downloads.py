"""Promises about starting and cancelling over HTTP: which status means what, and that what is refused changes nothing."""

import json
from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from apps.librarian.api import DROPPED, LARGEST
from apps.librarian.tests import torrents
from apps.librarian.tests.api.kit import Reader, once, refused
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent

FIELDS = {
    "id", "user_id", "book_id", "media_type", "status", "source", "external_job_id", "created_at_utc", "updated_at_utc", "completed_at_utc",
    "cancel_requested_at_utc", "first_not_found_at_utc", "failure_reason", "progress",
}


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
