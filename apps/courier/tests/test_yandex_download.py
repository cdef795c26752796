"""A file is read whole or not at all: whatever breaks on the way is resumed, and what is wrong in the end is not called the file."""

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Iterator
from pathlib import Path

import httpx
import pytest

from apps.courier import disk as disk_module
from apps.courier.disk import CHUNK, PAUSES, Disk, Item
from apps.courier.errors import Refusal, Trouble, Unsent
from apps.courier.tests.reading import BYTES, LARGE, NAME, PATH, Reader, reading, settings_of
from apps.courier.tests.yandex import FakeDisk, Generated


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path) as reader:
        yield reader


@pytest.fixture
def fake(reader: Reader) -> FakeDisk:
    return reader.fake


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume at once, as often as ever."""
    monkeypatch.setattr(disk_module, "PAUSES", (0.0,) * len(PAUSES))


def ranges(fake: FakeDisk) -> list[str | None]:
    """The part that each request for content was for."""
    return [asked.range for asked in fake.asked("content")]


# ---------------------------------------------------------------- the whole file


def test_a_file_is_read_to_its_last_byte(fake: FakeDisk, reader: Reader) -> None:
    assert reader.read() == BYTES
    assert ranges(fake) == [None]
    assert fake.asked("content")[0].headers["accept-encoding"] == "identity"


def test_an_empty_file_has_no_bytes(fake: FakeDisk, reader: Reader) -> None:
    fake.put(PATH, b"")
    assert reader.read() == b""


def test_the_token_goes_to_the_api_alone(fake: FakeDisk, reader: Reader) -> None:
    reader.client = lambda: httpx.AsyncClient(headers={"Authorization": "OAuth of-the-client"}, auth=("user", "password"), follow_redirects=True)
    fake.cut("content", after=1000)
    assert reader.read() == BYTES
    elsewhere = [asked for asked in fake.log if asked.host != "api"]
    assert {asked.host for asked in elsewhere} == {"downloader", "storage"}
    assert not [asked for asked in elsewhere if "authorization" in asked.headers]
    assert all(asked.headers["authorization"] == "OAuth" for asked in fake.log if asked.host == "api")


def test_memory_does_not_grow_with_the_file(fake: FakeDisk, reader: Reader) -> None:
    large = fake.put("/Library/large.bin", Generated(64 * 2**20, seed=3))

    async def measured(disk: Disk) -> tuple[int, str]:
        item, link = await disk.resource("disk:/Library/large.bin"), await disk.link("disk:/Library/large.bin")
        digest = hashlib.md5()
        tracemalloc.start()
        async for chunk in disk.body(item, link):
            digest.update(chunk)
        return tracemalloc.get_traced_memory()[1], digest.hexdigest()

    try:
        peak, md5 = reader.ask(measured)
    finally:
        tracemalloc.stop()
    assert md5 == large.md5
    assert peak < 6 * 2**20  # the server is in it, with a few pieces of a megabyte


def test_a_body_that_is_left_gives_its_connection_back(fake: FakeDisk, reader: Reader) -> None:
    reader.client = lambda: httpx.AsyncClient(limits=httpx.Limits(max_connections=1))
    reader.stall = 1.0

    async def left(disk: Disk) -> Item:
        body = disk.body(await disk.resource(PATH), await disk.link(PATH))
        await anext(body)
        await body.aclose()
        return await disk.resource(PATH)

    assert reader.ask(left).size == len(BYTES)


# ---------------------------------------------------------------- resumed


def test_a_connection_that_breaks_is_resumed_where_it_stopped(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=1_234_567)
    assert reader.read() == BYTES
    assert ranges(fake) == [None, "bytes=1234567-"]
    assert fake.served == len(BYTES)
    assert len(fake.asked("download")) == 1


def test_a_connection_that_stands_still_is_resumed(fake: FakeDisk, reader: Reader) -> None:
    gate = fake.gate("content", after=1_000_000)
    reader.stall = 0.3
    assert reader.read() == BYTES
    assert gate.arrived.is_set()
    assert ranges(fake) == [None, "bytes=1000000-"]


def test_resumptions_that_bring_bytes_may_be_many(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=100_000, times=20)
    assert reader.read() == BYTES
    assert len(ranges(fake)) == 21


@pytest.mark.parametrize("after", [0, 500_000])
def test_five_resumptions_without_a_byte_are_the_last(fake: FakeDisk, reader: Reader, after: int) -> None:
    fake.cut("content", after=after)
    fake.cut("content", after=0, times=1000)
    with pytest.raises(Trouble, match="broke"):
        reader.read()
    assert len(ranges(fake)) == 1 + 5
    assert reader.got == BYTES[:after]


def test_a_resumption_waits_longer_each_time(fake: FakeDisk, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "PAUSES", PAUSES)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(disk_module, "sleep", sleep)
    fake.cut("content", after=1000)
    fake.cut("content", after=0, times=3)
    assert reader.read() == BYTES
    assert slept == list(PAUSES[:4])
    assert list(PAUSES) == sorted(PAUSES)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_link_that_expired_is_taken_afresh(fake: FakeDisk, reader: Reader, status: int) -> None:
    fake.cut("content", after=500_000)
    assert reader.read(then=lambda have: fake.expire_links(status) if have == 500_000 else None) == BYTES
    assert len(fake.asked("download")) == 2
    assert ranges(fake) == [None, "bytes=500000-"]


def test_a_token_that_ends_in_between_is_renewed_for_the_new_link(fake: FakeDisk, reader: Reader) -> None:
    def end(have: int) -> None:
        if have == 500_000:
            fake.expire_links()
            fake.revoke()

    fake.cut("content", after=500_000)
    assert reader.read(then=end) == BYTES
    assert len(fake.asked("token")) == 1


def test_a_file_that_went_away_in_between_is_not_found(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(Refusal) as refused:
        reader.read(then=lambda have: fake.remove(PATH) if have == 500_000 else None)
    assert refused.value.code == "not_found"


def test_a_link_that_is_out_of_date_from_the_start_on_is_given_up_in_the_end(fake: FakeDisk, reader: Reader) -> None:
    fake.fail("content", 401, times=1000)
    with pytest.raises(Trouble, match="out of date"):
        reader.read()
    assert len(ranges(fake)) == 1 + 5


@pytest.mark.parametrize(("status", "code"), [(403, "forbidden"), (404, "not_found"), (410, "not_found")])
def test_a_file_that_no_new_link_leads_to_is_refused(fake: FakeDisk, reader: Reader, status: int, code: str) -> None:
    fake.fail("content", status, times=1000)
    with pytest.raises(Refusal) as refused:
        reader.read()
    assert (refused.value.code, len(ranges(fake))) == (code, 1 + 5)


def test_a_server_that_ignores_ranges_is_read_from_the_start_and_what_is_had_is_skipped(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=1_234_567)
    fake.ignore_ranges()
    assert reader.read() == BYTES
    assert ranges(fake) == [None, "bytes=1234567-"]
    assert fake.served == len(BYTES) + 1_234_567


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_cannot_now_is_asked_again_for_the_rest(fake: FakeDisk, reader: Reader, status: int) -> None:
    fake.cut("content", after=500_000)
    fake.fail("content", status, times=3)
    assert reader.read() == BYTES
    assert ranges(fake) == [None, *["bytes=500000-"] * 4]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_cannot_begin_or_wants_to_be_left_alone_is_left_alone(fake: FakeDisk, reader: Reader, status: int) -> None:
    fake.fail("content", status)
    with pytest.raises(Trouble) as trouble:
        reader.read()
    assert (trouble.value.status_code, trouble.value.retry_after, reader.got) == (status, None, b"")
    fake.cut("content", after=500_000)
    fake.fail("content", status, retry_after=60)
    with pytest.raises(Trouble) as trouble:
        reader.read()
    assert (trouble.value.status_code, trouble.value.retry_after, reader.got) == (status, 60.0, BYTES[:500_000])


def test_a_disk_that_goes_down_in_between_is_trouble(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(Unsent):
        reader.read(then=lambda have: fake.down() if have == 500_000 else None)


# ---------------------------------------------------------------- wrong


def test_bytes_that_are_wrong_never_make_a_file(fake: FakeDisk, reader: Reader) -> None:
    fake.corrupt(PATH)
    with pytest.raises(Trouble, match="bytes are wrong"):
        reader.read()
    assert len(reader.got) < len(BYTES)
    assert len(reader.read(md5=False)) == len(BYTES)  # nothing to tell by


def test_bytes_that_turn_wrong_after_a_break_never_make_a_file(fake: FakeDisk, reader: Reader) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(Trouble, match="bytes are wrong"):
        reader.read(then=lambda have: fake.corrupt(PATH) if have == 500_000 else None)
    assert len(reader.got) < len(BYTES)


@pytest.mark.parametrize("size", [LARGE.size - 1, LARGE.size + 1, 400_000])
def test_a_file_that_changes_its_size_is_no_longer_the_file(fake: FakeDisk, reader: Reader, size: int) -> None:
    fake.cut("content", after=500_000)
    with pytest.raises(Trouble, match="no longer what it was"):
        reader.read(then=lambda have: fake.put(PATH, Generated(size, seed=7)) and None if have == 500_000 else None)


def answering(reader: Reader, *answers: httpx.Response, size: int = 10) -> list[bytes]:
    """The chunks of a body that is answered like this, one answer after the other."""
    left = list(answers)
    reader.client = lambda: httpx.AsyncClient(transport=httpx.MockTransport(lambda request: left.pop(0)))

    async def read(disk: Disk) -> list[bytes]:
        return [chunk async for chunk in disk.body(Item(NAME, PATH, False, size, None), "https://downloader.example/disk/a")]

    return reader.ask(read)


class Stream(httpx.AsyncByteStream):
    """A body without a length of its own: it may end early without anybody noticing."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        yield self.content


