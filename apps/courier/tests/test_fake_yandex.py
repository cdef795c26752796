"""The fake Yandex Disk follows the protocol, so that tests against it are valid."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from apps.courier.tests.fake_yandex import FakeDisk, GeneratedContent

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def disk() -> Iterator[FakeDisk]:
    with FakeDisk() as disk:
        disk.put("/Library/b c.bin", CONTENT)
        disk.put("/Library/inner/d.txt", b"d")
        yield disk


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5.0) as http:
        yield http


def ask(disk: FakeDisk, http: httpx.Client, where: str = "", **asked: str) -> httpx.Response:
    return http.get(
        f"{disk.url}/v1/disk/resources{where}", params=asked, headers={"Authorization": f"OAuth {disk.token}"}
    )


def link(disk: FakeDisk, http: httpx.Client) -> str:
    return str(ask(disk, http, "/download", path="disk:/Library/b c.bin").json()["href"])


def test_folder_lists_only_its_direct_entries(disk: FakeDisk, http: httpx.Client) -> None:
    folder = ask(disk, http, path="/Library").json()
    assert (folder["type"], folder["name"], folder["path"]) == ("dir", "Library", "disk:/Library")
    file, inner = folder["_embedded"].pop("items")
    assert folder["_embedded"] == {"total": 2, "limit": 20, "offset": 0, "path": "disk:/Library", "sort": ""}
    assert inner["type"] == "dir"
    assert file | {"resource_id": "", "revision": 1} == {
        "type": "file",
        "name": "b c.bin",
        "path": "disk:/Library/b c.bin",
        "size": len(CONTENT),
        "md5": hashlib.md5(CONTENT).hexdigest(),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "created": "2026-01-15T10:00:00+00:00",
        "modified": "2026-01-15T10:00:00+00:00",
        "mime_type": "application/octet-stream",
        "resource_id": "",
        "revision": 1,
    }


def test_pages_order_and_fields_are_respected(disk: FakeDisk, http: httpx.Client) -> None:
    for number in range(25):
        disk.put(f"/Many/{number:02}", b"")

    def names(**asked: str) -> list[str]:
        return [item["name"] for item in ask(disk, http, path="disk:/Many", **asked).json()["_embedded"]["items"]]

    assert len(names()) == 20
    assert names(limit="3", offset="23") == ["23", "24"]
    assert names(limit="2", sort="-name") == ["24", "23"]
    picked: dict[str, Any] = ask(
        disk, http, path="/Many", limit="1", fields="name,_embedded.total,_embedded.items.path,nonsense"
    ).json()
    assert picked == {"name": "Many", "_embedded": {"total": 25, "items": [{"path": "disk:/Many/00"}]}}


def test_rejections_have_yandex_error_codes(disk: FakeDisk, http: httpx.Client) -> None:
    wrong = [
        {},
        {"path": ""},
        {"path": "trash:/a"},
        {"path": "/../a"},
        {"path": "/", "limit": "x"},
        {"path": "/", "sort": "colour"},
    ]
    assert {ask(disk, http, **asked).json()["error"] for asked in wrong} == {"FieldValidationError"}
    missing = ask(disk, http, path="/Library/none")
    assert (missing.status_code, missing.json()["error"]) == (404, "DiskNotFoundError")
    assert ask(disk, http, "/download", path="/Library/inner").status_code == 406
    for headers in (
        {},
        {"Authorization": disk.token},
        {"Authorization": f"Bearer {disk.token}"},
        {"Authorization": "OAuth y0_other"},
    ):
        answer = http.get(f"{disk.url}/v1/disk/resources", params={"path": "/"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (401, "UnauthorizedError")
    disk.fail("resources", 429, retry_after=3)
    answer = ask(disk, http, path="/")
    assert (answer.status_code, answer.json()["error"], answer.headers["Retry-After"]) == (
        429,
        "TooManyRequestsError",
        "3",
    )
    assert ask(disk, http, path="/").status_code == 200


def test_link_redirects_to_the_storage_host(disk: FakeDisk, http: httpx.Client) -> None:
    first = http.get(link(disk, http))
    assert first.status_code == 302
    assert len({disk.url, disk.at("downloader"), disk.at("storage")}) == 3
    assert first.headers["Location"].startswith(disk.at("storage"))
    answer = http.get(first.headers["Location"])
    assert (answer.status_code, answer.content, answer.headers["ETag"]) == (
        200,
        CONTENT,
        f'"{hashlib.md5(CONTENT).hexdigest()}"',
    )
    assert disk.served == len(CONTENT)
    assert [asked.where for asked in disk.log] == ["download", "redirect", "content"]
    assert disk.token not in repr(disk.log)


def test_ranges_are_served(disk: FakeDisk, http: httpx.Client) -> None:
    storage = http.get(link(disk, http)).headers["Location"]
    size = len(CONTENT)
    for asked, start, stop in (("bytes=300000-", 300_000, size), ("bytes=5-9", 5, 10), ("bytes=5-99999999", 5, size)):
        answer = http.get(storage, headers={"Range": asked})
        assert (answer.status_code, answer.headers["Content-Range"]) == (206, f"bytes {start}-{stop - 1}/{size}")
        assert answer.content == CONTENT[start:stop]
    assert http.get(storage, headers={"Range": f"bytes={size}-"}).status_code == 416
    disk.ignore_ranges()
    assert http.get(storage, headers={"Range": "bytes=5-9"}).content == CONTENT


@pytest.mark.parametrize("status", [403, 410])
def test_links_expire(disk: FakeDisk, http: httpx.Client, status: int) -> None:
    first = link(disk, http)
    storage = http.get(first).headers["Location"]
    disk.expire_links(status)
    assert (http.get(first).status_code, http.get(storage).status_code) == (status, status)
    assert http.get(link(disk, http)).status_code == 302


def test_refresh_token_works_once(disk: FakeDisk, http: httpx.Client) -> None:
    def renew(**other: str) -> httpx.Response:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh,
            "client_id": disk.client_id,
            "client_secret": disk.client_secret,
        }
        return http.post(f"{disk.oauth_url}/token", data=form | other)

    refresh, first = disk.refresh_token, disk.token
    assert renew(client_secret="wrong").json()["error"] == "invalid_client"
    assert renew(grant_type="password").json()["error"] == "unsupported_grant_type"
    disk.revoke()
    assert ask(disk, http, path="/").status_code == 401
    answer = renew().json()
    assert answer == {
        "access_token": disk.token,
        "refresh_token": disk.refresh_token,
        "token_type": "bearer",
        "expires_in": disk.expires_in,
    }
    assert first != disk.token
    assert refresh != disk.refresh_token
    assert ask(disk, http, path="/").status_code == 200
    again = renew()
    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
    disk.revoke(refresh=True)
    assert renew(refresh_token=disk.refresh_token).json()["error"] == "invalid_grant"


def test_faults_occur_in_order_and_end(disk: FakeDisk, http: httpx.Client) -> None:
    disk.fail("resources", 500, times=2)
    disk.cut("resources")
    disk.fail("download", 403)
    assert [ask(disk, http, path="/").status_code for _ in range(2)] == [500, 500]
    with pytest.raises(httpx.RemoteProtocolError):
        ask(disk, http, path="/")
    assert ask(disk, http, path="/").status_code == 200
    disk.clear_faults()
    assert ask(disk, http, "/download", path="/Library/b c.bin").status_code == 200


def test_body_is_cut_or_held_at_the_given_byte(disk: FakeDisk, http: httpx.Client) -> None:
    storage = http.get(link(disk, http)).headers["Location"]
    disk.cut("content", after=300_000)
    got = bytearray()
    with pytest.raises(httpx.RemoteProtocolError), http.stream("GET", storage) as answer:
        for chunk in answer.iter_raw():
            got += chunk
    assert got == CONTENT[:300_000]
    gate = disk.gate("content", after=300_000)
    served, answers = disk.served, []
    reader = threading.Thread(target=lambda: answers.append(http.get(storage).content))
    reader.start()
    assert gate.arrived.wait(5)
    assert disk.served - served == 300_000
    gate.open()
    reader.join(5)
    assert answers == [CONTENT]


def test_corrupt_content_has_the_same_length(disk: FakeDisk, http: httpx.Client) -> None:
    storage = http.get(link(disk, http)).headers["Location"]
    disk.corrupt("/Library/b c.bin")
    wrong = http.get(storage).content
    assert len(wrong) == len(CONTENT)
    assert wrong != CONTENT


def test_generated_bytes_are_reproducible_and_distinct() -> None:
    content = GeneratedContent(3 * 2**20 + 5, seed=1)
    whole = b"".join(content.pieces())
    assert len(whole) == content.size
    assert whole == b"".join(GeneratedContent(content.size, seed=1).pieces())
    assert whole != b"".join(GeneratedContent(content.size, seed=2).pieces())
    assert b"".join(content.pieces(1_000_000, 2_500_001)) == whole[1_000_000:2_500_001]
    assert whole[: 2**20] != whole[2**20 : 2 * 2**20]


def test_fake_runs_as_a_program(http: httpx.Client) -> None:
    command = [sys.executable, "-m", "apps.courier.tests.fake_yandex", "--gigabytes", "0.001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout
            told = json.loads(program.stdout.readline())
            headers = {"Authorization": f"OAuth {told['token']}"}
            href = http.get(
                f"{told['url']}/v1/disk/resources/download", params={"path": told["path"]}, headers=headers
            ).json()["href"]
            assert hashlib.md5(http.get(href, follow_redirects=True).content).hexdigest() == told["md5"]
        finally:
            program.terminate()
