"""The Images API over real HTTP: what is asked of it, and what each of its answers means."""

import asyncio
import base64
import json
import logging
import traceback
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from apps.studio.errors import Hopeless, Trouble
from apps.studio.picture import LARGEST
from apps.studio.providers import Link, replies
from apps.studio.providers.openai import Images
from apps.studio.tests.asking import FILTERS, ORDER, drawn, failure
from apps.studio.tests.images_api import FakeImages, Fault, png

SHORT = 0.3
"""Seconds of patience, where the fake never answers."""


# ---------------------------------------------------------------- what is asked, and what comes


def test_an_image_in_the_answer_is_given_as_it_is(images: FakeImages) -> None:
    assert drawn(images) == png("1536x1024")


def test_a_link_in_the_answer_is_given_unfetched(images: FakeImages) -> None:
    images.answers = "url"
    link = drawn(images)
    assert isinstance(link, Link)
    assert httpx.get(link.url).content == png("1536x1024")
    assert len(images.fetched) == 1


def test_a_request_says_what_is_wanted_and_no_more(images: FakeImages) -> None:
    """No seed and no format: the API refuses a field that it does not know, and so does the fake."""
    drawn(images)
    [asked], [headers] = images.asked, images.headers
    assert (asked.prompt, asked.size, asked.model, asked.key) == (ORDER.prompt, "1536x1024", "gpt-image-1", "job-1")
    assert headers["authorization"] == f"Bearer {images.api_key}"
    assert headers["content-type"] == "application/json"


def test_without_a_model_the_provider_chooses(images: FakeImages) -> None:
    drawn(images, model=None)
    assert images.asked[0].model is None


def test_a_slash_at_the_end_of_the_address_changes_nothing(images: FakeImages) -> None:
    async def asked() -> bytes | Link:
        provider = Images(images.url + "/", images.api_key, None)
        async with provider.open():
            return await provider.generate(ORDER, key="job-1")

    assert asyncio.run(asked()) == png("1536x1024")


def test_each_event_loop_has_its_own_connections(images: FakeImages) -> None:
    provider = Images(images.url, images.api_key, None)

    async def asked() -> bytes | Link:
        async with provider.open():
            return await provider.generate(ORDER, key="job-1")

    assert [asyncio.run(asked()) for _ in range(2)] == [png("1536x1024")] * 2


def test_a_provider_that_is_not_open_says_so(images: FakeImages) -> None:
    provider = Images(images.url, images.api_key, None)
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(provider.generate(ORDER, key="job-1"))


# ---------------------------------------------------------------- trouble that may pass


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass_is_trouble(images: FakeImages, status: int) -> None:
    images.fail(Fault.trouble(status))
    error = failure(images)
    assert isinstance(error, Trouble)
    assert error.retry_after is None
    assert str(status) in str(error)


BROKEN = [Fault.cut(), Fault.torn(), Fault.garbage(), Fault.no_image(), Fault.no_base64()]


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.kind)
def test_an_answer_that_is_none_is_trouble(images: FakeImages, fault: Fault) -> None:
    images.fail(fault)
    assert isinstance(failure(images), Trouble)
    assert drawn(images) == png("1536x1024")


def test_no_answer_in_time_is_trouble(images: FakeImages) -> None:
    images.fail(Fault.hang())
    error = failure(images, timeout=SHORT)
    assert isinstance(error, Trouble)
    assert "0.3 seconds" in str(error)


