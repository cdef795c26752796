"""Downloads from a provider's links over real HTTP: all failures, and no API key in any request."""

import asyncio
import traceback

import pytest

from apps.studio.clients.image_file import InvalidImage
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.provider import Link
from apps.studio.errors import PermanentError, StudioError, TemporaryError
from apps.studio.tests.fake_images_api import FakeImages, Fault, png

SHORT = 0.3
"""Seconds of time limit, where the fake never answers."""


def fetched(fake: FakeImages, url: str, *, timeout: float = 20.0) -> bytes:
    async def asked() -> bytes:
        images = OpenAIImages(fake.url, fake.api_key, None, timeout=timeout)
        async with images.open():
            return await images.fetch(Link(url))

    return asyncio.run(asked())


def test_link_is_downloaded(images: FakeImages) -> None:
    assert fetched(images, images.put(png("1536x1024"))) == png("1536x1024")
    assert images.fetched == [*images.files]


def test_host_of_a_link_never_gets_the_api_key(images: FakeImages) -> None:
    url = images.put(png("1024x1024"))
    images.fail_links(Fault.redirected(url), Fault.redirected(url))
    fetched(images, url)
    assert len(images.headers) == 3
    for headers in images.headers:
        assert "authorization" not in headers
        assert "idempotency-key" not in headers
        assert images.api_key not in str(headers)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_expired_link_is_a_permanent_error(images: FakeImages, status: int) -> None:
    images.fail_links(Fault.gone(status))
    with pytest.raises(PermanentError, match=r"has expired .* Redrive the job"):
        fetched(images, images.put(png("1024x1024")))


LINK_TROUBLE = [
    Fault.trouble(500),
    Fault.trouble(503),
    Fault.trouble(400),
    Fault.trouble(206),
    Fault.cut(),
    Fault.torn(),
    Fault.hang(),
]


@pytest.mark.parametrize("fault", LINK_TROUBLE, ids=lambda fault: f"{fault.kind}-{fault.status}")
def test_failed_download_is_a_temporary_error(images: FakeImages, fault: Fault) -> None:
    url = images.put(png("1024x1024"))
    images.fail_links(fault)
    with pytest.raises(TemporaryError, match=f"status {fault.status}" if fault.kind == "status" else None):
        fetched(images, url, timeout=SHORT if fault.kind == "hang" else 20.0)
    assert fetched(images, url) == png("1024x1024")


def test_retry_after_of_a_link_host_is_used(images: FakeImages) -> None:
    images.fail_links(Fault.limited(9))
    with pytest.raises(TemporaryError) as caught:
        fetched(images, images.put(png("1024x1024")))
    assert caught.value.retry_after == 9.0


@pytest.mark.parametrize("fault", [Fault.garbage(), Fault.wrong_type()], ids=lambda fault: fault.kind)
def test_link_to_other_data_is_refused(images: FakeImages, fault: Fault) -> None:
    images.fail_links(fault)
    with pytest.raises(InvalidImage):
        fetched(images, images.put(png("1024x1024")))


def test_mislabelled_image_is_refused(images: FakeImages) -> None:
    """The declared type and the bytes must agree."""
    url = images.put(b"\xff\xd8" + png("1024x1024")[2:])
    with pytest.raises(InvalidImage):
        fetched(images, url)


def test_oversized_file_is_not_read_to_its_end(images: FakeImages) -> None:
    images.fail_links(Fault.huge())
    with pytest.raises(PermanentError, match="32 MiB"):
        fetched(images, images.put(png("1024x1024")))


def test_error_messages_do_not_contain_the_link(images: FakeImages) -> None:
    url = images.put(png("1024x1024"))
    secret = url.partition("sig=")[2]
    for fault in (
        Fault.gone(),
        Fault.trouble(500),
        Fault.cut(),
        Fault.wrong_type(),
        Fault.redirected("ftp://127.0.0.1/x?sig=" + secret),
    ):
        images.fail_links(fault)
        with pytest.raises(StudioError) as caught:
            fetched(images, url)
        assert secret not in "".join(traceback.format_exception(caught.value))
