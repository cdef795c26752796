"""Downloads images from a provider's links, and protects the local network from such links (SSRF)."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from apps.common.retry_after import parse_retry_after
from apps.common.settings import is_private_host

from ..errors import PermanentError, TemporaryError
from .image_file import MAX_BYTES, inspect_image

MAX_REDIRECTS = 5
GONE = frozenset({403, 404, 410})
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""NAT64: IPv6 addresses that contain an IPv4 address in their last four bytes."""
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""The global IPv6 addresses. Local addresses and old notations of IPv4 addresses are outside this range."""
SIX_TO_FOUR = ipaddress.ip_network("2002::/16")
"""6to4: global IPv6 addresses that lead to an IPv4 address. No provider uses them."""
INVALID_LINK = "The image link, or a redirect of it, is not a valid address. Redrive the job to make a new image."
NOT_REQUESTED = (
    "It was not requested. Check STUDIO_API_URL: only a provider in the local network may give links into it."
)

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a host name to IP addresses."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public(address: str) -> bool:
    """Whether an IP address is on the public internet, and not in a local network or on this machine."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (ipaddress.IPv4Address(ip.packed[-4:]) if ip in NAT64 else None)
        if inner is None:
            return ip.is_global and ip in GLOBAL_UNICAST and ip not in SIX_TO_FOUR
        ip = inner
    return ip.is_global and not ip.is_multicast


class LinkFetcher:
    """Downloads images. A public provider's links must not lead into the local network.

    The links of a provider in the local network may. Links may use http only if the provider itself does.
    """

    def __init__(self, base_url: str, http: httpx.AsyncClient, *, resolve: Resolve = resolve_host) -> None:
        base = urlsplit(base_url)
        self._schemes = {"https", base.scheme}
        self._near = is_private_host(base.hostname or "")
        self._http, self._resolve = http, resolve

    async def fetch(self, url: str) -> bytes:
        """Download an image, following redirects.

        Raises `PermanentError` for an expired or forbidden link and `TemporaryError` for invalid data. Network errors
        are not translated.
        """
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(url)
            try:
                if not response.has_redirect_location:
                    return await self._image(response)
                url = self._redirect_target(url, response)
            finally:
                await response.aclose()
        raise PermanentError(f"The image link redirects more than {MAX_REDIRECTS} times. Redrive the job.")

    async def _send(self, url: str) -> httpx.Response:
        """Request the link from the first reachable address of its host."""
        *some, last = await self._requests(url)
        try:
            for request in some:
                with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                    return await self._http.send(request, stream=True)
            return await self._http.send(last, stream=True)
        except httpx.InvalidURL:
            # httpx parses the Location header even though it does not follow redirects.
            raise PermanentError(INVALID_LINK) from None

    async def _requests(self, url: str) -> list[httpx.Request]:
        """Build one request for each allowed address of the host; at least one."""
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            raise PermanentError(INVALID_LINK) from None
        if parts.scheme not in self._schemes or not parts.host:
            raise PermanentError(
                f"The image link uses {parts.scheme or 'no'}:// instead of {' or '.join(sorted(self._schemes))}. "
                f"{NOT_REQUESTED}"
            )
        # No compression: a compressed response could expand to any size.
        headers = {"Accept": "image/*", "Accept-Encoding": "identity"}
        if self._near:
            return [self._http.build_request("GET", parts, headers=headers)]
        # Connect to the checked addresses: a second lookup of the name could return others.
        headers["Host"], name = parts.netloc.decode("ascii"), {"sni_hostname": parts.raw_host.decode("ascii")}
        addresses = await self._addresses(parts)
        return [
            self._http.build_request("GET", parts.copy_with(host=address), headers=headers, extensions=name)
            for address in addresses
        ]

    async def _addresses(self, parts: httpx.URL) -> list[str]:
        """The addresses of the link's host. Raises `PermanentError` unless all of them are public."""
        host = parts.raw_host.decode("ascii")
        try:
            addresses = [str(ipaddress.ip_address(host.strip("[]")))]
        except ValueError:
            try:
                addresses = [*dict.fromkeys(await self._resolve(host, parts.port or 443))]
            except OSError:
                raise TemporaryError(
                    f"Cannot resolve {host}, the host of the image link. A retry may succeed."
                ) from None
        if not addresses or not all(is_public(address.partition("%")[0]) for address in addresses):
            raise PermanentError(
                f"The image link leads to {host}, which is not on the public internet. {NOT_REQUESTED}"
            )
        return addresses

    def _redirect_target(self, url: str, response: httpx.Response) -> str:
        try:
            return str(httpx.URL(url).join(response.headers["Location"]))
        except httpx.InvalidURL:
            raise PermanentError(INVALID_LINK) from None

    async def _image(self, response: httpx.Response) -> bytes:
        status = response.status_code
        if status in GONE:
            raise PermanentError(f"The image link has expired (status {status}). Redrive the job to make a new image.")
        if status != 200:
            raise TemporaryError(
                f"The image could not be downloaded (status {status}). A retry may succeed.",
                parse_retry_after(response.headers),
            )
        data = await read_limited(response.aiter_bytes(), MAX_BYTES)
        await asyncio.to_thread(inspect_image, data, response.headers.get("Content-Type", ""))
        return data


async def read_limited(pieces: AsyncIterator[bytes], most: int) -> bytes:
    """Read a stream of at most this many bytes. It stops reading at the limit."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > most:
            raise PermanentError(
                f"The image has more than {MAX_BYTES >> 20} MiB, the studio's limit. Choose another STUDIO_MODEL."
            )
    return bytes(data)
