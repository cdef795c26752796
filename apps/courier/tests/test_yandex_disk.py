"""The client of Yandex Disk over HTTP: its answers, and every way in which a call can fail."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

from apps.common.retry_after import parse_retry_after
from apps.courier.clients.yandex_disk import MAX_RESPONSE, Disk, Item, Listing
from apps.courier.errors import NotSentError, PermanentError, TemporaryError
from apps.courier.tests.disk_helpers import LARGE_CONTENT, NAME, PATH, DiskReader, open_disk_reader
from apps.courier.tests.fake_yandex import FakeDisk
from apps.courier.tests.fake_yandex_controls import Where


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[DiskReader]:
    with open_disk_reader(tmp_path) as reader:
        yield reader


@pytest.fixture
def fake(reader: DiskReader) -> FakeDisk:
    return reader.fake


@dataclass(frozen=True)
class Call:
    """A call of the API, and the endpoint that it reaches."""

    where: Where
    ask: Callable[[Disk], Awaitable[object]]


LIST = Call("resources", lambda disk: disk.list_folder("disk:/Library", offset=0, limit=10))
RESOURCE = Call("resources", lambda disk: disk.get_item(PATH))
LINK = Call("download", lambda disk: disk.download_link(PATH))
every_call = pytest.mark.parametrize("call", [LIST, RESOURCE, LINK], ids=["list", "resource", "link"])


# ---------------------------------------------------------------- successful calls


def test_folder_is_listed_by_name_page_by_page(fake: FakeDisk, reader: DiskReader) -> None:
    fake.put("/Library/a.txt", b"text")
    fake.mkdir("/Library/Folder")
    whole = reader.ask(lambda disk: disk.list_folder("disk:/Library", offset=0, limit=2))
    rest = reader.ask(lambda disk: disk.list_folder("disk:/Library", offset=2, limit=2))
    file = Item(NAME, PATH, False, len(LARGE_CONTENT), hashlib.md5(LARGE_CONTENT).hexdigest())
    assert whole == Listing([file, Item("Folder", "disk:/Library/Folder", True, 0, None)], 3)
    assert rest == Listing([Item("a.txt", "disk:/Library/a.txt", False, 4, hashlib.md5(b"text").hexdigest())], 3)
    asked = fake.requests_for("resources")[0].query
    assert asked["sort"] == "name"
    assert "mime_type" not in asked["fields"]


def test_file_is_looked_up_in_its_current_version(fake: FakeDisk, reader: DiskReader) -> None:
    assert reader.ask(lambda disk: disk.get_item(PATH)).size == len(LARGE_CONTENT)
    fake.put(PATH, b"")
    assert reader.ask(RESOURCE.ask) == Item(NAME, PATH, False, 0, hashlib.md5(b"").hexdigest())


def test_folder_that_became_a_file_is_not_found(reader: DiskReader) -> None:
    with pytest.raises(PermanentError) as refused:
        reader.ask(lambda disk: disk.list_folder(PATH, offset=0, limit=1))
    assert refused.value.code == "not_found"


# ---------------------------------------------------------------- failures


@every_call
@pytest.mark.parametrize(
    ("status", "told"), [(500, None), (502, None), (503, 30.0), (429, 7.0), (429, None), (423, None)]
)
def test_temporary_status_keeps_its_code_and_retry_after(
    fake: FakeDisk, reader: DiskReader, call: Call, status: int, told: float | None
) -> None:
    fake.fail(call.where, status, retry_after=told)
    with pytest.raises(TemporaryError) as trouble:
        reader.ask(call.ask)
    assert (trouble.value.status_code, trouble.value.retry_after) == (status, told)
    assert not isinstance(trouble.value, NotSentError)
    assert reader.ask(call.ask)


@every_call
@pytest.mark.parametrize(
    ("status", "code"), [(403, "forbidden"), (404, "not_found"), (410, "not_found"), (400, "refused"), (406, "refused")]
)
def test_permanent_status_has_an_error_code(
    fake: FakeDisk, reader: DiskReader, call: Call, status: int, code: str
) -> None:
    fake.fail(call.where, status)
    with pytest.raises(PermanentError) as refused:
        reader.ask(call.ask)
    assert refused.value.code == code


def test_missing_file_is_not_found(fake: FakeDisk, reader: DiskReader) -> None:
    fake.remove(PATH)
    for call in (RESOURCE, LINK):
        with pytest.raises(PermanentError) as refused:
            reader.ask(call.ask)
        assert refused.value.code == "not_found"


@every_call
def test_timeout_is_temporary(fake: FakeDisk, reader: DiskReader, call: Call) -> None:
    fake.stall(call.where)
    reader.stall = 0.2
    with pytest.raises(TemporaryError, match="in time") as trouble:
        reader.ask(call.ask)
    assert not isinstance(trouble.value, NotSentError)


@every_call
def test_broken_connection_is_temporary(fake: FakeDisk, reader: DiskReader, call: Call) -> None:
    fake.cut(call.where)
    with pytest.raises(TemporaryError, match="broke") as trouble:
        reader.ask(call.ask)
    assert not isinstance(trouble.value, NotSentError)


@every_call
def test_refused_connection_sent_nothing(fake: FakeDisk, reader: DiskReader, call: Call) -> None:
    fake.down()
    with pytest.raises(NotSentError, match="unreachable"):
        reader.ask(call.ask)
    fake.up()
    assert reader.ask(call.ask)


@every_call
def test_rejected_token_is_renewed_once(fake: FakeDisk, reader: DiskReader, call: Call) -> None:
    fake.revoke()
    assert reader.ask(call.ask)
    assert (len(fake.requests_for("token")), len(fake.requests_for(call.where))) == (1, 2)
    assert reader.ask(call.ask)
    assert len(fake.requests_for("token")) == 1


def test_renewal_with_the_same_token_may_still_help(fake: FakeDisk, reader: DiskReader) -> None:
    fake.keeps_token = True
    fake.fail("resources", 401)
    assert reader.ask(RESOURCE.ask)


@every_call
def test_second_401_is_permanent(fake: FakeDisk, reader: DiskReader, call: Call) -> None:
    fake.fail(call.where, 401, times=2)
    with pytest.raises(PermanentError, match="rejects the renewed token") as refused:
        reader.ask(call.ask)
    assert refused.value.code == "disk_token_rejected"
    assert (len(fake.requests_for("token")), len(fake.requests_for(call.where))) == (1, 2)


def test_rejected_renewal_is_permanent(fake: FakeDisk, reader: DiskReader) -> None:
    fake.revoke(refresh=True)
    with pytest.raises(PermanentError, match="rejects the refresh token") as refused:
        reader.ask(RESOURCE.ask)
    assert refused.value.code == "disk_token_rejected"


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b'{"name": "a"}', b'{"name": "a", "path": "trash:/a", "type": "file"}', b'{"href": 5}']
)
def test_unreadable_answer_is_temporary(reader: DiskReader, answer: bytes) -> None:
    reader.client = answering(answer)
    for call in (RESOURCE, LINK):
        with pytest.raises(TemporaryError, match="not readable"):
            reader.ask(call.ask)


def answering(answer: httpx.AsyncByteStream | bytes) -> Callable[[], httpx.AsyncClient]:
    """Return a client for which every request has this answer."""
    return lambda: httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=answer)))


@pytest.mark.parametrize(
    "evil",
    [
        rb'"name": "a\u0000", "path": "disk:/a\u0000", "type": "dir"',
        rb'"name": "a\ud800", "path": "disk:/a\ud800", "type": "dir"',
        rb'"name": "a", "path": "disk:/a", "type": "file", "size": 9223372036854775808',
        rb'"name": "a", "path": "disk:/a", "type": "file", "md5": "\udfff"',
    ],
)
def test_unstorable_entry_is_skipped_and_counted(reader: DiskReader, evil: bytes) -> None:
    good = b'{"name": "\\ud83d\\ude00", "path": "disk:/\\ud83d\\ude00", "type": "file", "size": 9223372036854775807}'
    reader.client = answering(b'{"_embedded": {"items": [{' + evil + b"}, " + good + b'], "total": 2}}')
    assert reader.ask(LIST.ask) == Listing([Item("😀", "disk:/😀", False, 2**63 - 1, None)], 2, left_out=1)


@pytest.mark.parametrize("entry", [b'{"name": "a"}', b"5", b'{"name": "a", "path": "trash:/a", "type": "file"}'])
def test_malformed_listing_is_temporary_and_not_an_empty_folder(reader: DiskReader, entry: bytes) -> None:
    reader.client = answering(b'{"_embedded": {"items": [' + entry + b'], "total": 1}}')
    with pytest.raises(TemporaryError, match="not readable"):
        reader.ask(LIST.ask)


def test_surplus_entries_are_ignored(reader: DiskReader) -> None:
    entry = b'{"name": "a", "path": "disk:/a", "type": "dir"}'
    reader.client = answering(b'{"_embedded": {"items": [' + b", ".join([entry] * 11) + b'], "total": 11}}')
    assert len(reader.ask(LIST.ask).items) == 10


@every_call
def test_endless_answer_is_temporary(reader: DiskReader, call: Call) -> None:
    sent = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 4 * MAX_RESPONSE:
                sent += len(piece)
                yield piece

    piece = b" " * 2**20
    reader.client = answering(Endless())
    with pytest.raises(TemporaryError, match="too large"):
        reader.ask(call.ask)
    assert sent <= MAX_RESPONSE + 2 * len(piece)


def test_deeply_nested_answer_is_temporary(reader: DiskReader) -> None:
    reader.client = answering(b"[" * 10**6)
    with pytest.raises(TemporaryError, match="not readable"):
        reader.ask(LIST.ask)


@pytest.mark.parametrize(
    ("said", "meant"), [("0", 0.0), ("1.5", 1.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), ("", None)]
)
def test_retry_after_is_read_or_ignored(said: str, meant: float | None) -> None:
    assert parse_retry_after({"Retry-After": said}) == meant


def test_retry_after_may_be_a_date() -> None:
    for moment in (datetime.now(UTC) + timedelta(seconds=90), datetime.now(UTC) - timedelta(hours=1)):
        seconds = parse_retry_after({"Retry-After": format_datetime(moment, usegmt=True)})
        assert seconds is not None
        assert abs(seconds - max((moment - datetime.now(UTC)).total_seconds(), 0.0)) < 5