def test_an_answer_that_comes_in_drops_ends_in_time_too() -> None:
    """Each drop comes soon enough: only the whole is too slow."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n")
        with suppress(ConnectionError), closing(writer):
            for _ in range(200):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def asked() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        provider = Images(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "sk-key", None, timeout=1.0)
        async with server, provider.open():
            await provider.generate(ORDER, key="job-1")

    with pytest.raises(Trouble, match="did not answer within"):
        asyncio.run(asked())


def test_a_provider_that_is_not_there_is_trouble(images: FakeImages) -> None:
    images.down()
    assert isinstance(failure(images), Trouble)


@pytest.mark.parametrize(("said", "seconds"), [("7", 7.0), ("1.5", 1.5), ("0", 0.0), ("-3", 0.0), ("soon", None), ("nan", None), ("inf", None), ("", None)])
def test_a_pause_in_seconds_is_taken_over(images: FakeImages, said: str, seconds: float | None) -> None:
    images.fail(Fault.limited(said))
    error = failure(images)
    assert isinstance(error, Trouble)
    assert error.retry_after == seconds


@pytest.mark.parametrize("ahead", [90.0, -90.0])
def test_a_pause_until_a_date_is_taken_over(images: FakeImages, ahead: float) -> None:
    date = datetime.now(UTC) + timedelta(seconds=ahead)
    images.fail(Fault.limited(format_datetime(date, usegmt=True)))
    error = failure(images)
    assert isinstance(error, Trouble)
    assert error.retry_after is not None
    assert error.retry_after == 0.0 if ahead < 0 else ahead - 30 < error.retry_after <= ahead


def test_a_server_in_trouble_may_ask_for_a_pause_too(images: FakeImages) -> None:
    images.fail(Fault(503, retry_after="12"))
    error = failure(images)
    assert isinstance(error, Trouble)
    assert error.retry_after == 12.0


# ---------------------------------------------------------------- trouble that will not


@pytest.mark.parametrize(
    ("status", "code", "look"),
    [
        (400, "billing_hard_limit_reached", "account"), (400, "invalid_value", "STUDIO_MODEL"), (402, None, "account"), (403, "unsupported_country", "account"),
        (404, "model_not_found", "STUDIO_MODEL"), (405, None, "STUDIO_API_URL"), (413, None, "account"), (422, None, "STUDIO_MODEL"),
    ],
)  # fmt: skip
def test_any_other_refusal_is_hopeless_and_says_where_to_look(images: FakeImages, status: int, code: str | None, look: str) -> None:
    images.fail(Fault(status, code))
    error = failure(images)
    assert isinstance(error, Hopeless)
    assert str(status) in str(error)
    assert look in str(error)


def test_a_wrong_key_is_hopeless_and_says_which_setting_it_is(images: FakeImages) -> None:
    error = failure(images, key="sk-of-somebody-else")
    assert isinstance(error, Hopeless)
    assert "STUDIO_API_KEY" in str(error)
    assert images.asked == []


@pytest.mark.parametrize("status", [301, 307])
def test_an_api_that_sends_elsewhere_gets_no_second_request(images: FakeImages, status: int) -> None:
    """The API key goes to the address of the settings alone."""
    images.fail(Fault.redirected(f"{images.url}/images/generations", status))
    error = failure(images)
    assert isinstance(error, Hopeless)
    assert "STUDIO_API_URL" in str(error)
    assert len(images.headers) == 1


@pytest.mark.parametrize("location", ["data:image/png;base64,AAAA", "https://[::1"])
def test_an_api_that_sends_to_no_address_is_trouble(images: FakeImages, location: str) -> None:
    images.fail(Fault.redirected(location))
    assert isinstance(failure(images), Trouble)


def test_an_answer_beyond_any_image_is_not_read_to_its_end(images: FakeImages) -> None:
    images.fail(Fault.huge())
    error = failure(images)
    assert isinstance(error, Hopeless)
    assert "32 MiB" in str(error)


def test_an_image_that_is_too_large_is_hopeless(images: FakeImages) -> None:
    images.picture = bytes(LARGEST + 1)
    assert isinstance(failure(images), Hopeless)


# ---------------------------------------------------------------- whatever is answered


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"3", b'"text"', b"{}", b'{"data": null}', b'{"data": {}}', b'{"data": [null]}', b'{"data": [[]]}', b'{"data": [{}]}',
        b'{"data": [{"b64_json": null, "url": null}]}', b'{"data": [{"b64_json": ""}]}', b'{"data": [{"b64_json": 5}]}', b'{"data": [{"url": 5}]}',
        b'{"data": [{"b64_json": "\xc3\xa4"}]}', b"[" * 100_000, b"\xff\xfe", b'{"error": {"message": "no"}}', b'{"data": [{"b64_json": "AAA"}]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [200, 400, 500])
def test_no_body_breaks_the_provider(body: bytes, status: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()

    async def asked() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        provider = Images(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "sk-key", None)
        async with server, provider.open():
            await provider.generate(ORDER, key="job-1")

    with pytest.raises(Hopeless if status == 400 else Trouble):
        asyncio.run(asked())


def test_the_providers_words_are_one_short_line(images: FakeImages) -> None:
    said = {"error": {"message": "first line\n\tsecond\x1b[31m line. " + "very " * 500}}
    sentence = str(replies.judged(httpx.Response(400), json.dumps(said).encode(), "key"))
    assert "first line second[31m line." in sentence
    assert len(sentence) < 400
    assert sentence.isprintable()


# ---------------------------------------------------------------- the key


EVERY = [
    *FILTERS, Fault.held_back(), *BROKEN, Fault.trouble(500), Fault.limited(3), Fault.unauthorized(), Fault(400, "other"), Fault(403), Fault(404),
    Fault.huge(), Fault.hang(),
]  # fmt: skip


@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.code}")
def test_the_api_key_is_in_no_sentence_and_no_log(images: FakeImages, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    images.fail(fault)
    error = failure(images, timeout=1.0 if fault.kind == "hang" else 20.0)
    told = "".join(traceback.format_exception(error)) + caplog.text
    assert images.api_key not in told
    assert base64.b64encode(images.api_key.encode()).decode() not in told


def test_a_provider_that_repeats_the_key_is_not_repeated(images: FakeImages) -> None:
    wrong = "sk-of-somebody-else"
    assert wrong not in str(failure(images, key=wrong))
    for status in (400, 403, 404, 429, 500):
        body = json.dumps({"error": {"message": f"Your key {wrong} is not good for this", "code": "content_filter" if status == 403 else None}}).encode()
        sentence = str(replies.judged(httpx.Response(status, request=httpx.Request("POST", images.url)), body, wrong))
        assert "is not good for this" in sentence
        assert wrong not in sentence


def test_a_key_that_the_provider_covers_in_part_is_not_repeated_either() -> None:
    body = json.dumps({"error": {"message": "Incorrect API key provided: sk-of-som****else.", "code": "invalid_api_key"}}).encode()
    assert "sk-" not in str(replies.judged(httpx.Response(401), body, "sk-of-somebody-else"))


def test_a_key_that_no_header_takes_is_in_no_sentence(images: FakeImages) -> None:
    error = failure(images, key="sk-first\nsk-second")
    assert "sk-" not in "".join(traceback.format_exception(error))
