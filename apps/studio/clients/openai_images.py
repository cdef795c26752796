"""The Images API of OpenAI, and of whoever speaks its protocol."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import httpx
from typing_extensions import override

from apps.common.tls import trusted

from ..errors import Blocked, Hopeless, Trouble
from ..order import Order
from ..picture import LARGEST
from . import Link, Provider
from .links import Links, limited
from .replies import judged, mapping, parsed

LARGEST_REPLY = LARGEST * 4 // 3 + 2**20
"""Bytes: the largest image as base64, and some words."""


@dataclass(frozen=True)
class _Opened:
    api: httpx.AsyncClient
    links: Links


class Images(Provider):
    """Asks for one image at a time. Its connections belong to the event loop that opened them; the API key is sent to the API and to nobody else.

    An Idempotency-Key goes with each request. A provider that does not know it, as OpenAI, draws and charges again when it is asked again.
    """

    def __init__(self, base_url: str, api_key: str, model: str | None, *, timeout: float = 120.0) -> None:
        self._base_url, self._api_key, self._model, self._timeout = base_url.rstrip("/"), api_key, model, timeout
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Reach for the provider while the block runs; nothing is asked of it yet."""
        loop, bearer = asyncio.get_running_loop(), {"Authorization": f"Bearer {self._api_key}"}
        # Links are fetched without a proxy: only so is it known which address is asked.
        async with (
            httpx.AsyncClient(timeout=self._timeout, verify=trusted(), headers=bearer) as api,
            httpx.AsyncClient(timeout=self._timeout, verify=trusted(), trust_env=False) as plain,
        ):
            self._opened[loop] = _Opened(api, Links(self._base_url, plain))
            try:
                yield
            finally:
                del self._opened[loop]

    @override
    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        """The image, or where it is."""
        wish: dict[str, object] = {"prompt": order.prompt, "n": 1, "size": order.params.size}
        if self._model is not None:
            wish["model"] = self._model
        api = self._here.api
        request = api.build_request("POST", f"{self._base_url}/images/generations", json=wish, headers={"Idempotency-Key": key})
        with self._reached(f"The provider at {httpx.URL(self._base_url).netloc.decode()}", "see STUDIO_API_URL"):
            async with asyncio.timeout(self._timeout):
                response = await api.send(request, stream=True)
                try:
                    body = await limited(response.aiter_bytes(), LARGEST_REPLY)
                finally:
                    await response.aclose()
        if response.status_code != 200:
            raise judged(response, body, self._api_key)
        return _image(body)

    @override
    async def fetch(self, link: Link) -> bytes:
        """What is there, if it is an image. The API key is not sent along."""
        with self._reached("The host of the image's link", "trying again may help"):
            async with asyncio.timeout(self._timeout):
                return await self._here.links.fetch(link.url)

    @contextmanager
    def _reached(self, whom: str, what_to_do: str) -> Generator[None]:
        # Not the errors' own words: they may repeat a header or an address, and with it a secret.
        try:
            yield
        except (TimeoutError, httpx.TimeoutException):
            raise Trouble(f"{whom} did not answer within {self._timeout:g} seconds: {what_to_do}.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Trouble(f"{whom} could not be reached, or broke off ({type(error).__name__}): {what_to_do}.") from None

    @property
    def _here(self) -> _Opened:
        try:
            return self._opened[asyncio.get_running_loop()]
        except KeyError:
            raise RuntimeError("The provider is not open in this event loop: enter `Images.open()` first.") from None


def _image(body: bytes) -> bytes | Link:
    """What a reply of the form {"data": [{"b64_json" or "url": …}]} says. Some say there, too, that their filter did not let the picture pass."""
    data = mapping(parsed(body)).get("data")
    first = mapping(next(iter(cast("list[object]", data)), None)) if isinstance(data, list) else {}
    if first.get("respect_moderation") is False:
        raise Blocked("The provider's safety filter refuses the picture that was made of this prompt.")
    encoded, url = first.get("b64_json"), first.get("url")
    if isinstance(encoded, str) and encoded:
        try:
            image = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise Trouble("The provider answers with an image that is no base64. Trying again may help.") from None
        if len(image) > LARGEST:
            raise Hopeless(f"The image has more than {LARGEST >> 20} MiB, which the studio does not keep. Choose another STUDIO_MODEL.")
        return image
    if isinstance(url, str) and url:
        return Link(url)
    raise Trouble("The provider answers without an image. Trying again may help.")
