"""The client of OpenAI's Images API and of compatible servers."""

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

from apps.common.tls import tls_context

from ..errors import PermanentError, SafetyBlocked, TemporaryError
from ..order import Order
from .image_file import MAX_BYTES
from .image_links import LinkFetcher, read_limited
from .openai_errors import as_object, classify_error, parse_json
from .provider import Link, Provider

MAX_REPLY = MAX_BYTES * 4 // 3 + 2**20
"""The largest response in bytes: the largest image as base64, and some text."""


@dataclass(frozen=True)
class _Connections:
    api: httpx.AsyncClient
    links: LinkFetcher


class OpenAIImages(Provider):
    """Requests one image at a time. Connections belong to the event loop that opened them; only the API gets the key.

    Each request has an Idempotency-Key. A provider that ignores it, such as OpenAI, charges for each request.
    """

    def __init__(self, base_url: str, api_key: str, model: str | None, *, timeout: float = 120.0) -> None:
        self._base_url, self._api_key, self._model, self._timeout = base_url.rstrip("/"), api_key, model, timeout
        self._connections_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the HTTP clients for the duration of the block. It sends no request."""
        loop, bearer = asyncio.get_running_loop(), {"Authorization": f"Bearer {self._api_key}"}
        # Links are downloaded without a proxy, because a proxy would resolve the host itself.
        async with (
            httpx.AsyncClient(timeout=self._timeout, verify=tls_context(), headers=bearer) as api,
            httpx.AsyncClient(timeout=self._timeout, verify=tls_context(), trust_env=False) as plain,
        ):
            self._connections_by_loop[loop] = _Connections(api, LinkFetcher(self._base_url, plain))
            try:
                yield
            finally:
                del self._connections_by_loop[loop]

    @override
    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        """Generate an image; return it or a link to it."""
        request_body: dict[str, object] = {"prompt": order.prompt, "n": 1, "size": order.params.size}
        if self._model is not None:
            request_body["model"] = self._model
        api = self._connections.api
        request = api.build_request(
            "POST", f"{self._base_url}/images/generations", json=request_body, headers={"Idempotency-Key": key}
        )
        with self._network_errors(
            f"The provider at {httpx.URL(self._base_url).netloc.decode()}", "Check STUDIO_API_URL"
        ):
            async with asyncio.timeout(self._timeout):
                response = await api.send(request, stream=True)
                try:
                    body = await read_limited(response.aiter_bytes(), MAX_REPLY)
                finally:
                    await response.aclose()
        if response.status_code != 200:
            raise classify_error(response, body, self._api_key)
        return _image(body)

    @override
    async def fetch(self, link: Link) -> bytes:
        """Download the image of a link. The API key is not sent."""
        with self._network_errors("The host of the image link", "A retry may succeed"):
            async with asyncio.timeout(self._timeout):
                return await self._connections.links.fetch(link.url)

    @contextmanager
    def _network_errors(self, whom: str, what_to_do: str) -> Generator[None]:
        # The messages of httpx are not repeated: they may contain a header or an address with a secret.
        try:
            yield
        except (TimeoutError, httpx.TimeoutException):
            raise TemporaryError(f"{whom} did not respond within {self._timeout:g} seconds. {what_to_do}.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TemporaryError(
                f"{whom} is unreachable or closed the connection ({type(error).__name__}). {what_to_do}."
            ) from None

    @property
    def _connections(self) -> _Connections:
        try:
            return self._connections_by_loop[asyncio.get_running_loop()]
        except KeyError:
            raise RuntimeError(
                "The provider is not open in this event loop. Enter `OpenAIImages.open()` first."
            ) from None


def _image(body: bytes) -> bytes | Link:
    """Read a response of the form {"data": [{"b64_json" or "url": …}]}.

    Some providers report here that their safety filter held the image back.
    """
    data = as_object(parse_json(body)).get("data")
    first = as_object(next(iter(cast("list[object]", data)), None)) if isinstance(data, list) else {}
    if first.get("respect_moderation") is False:
        raise SafetyBlocked("The provider's safety filter rejected the generated image.")
    encoded, url = first.get("b64_json"), first.get("url")
    if isinstance(encoded, str) and encoded:
        try:
            image = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise TemporaryError("The provider's image is not valid base64. A retry may succeed.") from None
        if len(image) > MAX_BYTES:
            raise PermanentError(
                f"The image has more than {MAX_BYTES >> 20} MiB, the studio's limit. Choose another STUDIO_MODEL."
            )
        return image
    if isinstance(url, str) and url:
        return Link(url)
    raise TemporaryError("The provider's response contains no image. A retry may succeed.")
