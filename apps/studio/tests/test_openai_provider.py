"""The OpenAI client over real HTTP: its requests, and how it classifies each response."""

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

from apps.studio.clients import openai_errors
from apps.studio.clients.image_file import MAX_BYTES
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.provider import Link
from apps.studio.errors import PermanentError, TemporaryError
from apps.studio.tests.fake_images_api import FakeImages, Fault, png
from apps.studio.tests.image_requests import FILTERS, ORDER, drawn, failure

SHORT = 0.3
"""Seconds of time limit, where the fake never answers."""


# ---------------------------------------------------------------- requests and responses


def test_image_in_the_response_is_returned(images: FakeImages) -> None:
    assert drawn(images) == png("1536x1024")


def test_link_in_the_response_is_returned_without_a_download(images: FakeImages) -> None:
    images.answers = "url"
    link = drawn(images)
    assert isinstance(link, Link)
    assert httpx.get(link.url).content == png("1536x1024")
    assert len(images.fetched) == 1


def test_request_contains_only_supported_fields(images: FakeImages) -> None:
    """It has no seed and no format. The API refuses unknown fields, and so does the fake."""
    drawn(images)
    [asked], [headers] = images.asked, images.headers
    assert (asked.prompt, asked.size, asked.model, asked.key) == (ORDER.prompt, "1536x1024", "gpt-image-1", "job-1")
    assert headers["authorization"] == f"Bearer {images.api_key}"
    assert headers["content-type"] == "application/json"


def test_request_without_a_model_uses_the_default(images: FakeImages) -> None:
    drawn(images, model=None)
    assert images.asked[0].model is None


def test_trailing_slash_of_the_address_is_ignored(images: FakeImages) -> None:
    async def asked() -> bytes | Link:
        provider = OpenAIImages(images.url + "/", images.api_key, None)
        async with provider.open():
            return await provider.generate(ORDER, key="job-1")

    assert asyncio.run(asked()) == png("1536x1024")


def test_each_event_loop_has_its_own_connections(images: FakeImages) -> None:
    provider = OpenAIImages(images.url, images.api_key, None)

    async def asked() -> bytes | Link:
        async with provider.open():
            return await provider.generate(ORDER, key="job-1")

    assert [asyncio.run(asked()) for _ in range(2)] == [png("1536x1024")] * 2


def test_closed_provider_raises_an_error(images: FakeImages) -> None:
    provider = OpenAIImages(images.url, images.api_key, None)
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(provider.generate(ORDER, key="job-1"))


# ---------------------------------------------------------------- temporary errors


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_retryable_status_is_a_temporary_error(images: FakeImages, status: int) -> None:
    images.fail(Fault.trouble(status))
    error = failure(images)
    assert isinstance(error, TemporaryError)
    assert error.retry_after is None
    assert str(status) in str(error)


BROKEN = [Fault.cut(), Fault.torn(), Fault.garbage(), Fault.no_image(), Fault.no_base64()]


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.kind)
def test_invalid_response_is_a_temporary_error(images: FakeImages, fault: Fault) -> None:
    images.fail(fault)
    assert isinstance(failure(images), TemporaryError)
    assert drawn(images) == png("1536x1024")


def test_timeout_is_a_temporary_error(images: FakeImages) -> None:
    images.fail(Fault.hang())
    error = failure(images, timeout=SHORT)
    assert isinstance(error, TemporaryError)
    assert "0.3 seconds" in str(error)