def part(content: bytes, said: str | None) -> httpx.Response:
    return httpx.Response(206, stream=Stream(content), headers={"Content-Range": said} if said else None)


def test_a_part_must_be_the_part_that_was_asked_for(reader: Reader) -> None:
    assert answering(reader, httpx.Response(200, stream=Stream(b"01234")), part(b"56789", "bytes 5-9/10")) == [b"01234", b"56789"]
    for wrong in (None, "bytes 0-4/10", "bytes 5-9/11", "bytes 5-9/*", "bytes 6-10/10", "pages 5-9/10"):
        with pytest.raises(Trouble, match="no longer what it was"):
            answering(reader, httpx.Response(200, stream=Stream(b"01234")), part(b"56789", wrong))


def test_a_chunk_has_its_largest_size(reader: Reader) -> None:
    content = BYTES[: 2 * CHUNK + 1]
    chunks = answering(reader, httpx.Response(200, stream=Stream(content)), size=len(content))
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 1]
    assert b"".join(chunks) == content


def test_more_bytes_than_there_are_never_make_a_file(reader: Reader) -> None:
    with pytest.raises(Trouble, match="bytes are wrong"):
        answering(reader, part(b"0123456789ab", "bytes 0-9/10"))


@pytest.mark.parametrize("link", ["ftp://downloader.example/a", "file:///etc/passwd", "http://downloader.example/a", "https://downloader.example:x/a"])
def test_a_link_that_is_not_safe_is_not_followed(reader: Reader, link: str) -> None:
    reader.settings = settings_of(reader.fake, yandex_url="https://cloud-api.example")
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"Location": link})

    def read(disk: Disk, link: str) -> Awaitable[bytes]:
        return anext(disk.body(Item(NAME, PATH, False, 10, None), link))

    reader.client = lambda: httpx.AsyncClient(transport=httpx.MockTransport(redirect))
    with pytest.raises(Trouble):
        reader.ask(lambda disk: read(disk, link))
    assert asked == []
    with pytest.raises(Trouble):
        reader.ask(lambda disk: read(disk, "https://downloader.example/disk/a"))
    assert set(asked) == {"https://downloader.example/disk/a"}


def test_a_link_that_leads_in_circles_is_left(reader: Reader) -> None:
    circle = [httpx.Response(302, headers={"Location": "/disk/a"}) for _ in range(100)]
    with pytest.raises(Trouble, match="without an end"):
        answering(reader, *circle)


def test_a_caller_that_is_cancelled_is_cancelled(fake: FakeDisk, reader: Reader) -> None:
    fake.stall("content")

    async def cancelled(disk: Disk) -> None:
        async with asyncio.timeout(0.2):
            async for _ in disk.body(await disk.resource(PATH), await disk.link(PATH)):
                pass

    with pytest.raises(TimeoutError):
        reader.ask(cancelled)
