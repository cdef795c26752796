"""Wrong bytes, wrong ranges and insecure links never make a file."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator
from pathlib import Path

import httpx
import pytest

from apps.courier.clients import yandex_disk as disk_module
from apps.courier.clients.yandex_disk import CHUNK, RESUME_DELAYS, Disk, Item
from apps.courier.errors import TemporaryError
from apps.courier.tests.disk_helpers import (
    LARGE_CONTENT,
    LARGE_FILE,
    NAME,
    PATH,
    DiskReader,
    disk_settings,
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


def test_wrong_bytes_are_rejected(fake: FakeDisk, reader: DiskReader) -> None:
    fake.corrupt(PATH)
    with pytest.raises(TemporaryError, match="wrong bytes"):
        reader.read()
    assert len(reader.content) < len(LARGE_CONTENT)
    assert len(reader.read(md5=False)) == len(LARGE_CONTENT)  # no checksum to compare


def test_wrong_bytes_after_a_resumption_are_rejected(fake: FakeDisk, reader: DiskReader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(TemporaryError, match="wrong bytes"):
        reader.read(then=lambda have: fake.corrupt(PATH) if have == 500_000 else None)
    assert len(reader.content) < len(LARGE_CONTENT)


@pytest.mark.parametrize("size", [LARGE_FILE.size - 1, LARGE_FILE.size + 1, 400_000])
def test_changed_size_is_rejected(fake: FakeDisk, reader: DiskReader, size: int) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(TemporaryError, match="has changed"):
        reader.read(
            then=lambda have: fake.put(PATH, GeneratedContent(size, seed=7)) and None if have == 500_000 else None
        )


def answering(reader: DiskReader, *answers: httpx.Response, size: int = 10) -> list[bytes]:
    """Return the chunks of a download with these responses, one after the other."""
    left = list(answers)
    reader.client = lambda: httpx.AsyncClient(transport=httpx.MockTransport(lambda request: left.pop(0)))

    async def read(disk: Disk) -> list[bytes]:
        return [
            chunk
            async for chunk in disk.read_content(
                Item(NAME, PATH, False, size, None), "https://downloader.example/disk/a"
            )
        ]

    return reader.ask(read)


class Stream(httpx.AsyncByteStream):
    """A body without a length, which may end early unnoticed."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        yield self.content


def part(content: bytes, said: str | None) -> httpx.Response:
    return httpx.Response(206, stream=Stream(content), headers={"Content-Range": said} if said else None)


def test_part_must_match_the_requested_range(reader: DiskReader) -> None:
    assert answering(reader, httpx.Response(200, stream=Stream(b"01234")), part(b"56789", "bytes 5-9/10")) == [
        b"01234",
        b"56789",
    ]
    for wrong in (None, "bytes 0-4/10", "bytes 5-9/11", "bytes 5-9/*", "bytes 6-10/10", "pages 5-9/10"):
        with pytest.raises(TemporaryError, match="has changed"):
            answering(reader, httpx.Response(200, stream=Stream(b"01234")), part(b"56789", wrong))


def test_chunks_have_a_maximum_size(reader: DiskReader) -> None:
    content = LARGE_CONTENT[: 2 * CHUNK + 1]
    chunks = answering(reader, httpx.Response(200, stream=Stream(content)), size=len(content))
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 1]
    assert b"".join(chunks) == content


def test_surplus_bytes_are_rejected(reader: DiskReader) -> None:
    with pytest.raises(TemporaryError, match="wrong bytes"):
        answering(reader, part(b"0123456789ab", "bytes 0-9/10"))


@pytest.mark.parametrize(
    "link",
    [
        "ftp://downloader.example/a",
        "file:///etc/passwd",
        "http://downloader.example/a",
        "https://downloader.example:x/a",
    ],
)
def test_insecure_link_is_not_followed(reader: DiskReader, link: str) -> None:
    reader.settings = disk_settings(reader.fake, yandex_url="https://cloud-api.example")
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"Location": link})

    def read(disk: Disk, link: str) -> Awaitable[bytes]:
        return anext(disk.read_content(Item(NAME, PATH, False, 10, None), link))

    reader.client = lambda: httpx.AsyncClient(transport=httpx.MockTransport(redirect))
    with pytest.raises(TemporaryError):
        reader.ask(lambda disk: read(disk, link))
    assert asked == []
    with pytest.raises(TemporaryError):
        reader.ask(lambda disk: read(disk, "https://downloader.example/disk/a"))
    assert set(asked) == {"https://downloader.example/disk/a"}


def test_redirect_loop_ends(reader: DiskReader) -> None:
    circle = [httpx.Response(302, headers={"Location": "/disk/a"}) for _ in range(100)]
    with pytest.raises(TemporaryError, match="too many redirects"):
        answering(reader, *circle)


def test_cancellation_is_not_swallowed(fake: FakeDisk, reader: DiskReader) -> None:
    fake.stall("content")

    async def cancelled(disk: Disk) -> None:
        async with asyncio.timeout(0.2):
            async for _ in disk.read_content(await disk.get_item(PATH), await disk.download_link(PATH)):
                pass

    with pytest.raises(TimeoutError):
        reader.ask(cancelled)