def test_slow_response_is_limited_as_a_whole() -> None:
    """Each chunk arrives in time, but not the whole response."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n")
        with suppress(ConnectionError), closing(writer):
            for _ in range(200):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def asked() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        provider = OpenAIImages(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "sk-key", None, timeout=1.0
        )
        async with server, provider.open():
            await provider.generate(ORDER, key="job-1")

    with pytest.raises(TemporaryError, match="did not respond within"):
        asyncio.run(asked())


def test_unreachable_provider_is_a_temporary_error(images: FakeImages) -> None:
    images.down()
    assert isinstance(failure(images), TemporaryError)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("0", 0.0), ("-3", 0.0), ("soon", None), ("nan", None), ("inf", None), ("", None)],
)
def test_retry_after_in_seconds_is_used(images: FakeImages, said: str, seconds: float | None) -> None:
    images.fail(Fault.limited(said))
    error = failure(images)
    assert isinstance(error, TemporaryError)
    assert error.retry_after == seconds


@pytest.mark.parametrize("ahead", [90.0, -90.0])
def test_retry_after_as_a_date_is_used(images: FakeImages, ahead: float) -> None:
    date = datetime.now(UTC) + timedelta(seconds=ahead)
    images.fail(Fault.limited(format_datetime(date, usegmt=True)))
    error = failure(images)
    assert isinstance(error, TemporaryError)
    assert error.retry_after is not None
    assert error.retry_after == 0.0 if ahead < 0 else ahead - 30 < error.retry_after <= ahead


def test_retry_after_of_a_server_error_is_used(images: FakeImages) -> None:
    images.fail(Fault(503, retry_after="12"))
    error = failure(images)
    assert isinstance(error, TemporaryError)
    assert error.retry_after == 12.0


# ---------------------------------------------------------------- permanent errors


@pytest.mark.parametrize(
    ("status", "code", "look"),
    [
        (400, "billing_hard_limit_reached", "account"), (400, "invalid_value", "STUDIO_MODEL"), (402, None,
        "account"), (403, "unsupported_country", "account"),
        (404, "model_not_found", "STUDIO_MODEL"), (405, None, "STUDIO_API_URL"), (413, None, "account"), (422, None,
        "STUDIO_MODEL"),
    ],
)  # fmt: skip
def test_other_refusals_are_permanent_and_name_a_setting(
    images: FakeImages, status: int, code: str | None, look: str
) -> None:
    images.fail(Fault(status, code))
    error = failure(images)
    assert isinstance(error, PermanentError)
    assert str(status) in str(error)
    assert look in str(error)


def test_wrong_key_is_permanent_and_names_the_setting(images: FakeImages) -> None:
    error = failure(images, key="sk-of-somebody-else")
    assert isinstance(error, PermanentError)
    assert "STUDIO_API_KEY" in str(error)
    assert images.asked == []


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_of_the_api_are_not_followed(images: FakeImages, status: int) -> None:
    """The API key is only sent to the configured address."""
    images.fail(Fault.redirected(f"{images.url}/images/generations", status))
    error = failure(images)
    assert isinstance(error, PermanentError)
    assert "STUDIO_API_URL" in str(error)
    assert len(images.headers) == 1


@pytest.mark.parametrize("location", ["data:image/png;base64,AAAA", "https://[::1"])
def test_invalid_redirect_of_the_api_is_a_temporary_error(images: FakeImages, location: str) -> None:
    images.fail(Fault.redirected(location))
    assert isinstance(failure(images), TemporaryError)


def test_oversized_response_is_not_read_to_its_end(images: FakeImages) -> None:
    images.fail(Fault.huge())
    error = failure(images)
    assert isinstance(error, PermanentError)
    assert "32 MiB" in str(error)


def test_oversized_image_is_a_permanent_error(images: FakeImages) -> None:
    images.picture = bytes(MAX_BYTES + 1)
    assert isinstance(failure(images), PermanentError)


# ---------------------------------------------------------------- error bodies


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"3", b'"text"', b"{}", b'{"data": null}', b'{"data": {}}', b'{"data": [null]}',
        b'{"data": [[]]}', b'{"data": [{}]}',
        b'{"data": [{"b64_json": null, "url": null}]}', b'{"data": [{"b64_json": ""}]}',
        b'{"data": [{"b64_json": 5}]}', b'{"data": [{"url": 5}]}',
        b'{"data": [{"b64_json": "\xc3\xa4"}]}', b"[" * 100_000, b"\xff\xfe", b'{"error": {"message": "no"}}',
        b'{"data": [{"b64_json": "AAA"}]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [200, 400, 500])
def test_any_error_body_is_classified(body: bytes, status: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()

    async def asked() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        provider = OpenAIImages(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "sk-key", None)
        async with server, provider.open():
            await provider.generate(ORDER, key="job-1")

    with pytest.raises(PermanentError if status == 400 else TemporaryError):
        asyncio.run(asked())


def test_provider_message_is_one_short_line(images: FakeImages) -> None:
    said = {"error": {"message": "first line\n\tsecond\x1b[31m line. " + "very " * 500}}
    sentence = str(openai_errors.classify_error(httpx.Response(400), json.dumps(said).encode(), "key"))
    assert "first line second[31m line." in sentence
    assert len(sentence) < 400
    assert sentence.isprintable()


# ---------------------------------------------------------------- the API key


EVERY = [
    *FILTERS, Fault.held_back(), *BROKEN, Fault.trouble(500), Fault.limited(3), Fault.unauthorized(), Fault(400,
    "other"), Fault(403), Fault(404),
    Fault.huge(), Fault.hang(),
]  # fmt: skip


@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.code}")
def test_errors_and_logs_do_not_contain_the_api_key(
    images: FakeImages, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    images.fail(fault)
    error = failure(images, timeout=1.0 if fault.kind == "hang" else 20.0)
    told = "".join(traceback.format_exception(error)) + caplog.text
    assert images.api_key not in told
    assert base64.b64encode(images.api_key.encode()).decode() not in told


def test_repeated_key_is_removed_from_the_message(images: FakeImages) -> None:
    wrong = "sk-of-somebody-else"
    assert wrong not in str(failure(images, key=wrong))
    for status in (400, 403, 404, 429, 500):
        body = json.dumps(
            {
                "error": {
                    "message": f"Your key {wrong} is not good for this",
                    "code": "content_filter" if status == 403 else None,
                }
            }
        ).encode()
        sentence = str(
            openai_errors.classify_error(httpx.Response(status, request=httpx.Request("POST", images.url)), body, wrong)
        )
        assert "is not good for this" in sentence
        assert wrong not in sentence


def test_partly_masked_key_is_not_repeated() -> None:
    body = json.dumps(
        {"error": {"message": "Incorrect API key provided: sk-of-som****else.", "code": "invalid_api_key"}}
    ).encode()
    assert "sk-" not in str(openai_errors.classify_error(httpx.Response(401), body, "sk-of-somebody-else"))


def test_key_that_is_invalid_in_a_header_is_not_repeated(images: FakeImages) -> None:
    error = failure(images, key="sk-first\nsk-second")
    assert "sk-" not in "".join(traceback.format_exception(error))
