"""Yandex Disk over real HTTP: what it answers, and every way in which it can fail to."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

from apps.common.pauses import retry_after
from apps.courier.disk import ANSWER, Disk, Item, Listing
from apps.courier.errors import Refusal, Trouble, Unsent
from apps.courier.tests.reading import BYTES, NAME, PATH, Reader, reading
from apps.courier.tests.yandex import FakeDisk
from apps.courier.tests.yandex_controls import Where


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path) as reader:
        yield reader


@pytest.fixture
def fake(reader: Reader) -> FakeDisk:
    return reader.fake


@dataclass(frozen=True)
class Call:
    """One of the things that are asked of the API, and where it arrives."""

    where: Where
    ask: Callable[[Disk], Awaitable[object]]


LIST = Call("resources", lambda disk: disk.list("disk:/Library", offset=0, limit=10))
RESOURCE = Call("resources", lambda disk: disk.resource(PATH))
LINK = Call("download", lambda disk: disk.link(PATH))
every_call = pytest.mark.parametrize("call", [LIST, RESOURCE, LINK], ids=["list", "resource", "link"])


# ---------------------------------------------------------------- what there is


def test_a_folder_is_listed_by_name_page_by_page(fake: FakeDisk, reader: Reader) -> None:
    fake.put("/Library/a.txt", b"text")
    fake.mkdir("/Library/Folder")
    whole = reader.ask(lambda disk: disk.list("disk:/Library", offset=0, limit=2))
    rest = reader.ask(lambda disk: disk.list("disk:/Library", offset=2, limit=2))
    file = Item(NAME, PATH, False, len(BYTES), hashlib.md5(BYTES).hexdigest())
    assert whole == Listing([file, Item("Folder", "disk:/Library/Folder", True, 0, None)], 3)
    assert rest == Listing([Item("a.txt", "disk:/Library/a.txt", False, 4, hashlib.md5(b"text").hexdigest())], 3)
    asked = fake.asked("resources")[0].query
    assert asked["sort"] == "name"
    assert "mime_type" not in asked["fields"]


def test_a_file_is_found_as_it_is_now(fake: FakeDisk, reader: Reader) -> None:
    assert reader.ask(lambda disk: disk.resource(PATH)).size == len(BYTES)
    fake.put(PATH, b"")
    assert reader.ask(RESOURCE.ask) == Item(NAME, PATH, False, 0, hashlib.md5(b"").hexdigest())


def test_a_folder_that_became_a_file_is_not_found(reader: Reader) -> None:
    with pytest.raises(Refusal) as refused:
        reader.ask(lambda disk: disk.list(PATH, offset=0, limit=1))
    assert refused.value.code == "not_found"


# ---------------------------------------------------------------- what can go wrong


@every_call
@pytest.mark.parametrize(("status", "told"), [(500, None), (502, None), (503, 30.0), (429, 7.0), (429, None), (423, None)])
def test_what_may_pass_is_trouble_with_its_status_and_its_wait(fake: FakeDisk, reader: Reader, call: Call, status: int, told: float | None) -> None:
    fake.fail(call.where, status, retry_after=told)
    with pytest.raises(Trouble) as trouble:
        reader.ask(call.ask)
    assert (trouble.value.status_code, trouble.value.retry_after) == (status, told)
    assert not isinstance(trouble.value, Unsent)
    assert reader.ask(call.ask)


@every_call
@pytest.mark.parametrize(("status", "code"), [(403, "forbidden"), (404, "not_found"), (410, "not_found"), (400, "refused"), (406, "refused")])
def test_what_would_not_pass_is_a_refusal_with_its_code(fake: FakeDisk, reader: Reader, call: Call, status: int, code: str) -> None:
    fake.fail(call.where, status)
    with pytest.raises(Refusal) as refused:
        reader.ask(call.ask)
    assert refused.value.code == code


def test_a_file_that_is_gone_is_not_found(fake: FakeDisk, reader: Reader) -> None:
    fake.remove(PATH)
    for call in (RESOURCE, LINK):
        with pytest.raises(Refusal) as refused:
            reader.ask(call.ask)
        assert refused.value.code == "not_found"


@every_call
def test_an_answer_that_does_not_come_is_trouble(fake: FakeDisk, reader: Reader, call: Call) -> None:
    fake.stall(call.where)
    reader.stall = 0.2
    with pytest.raises(Trouble, match="in time") as trouble:
        reader.ask(call.ask)
    assert not isinstance(trouble.value, Unsent)


@every_call
def test_a_connection_that_breaks_is_trouble(fake: FakeDisk, reader: Reader, call: Call) -> None:
    fake.cut(call.where)
    with pytest.raises(Trouble, match="broke") as trouble:
        reader.ask(call.ask)
    assert not isinstance(trouble.value, Unsent)


@every_call
def test_a_connection_that_is_refused_sent_nothing(fake: FakeDisk, reader: Reader, call: Call) -> None:
    fake.down()
    with pytest.raises(Unsent, match="cannot be reached"):
        reader.ask(call.ask)
    fake.up()
    assert reader.ask(call.ask)


@every_call
def test_a_token_that_is_refused_is_renewed_once_and_the_answer_is_right(fake: FakeDisk, reader: Reader, call: Call) -> None:
    fake.revoke()
    assert reader.ask(call.ask)
    assert (len(fake.asked("token")), len(fake.asked(call.where))) == (1, 2)
    assert reader.ask(call.ask)
    assert len(fake.asked("token")) == 1


def test_a_renewal_that_answers_the_same_token_may_still_help(fake: FakeDisk, reader: Reader) -> None:
    fake.keeps_token = True
    fake.fail("resources", 401)
    assert reader.ask(RESOURCE.ask)


@every_call
def test_a_second_401_is_a_refusal(fake: FakeDisk, reader: Reader, call: Call) -> None:
    fake.fail(call.where, 401, times=2)
    with pytest.raises(Refusal, match="just renewed") as refused:
        reader.ask(call.ask)
    assert refused.value.code == "shut_out"
    assert (len(fake.asked("token")), len(fake.asked(call.where))) == (1, 2)


def test_a_renewal_that_is_refused_is_a_refusal(fake: FakeDisk, reader: Reader) -> None:
    fake.revoke(refresh=True)
    with pytest.raises(Refusal, match="refuses to renew") as refused:
        reader.ask(RESOURCE.ask)
    assert refused.value.code == "shut_out"


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"name": "a"}', b'{"name": "a", "path": "trash:/a", "type": "file"}', b'{"href": 5}'])
def test_an_answer_that_cannot_be_read_is_trouble(reader: Reader, answer: bytes) -> None:
    reader.client = answering(answer)
    for call in (RESOURCE, LINK):
        with pytest.raises(Trouble, match="cannot read"):
            reader.ask(call.ask)


def answering(answer: httpx.AsyncByteStream | bytes) -> Callable[[], httpx.AsyncClient]:
    """A client for which everything has this answer."""
    return lambda: httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=answer)))


@pytest.mark.parametrize("evil", [
    rb'"name": "a\u0000", "path": "disk:/a\u0000", "type": "dir"', rb'"name": "a\ud800", "path": "disk:/a\ud800", "type": "dir"',
    rb'"name": "a", "path": "disk:/a", "type": "file", "size": 9223372036854775808', rb'"name": "a", "path": "disk:/a", "type": "file", "md5": "\udfff"',
])  # fmt: skip
def test_an_entry_that_cannot_be_kept_is_left_out_and_counted(reader: Reader, evil: bytes) -> None:
    good = b'{"name": "\\ud83d\\ude00", "path": "disk:/\\ud83d\\ude00", "type": "file", "size": 9223372036854775807}'
    reader.client = answering(b'{"_embedded": {"items": [{' + evil + b"}, " + good + b'], "total": 2}}')
    assert reader.ask(LIST.ask) == Listing([Item("😀", "disk:/😀", False, 2**63 - 1, None)], 2, left_out=1)


@pytest.mark.parametrize("entry", [b'{"name": "a"}', b"5", b'{"name": "a", "path": "trash:/a", "type": "file"}'])
def test_a_listing_of_another_form_is_trouble_and_no_empty_folder(reader: Reader, entry: bytes) -> None:
    reader.client = answering(b'{"_embedded": {"items": [' + entry + b'], "total": 1}}')
    with pytest.raises(Trouble, match="cannot read"):
        reader.ask(LIST.ask)


def test_a_disk_that_lists_more_than_it_was_asked_for_is_heard_no_further(reader: Reader) -> None:
    entry = b'{"name": "a", "path": "disk:/a", "type": "dir"}'
    reader.client = answering(b'{"_embedded": {"items": [' + b", ".join([entry] * 11) + b'], "total": 11}}')
    assert len(reader.ask(LIST.ask).items) == 10


@every_call
def test_an_answer_without_an_end_is_trouble(reader: Reader, call: Call) -> None:
    sent = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 4 * ANSWER:
                sent += len(piece)
                yield piece

    piece = b" " * 2**20
    reader.client = answering(Endless())
    with pytest.raises(Trouble, match="no end"):
        reader.ask(call.ask)
    assert sent <= ANSWER + 2 * len(piece)


def test_an_answer_that_is_nested_without_an_end_is_trouble(reader: Reader) -> None:
    reader.client = answering(b"[" * 10**6)
    with pytest.raises(Trouble, match="cannot read"):
        reader.ask(LIST.ask)


@pytest.mark.parametrize(("said", "meant"), [("0", 0.0), ("1.5", 1.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), ("", None)])
def test_a_wait_is_what_the_server_said_or_nothing(said: str, meant: float | None) -> None:
    assert retry_after({"Retry-After": said}) == meant


def test_a_wait_may_be_a_date() -> None:
    for moment in (datetime.now(UTC) + timedelta(seconds=90), datetime.now(UTC) - timedelta(hours=1)):
        seconds = retry_after({"Retry-After": format_datetime(moment, usegmt=True)})
        assert seconds is not None
        assert abs(seconds - max((moment - datetime.now(UTC)).total_seconds(), 0.0)) < 5
