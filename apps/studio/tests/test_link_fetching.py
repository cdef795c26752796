"""Images that are fetched from a provider's links, over real HTTP: every way in which it fails, and that no key goes along."""

import asyncio
import traceback

import pytest

from apps.studio.errors import Hopeless, StudioError, Trouble
from apps.studio.picture import BadPicture
from apps.studio.providers import Link
from apps.studio.providers.openai import Images
from apps.studio.tests.images_api import FakeImages, Fault, png

SHORT = 0.3
"""Seconds of patience, where the fake never answers."""


def fetched(fake: FakeImages, url: str, *, timeout: float = 20.0) -> bytes:
    async def asked() -> bytes:
        images = Images(fake.url, fake.api_key, None, timeout=timeout)
        async with images.open():
            return await images.fetch(Link(url))

    return asyncio.run(asked())


def test_a_link_is_fetched(images: FakeImages) -> None:
    assert fetched(images, images.put(png("1536x1024"))) == png("1536x1024")
    assert images.fetched == [*images.files]


def test_the_host_of_a_link_never_gets_the_key(images: FakeImages) -> None:
    url = images.put(png("1024x1024"))
    images.fail_links(Fault.redirected(url), Fault.redirected(url))
    fetched(images, url)
    assert len(images.headers) == 3
    for headers in images.headers:
        assert "authorization" not in headers
        assert "idempotency-key" not in headers
        assert images.api_key not in str(headers)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_link_that_has_gone_is_hopeless_and_says_what_to_do(images: FakeImages, status: int) -> None:
    images.fail_links(Fault.gone(status))
    with pytest.raises(Hopeless, match=r"has gone .* Drive the job again"):
        fetched(images, images.put(png("1024x1024")))


LINK_TROUBLE = [Fault.trouble(500), Fault.trouble(503), Fault.trouble(400), Fault.trouble(206), Fault.cut(), Fault.torn(), Fault.hang()]


@pytest.mark.parametrize("fault", LINK_TROUBLE, ids=lambda fault: f"{fault.kind}-{fault.status}")
def test_a_link_that_cannot_be_fetched_now_is_trouble(images: FakeImages, fault: Fault) -> None:
    url = images.put(png("1024x1024"))
    images.fail_links(fault)
    with pytest.raises(Trouble, match=f"status {fault.status}" if fault.kind == "status" else None):
        fetched(images, url, timeout=SHORT if fault.kind == "hang" else 20.0)
    assert fetched(images, url) == png("1024x1024")


def test_a_links_host_may_ask_for_a_pause(images: FakeImages) -> None:
    images.fail_links(Fault.limited(9))
    with pytest.raises(Trouble) as caught:
        fetched(images, images.put(png("1024x1024")))
    assert caught.value.retry_after == 9.0


@pytest.mark.parametrize("fault", [Fault.garbage(), Fault.wrong_type()], ids=lambda fault: fault.kind)
def test_a_link_to_no_image_is_refused(images: FakeImages, fault: Fault) -> None:
    images.fail_links(fault)
    with pytest.raises(BadPicture):
        fetched(images, images.put(png("1024x1024")))


def test_an_image_that_says_it_is_something_else_is_refused(images: FakeImages) -> None:
    """The declared type and the bytes must agree: a JPEG's name on a PNG is one that was tampered with, or the wrong file."""
    url = images.put(b"\xff\xd8" + png("1024x1024")[2:])
    with pytest.raises(BadPicture):
        fetched(images, url)


def test_a_file_beyond_any_image_is_not_read_to_its_end(images: FakeImages) -> None:
    images.fail_links(Fault.huge())
    with pytest.raises(Hopeless, match="32 MiB"):
        fetched(images, images.put(png("1024x1024")))


def test_a_links_own_secret_is_in_no_sentence(images: FakeImages) -> None:
    url = images.put(png("1024x1024"))
    secret = url.partition("sig=")[2]
    for fault in (Fault.gone(), Fault.trouble(500), Fault.cut(), Fault.wrong_type(), Fault.redirected("ftp://127.0.0.1/x?sig=" + secret)):
        images.fail_links(fault)
        with pytest.raises(StudioError) as caught:
            fetched(images, url)
        assert secret not in "".join(traceback.format_exception(caught.value))
