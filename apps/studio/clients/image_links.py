"""Links: images that a provider keeps at an address for a while."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from apps.common.pauses import retry_after
from apps.common.settings import is_near

from ..errors import Hopeless, Trouble
from ..picture import LARGEST, examined

MOST_REDIRECTS = 5
GONE = frozenset({403, 404, 410})
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last four bytes: all that a network without IPv4 knows of such a host."""
UNICAST = ipaddress.ip_network("2000::/3")
"""All that the internet has of IPv6. Outside are what is local, and every old way to write an IPv4 address."""
TUNNELS = ipaddress.ip_network("2002::/16")
"""Within it, addresses that lead to an IPv4 address all the same. Nobody keeps images there."""
NO_ADDRESS = "The link to the image, or where it leads on to, is no address. Drive the job again, which makes a new image."
NOT_ASKED = "It was not asked for. Check STUDIO_API_URL: a provider of one's own network gives links into it, any other must not."

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolved(host: str, port: int) -> list[str]:
    """The addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public(address: str) -> bool:
    """Whether it is a host of the internet: nobody's own network, nor this machine."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (ipaddress.IPv4Address(ip.packed[-4:]) if ip in TRANSLATED else None)
        if inner is None:
            return ip.is_global and ip in UNICAST and ip not in TUNNELS
        ip = inner
    return ip.is_global and not ip.is_multicast


class Links:
    """Fetches what a provider's links lead to, and lets no link lead into the network of whoever runs the studio.

    Where the provider itself is a host of one's own, so may its links be; they are without TLS only where the provider is.
    """

    def __init__(self, base_url: str, http: httpx.AsyncClient, *, resolve: Resolve = resolved) -> None:
        base = urlsplit(base_url)
        self._schemes = {"https", base.scheme}
        self._near = is_near(base.hostname or "")
        self._http, self._resolve = http, resolve

    async def fetch(self, url: str) -> bytes:
        """The image at this address. `Hopeless` when it has gone or may not be asked for, `Trouble` when it is none; errors of the network pass through."""
        for _ in range(MOST_REDIRECTS + 1):
            response = await self._asked(url)
            try:
                if not response.has_redirect_location:
                    return await self._image(response)
                url = self._target(url, response)
            finally:
                await response.aclose()
        raise Hopeless(f"The link leads on and on: after {MOST_REDIRECTS} redirects there is no image. Drive the job again.")

    async def _asked(self, url: str) -> httpx.Response:
        """The answer of the first address of the link's host that can be reached."""
        *some, last = await self._requests(url)
        try:
            for request in some:
                with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                    return await self._http.send(request, stream=True)
            return await self._http.send(last, stream=True)
        except httpx.InvalidURL:
            # Of a redirect, which is not followed here but is read nevertheless.
            raise Hopeless(NO_ADDRESS) from None

    async def _requests(self, url: str) -> list[httpx.Request]:
        """One for each address that may be asked; at least one."""
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            raise Hopeless(NO_ADDRESS) from None
        if parts.scheme not in self._schemes or not parts.host:
            raise Hopeless(f"The link leads to {parts.scheme or 'no'}://, where images are fetched by {' or '.join(sorted(self._schemes))}. {NOT_ASKED}")
        # As it is, since a packed answer could unpack to any size.
        headers = {"Accept": "image/*", "Accept-Encoding": "identity"}
        if self._near:
            return [self._http.build_request("GET", parts, headers=headers)]
        # To the very addresses that were judged: a name may mean others a moment later.
        headers["Host"], name = parts.netloc.decode("ascii"), {"sni_hostname": parts.raw_host.decode("ascii")}
        addresses = await self._addresses(parts)
        return [self._http.build_request("GET", parts.copy_with(host=address), headers=headers, extensions=name) for address in addresses]

    async def _addresses(self, parts: httpx.URL) -> list[str]:
        """The addresses of the link's host, if all of them are public."""
        host = parts.raw_host.decode("ascii")
        try:
            addresses = [str(ipaddress.ip_address(host.strip("[]")))]
        except ValueError:
            try:
                addresses = [*dict.fromkeys(await self._resolve(host, parts.port or 443))]
            except OSError:
                raise Trouble(f"The name {host} of the image's link is not known now. Trying again may help.") from None
        if not addresses or not all(is_public(address.partition("%")[0]) for address in addresses):
            raise Hopeless(f"The link leads to {host}, which is no host of the internet. {NOT_ASKED}")
        return addresses

    def _target(self, url: str, response: httpx.Response) -> str:
        try:
            return str(httpx.URL(url).join(response.headers["Location"]))
        except httpx.InvalidURL:
            raise Hopeless(NO_ADDRESS) from None

    async def _image(self, response: httpx.Response) -> bytes:
        status = response.status_code
        if status in GONE:
            raise Hopeless(f"The link to the image has gone (status {status}): links end after a while. Drive the job again, which makes a new image.")
        if status != 200:
            raise Trouble(f"The image cannot be fetched now (status {status}). Trying again may help.", retry_after(response.headers))
        data = await limited(response.aiter_bytes(), LARGEST)
        await asyncio.to_thread(examined, data, response.headers.get("Content-Type", ""))
        return data


async def limited(pieces: AsyncIterator[bytes], most: int) -> bytes:
    """All of it, if it is no more than so many bytes; the rest is not even read."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > most:
            raise Hopeless(f"The image has more than {LARGEST >> 20} MiB, which the studio does not keep. Choose another STUDIO_MODEL.")
    return bytes(data)
