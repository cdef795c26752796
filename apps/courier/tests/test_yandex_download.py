"""A file is downloaded completely or not at all: interruptions are resumed, and wrong bytes are rejected."""

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apps.courier.clients import yandex_disk as disk_module
from apps.courier.clients.yandex_disk import RESUME_DELAYS, Disk, Item
from apps.courier.errors import NotSentError, PermanentError, TemporaryError
from apps.courier.tests.disk_helpers import (
    LARGE_CONTENT,
    PATH,
    DiskReader,
    open_disk_reader,
)
from apps.courier.tests.fake_yandex import FakeDisk, GeneratedContent


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[DiskReader]:
    with open_disk_reader(tmp_path) as reader:
        yield reader


@pytest.fixture
def fake(reader: DiskReader) -> FakeDisk:
    return reader.fake


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume without delay, with the usual number of attempts."""
    monkeypatch.setattr(disk_module, "RESUME_DELAYS", (0.0,) * len(RESUME_DELAYS))


def ranges(fake: FakeDisk) -> list[str | None]:
    """Return the range of each content request."""
    return [asked.range for asked in fake.requests_for("content")]


# ---------------------------------------------------------------- complete files


def test_file_is_read_to_its_last_byte(fake: FakeDisk, reader: DiskReader) -> None:
    assert reader.read() == LARGE_CONTENT
    assert ranges(fake) == [None]
    assert fake.requests_for("content")[0].headers["accept-encoding"] == "identity"


def test_empty_file_has_no_bytes(fake: FakeDisk, reader: DiskReader) -> None:
    fake.put(PATH, b"")
    assert reader.read() == b""


def test_token_is_sent_to_the_api_only(fake: FakeDisk, reader: DiskReader) -> None:
    reader.client = lambda: httpx.AsyncClient(
        headers={"Authorization": "OAuth of-the-client"}, auth=("user", "password"), follow_redirects=True
    )
    fake.cut("content", after=1000)
    assert reader.read() == LARGE_CONTENT
    elsewhere = [asked for asked in fake.log if asked.host != "api"]
    assert {asked.host for asked in elsewhere} == {"downloader", "storage"}
    assert not [asked for asked in elsewhere if "authorization" in asked.headers]
    assert all(asked.headers["authorization"] == "OAuth" for asked in fake.log if asked.host == "api")


def test_memory_does_not_grow_with_the_file(fake: FakeDisk, reader: DiskReader) -> None:
    large = fake.put("/Library/large.bin", GeneratedContent(64 * 2**20, seed=3))

    async def measured(disk: Disk) -> tuple[int, str]:
        item, link = await disk.get_item("disk:/Library/large.bin"), await disk.download_link("disk:/Library/large.bin")
        digest = hashlib.md5()
        tracemalloc.start()
        async for chunk in disk.read_content(item, link):
            digest.update(chunk)
        return tracemalloc.get_traced_memory()[1], digest.hexdigest()

    try:
        peak, md5 = reader.ask(measured)
    finally:
        tracemalloc.stop()
    assert md5 == large.md5
    assert peak < 6 * 2**20  # includes the server, with a few pieces of a megabyte


def test_abandoned_download_frees_its_connection(fake: FakeDisk, reader: DiskReader) -> None:
    reader.client = lambda: httpx.AsyncClient(limits=httpx.Limits(max_connections=1))
    reader.stall = 1.0

    async def left(disk: Disk) -> Item:
        body = disk.read_content(await disk.get_item(PATH), await disk.download_link(PATH))
        await anext(body)
        await body.aclose()
        return await disk.get_item(PATH)

    assert reader.ask(left).size == len(LARGE_CONTENT)


# ---------------------------------------------------------------- resuming


def test_broken_connection_is_resumed(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=1_234_567)
    assert reader.read() == LARGE_CONTENT
    assert ranges(fake) == [None, "bytes=1234567-"]
    assert fake.served == len(LARGE_CONTENT)
    assert len(fake.requests_for("download")) == 1


def test_stalled_connection_is_resumed(fake: FakeDisk, reader: DiskReader) -> None:
    gate = fake.gate("content", after=1_000_000)
    reader.stall = 0.3
    assert reader.read() == LARGE_CONTENT
    assert gate.arrived.is_set()
    assert ranges(fake) == [None, "bytes=1000000-"]


def test_resumptions_with_progress_are_unlimited(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=100_000, times=20)
    assert reader.read() == LARGE_CONTENT
    assert len(ranges(fake)) == 21


@pytest.mark.parametrize("after", [0, 500_000])
def test_download_fails_after_five_resumptions_without_progress(fake: FakeDisk, reader: DiskReader, after: int) -> None:
    fake.cut("content", after=after)
    fake.cut("content", after=0, times=1000)
    with pytest.raises(TemporaryError, match="broke"):
        reader.read()
    assert len(ranges(fake)) == 1 + 5
    assert reader.content == LARGE_CONTENT[:after]


def test_each_resumption_waits_longer(fake: FakeDisk, reader: DiskReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "RESUME_DELAYS", RESUME_DELAYS)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(disk_module, "sleep", sleep)
    fake.cut("content", after=1000)
    fake.cut("content", after=0, times=3)
    assert reader.read() == LARGE_CONTENT
    assert slept == list(RESUME_DELAYS[:4])
    assert list(RESUME_DELAYS) == sorted(RESUME_DELAYS)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_expired_link_is_replaced(fake: FakeDisk, reader: DiskReader, status: int) -> None:
    fake.cut("content", after=500_000)
    assert reader.read(then=lambda have: fake.expire_links(status) if have == 500_000 else None) == LARGE_CONTENT
    assert len(fake.requests_for("download")) == 2
    assert ranges(fake) == [None, "bytes=500000-"]


def test_token_that_expires_meanwhile_is_renewed_for_the_new_link(fake: FakeDisk, reader: DiskReader) -> None:
    def end(have: int) -> None:
        if have == 500_000:
            fake.expire_links()
            fake.revoke()

    fake.cut("content", after=500_000)
    assert reader.read(then=end) == LARGE_CONTENT
    assert len(fake.requests_for("token")) == 1


def test_file_removed_meanwhile_is_not_found(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(PermanentError) as refused:
        reader.read(then=lambda have: fake.remove(PATH) if have == 500_000 else None)
    assert refused.value.code == "not_found"


def test_link_that_is_always_expired_fails_in_the_end(fake: FakeDisk, reader: DiskReader) -> None:
    fake.fail("content", 401, times=1000)
    with pytest.raises(TemporaryError, match="has expired"):
        reader.read()
    assert len(ranges(fake)) == 1 + 5


@pytest.mark.parametrize(("status", "code"), [(403, "forbidden"), (404, "not_found"), (410, "not_found")])
def test_file_without_a_working_link_fails(fake: FakeDisk, reader: DiskReader, status: int, code: str) -> None:
    fake.fail("content", status, times=1000)
    with pytest.raises(PermanentError) as refused:
        reader.read()
    assert (refused.value.code, len(ranges(fake))) == (code, 1 + 5)


def test_server_that_ignores_ranges_is_read_from_the_start(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=1_234_567)
    fake.ignore_ranges()
    assert reader.read() == LARGE_CONTENT
    assert ranges(fake) == [None, "bytes=1234567-"]
    assert fake.served == len(LARGE_CONTENT) + 1_234_567


@pytest.mark.parametrize("status", [500, 503, 429])
def test_busy_server_is_asked_again_for_the_rest(fake: FakeDisk, reader: DiskReader, status: int) -> None:
    fake.cut("content", after=500_000)
    fake.fail("content", status, times=3)
    assert reader.read() == LARGE_CONTENT
    assert ranges(fake) == [None, *["bytes=500000-"] * 4]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_busy_server_is_not_retried_before_the_first_byte_or_a_requested_pause(
    fake: FakeDisk, reader: DiskReader, status: int
) -> None:
    fake.fail("content", status)
    with pytest.raises(TemporaryError) as trouble:
        reader.read()
    assert (trouble.value.status_code, trouble.value.retry_after, reader.content) == (status, None, b"")
    fake.cut("content", after=500_000)
    fake.fail("content", status, retry_after=60)
    with pytest.raises(TemporaryError) as trouble:
        reader.read()
    assert (trouble.value.status_code, trouble.value.retry_after, reader.content) == (
        status,
        60.0,
        LARGE_CONTENT[:500_000],
    )


def test_disk_that_stops_meanwhile_is_temporary(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(NotSentError):
        reader.read(then=lambda have: fake.down() if have == 500_000 else None)
