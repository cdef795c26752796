"""Webhook messages about ended jobs: signed as Standard Webhooks specifies, and sent to public addresses only."""

import base64
import binascii
import hmac
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, cast
from urllib.parse import urlsplit

from ..core.error_policy import refused, retry_after
from ..core.job import Job
from ..errors import UsageError
from .results import Fail, Retry

TOLERANCE = 300
"""The largest difference, in seconds, between the clocks of sender and receiver."""
MOST = 65_536
"""The most bytes of a response that are read, with its headers."""

_SHORTEST = 24  # bytes of a secret, as Standard Webhooks requires
_UNICAST = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Webhook:
    """The URL and secret of one webhook. `UsageError` if either can never work."""

    url: str
    secret: str = field(repr=False)
    allow_private: bool = False
    """Whether to send to addresses that are not public, such as those of your own network."""

    def __post_init__(self) -> None:
        host = _target(self.url).host
        if len(_key(self.secret)) < _SHORTEST:
            raise UsageError(
                f"The secret of a webhook is too short: give at least {_SHORTEST} random bytes, as 'whsec_' and their "
                "base64."
            )
        try:
            private = not self.allow_private and not is_public(host)
        except ValueError:
            return  # A host name: its address is checked when a message is sent.
        if private:
            raise UsageError(_not_public(host, host))


def message(job: Job) -> dict[str, Any]:
    """Return the message about a job: its state and the last line of its error. Payload and result may be private."""
    at = job.finished_at or job.updated_at
    error = job.last_error.strip().rpartition("\n")[2][:200] if job.last_error and job.phase == "failed" else None
    data = {
        "id": job.id, "kind": job.kind, "state": job.state, "phase": job.phase, "attempt": job.attempt,
        "finished_at": None if job.finished_at is None else _iso(job.finished_at), "error": error,
    }  # fmt: skip
    return {"type": f"job.{job.phase}", "timestamp": _iso(at), "data": data}


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# ---------------------------------------------------------------- signatures
def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message, `v1,<base64>`. A secret that begins with `whsec_` is base64 after that."""
    digest = hmac.digest(_key(secret), f"{id}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def headers(secret: str, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed message.

    The id is the same in every retry; the timestamp is the time of sending.
    """
    return {
        "content-type": "application/json",
        "user-agent": "interlock",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, id, timestamp, body),
    }


def verify(
    secrets: str | Sequence[str], headers: Mapping[str, str], body: bytes, now: float, tolerance: float = TOLERANCE
) -> bool:
    """Whether a message has a recent signature by one of these secrets. If not, the receiver answers 401."""
    found = {name.lower(): value for name, value in headers.items()}
    id, stamp = found.get("webhook-id", ""), found.get("webhook-timestamp", "")
    if not re.fullmatch("[0-9]{1,15}", stamp) or abs(now - int(stamp)) > tolerance:
        return False
    given = [each.encode() for each in found.get("webhook-signature", "").split()]
    known = [sign(each, id, int(stamp), body).encode() for each in ([secrets] if isinstance(secrets, str) else secrets)]
    return any(hmac.compare_digest(mine, theirs) for mine in known for theirs in given)


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret[6:], validate=True) if secret.startswith("whsec_") else secret.encode()
    except (binascii.Error, ValueError):
        raise UsageError(
            "The secret of a webhook begins with whsec_ but the rest is not base64: copy the whole secret again."
        ) from None
    if not key:
        raise UsageError(
            "The secret of a webhook is empty: give at least 24 random bytes, as 'whsec_' and their base64."
        )
    return key


# ---------------------------------------------------------------- addresses
def is_public(address: str) -> bool:
    """Whether an address is public: not loopback, private, link-local, multicast or reserved, also if mapped into
    IPv6.
    """
    found = _embedded_ipv4(ip_address(address))
    return (
        found.is_global and not (found.is_multicast or found.is_reserved) and (found.version == 4 or found in _UNICAST)
    )


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds (mapped, 6to4 or translated), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    translated = IPv4Address(int(address) & 0xFFFF_FFFF) if address in _TRANSLATED else None
    return address.ipv4_mapped or address.sixtofour or translated or address


def _not_public(host: str, address: str) -> str:
    return (
        f"The webhook's host {host} has the address {address}, which is not public: "
        "give a public address, or set allow_private=True."
    )


Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the system resolves them."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass(frozen=True, slots=True)
class _Target:
    secure: bool
    host: str
    port: int
    path: str

    @property
    def named(self) -> str:
        """The value of the Host header: the host, and the port if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def _target(url: str) -> _Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # Show neither the URL nor the reason: they may contain a password or a token.
        raise UsageError("The webhook's URL cannot be read: give one such as https://example.com/hooks.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(
            "The webhook's URL has no host, or is neither http nor https: give one such as https://example.com/hooks."
        )
    if "@" in parts.netloc:
        raise UsageError(
            f"The webhook's URL for {host} contains a user or password, which messages do not need: remove it. "
            "Messages are signed."
        )
    if not re.fullmatch("[!-~]+", url) or "\\" in url:
        raise UsageError(
            f"The webhook's URL for {host} has a space, a backslash or a character beyond ASCII: percent-encode the "
            "path, and write the host as xn--."
        )
    secure = parts.scheme == "https"
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return _Target(secure, host, port or (443 if secure else 80), path)


# ---------------------------------------------------------------- sending
def send(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,
    allow_private: bool,
    resolve: Resolve = resolve,
) -> int:
    """Post a message and return the status, which is 200 to 299.

    The host is resolved once. All its addresses must be public unless `allow_private`, and the connection goes to one
    of them, so that a later DNS change has no effect. Redirects are not followed, and proxies are not used. `Fail` if
    a retry would not help: an unusable URL or address, or a status that refuses. `Retry` for everything else.
    `timeout` limits the whole exchange, without the name resolution.
    """
    try:
        target = _target(url)
    except UsageError as error:
        raise Fail(str(error)) from None
    addresses = _checked(target, allow_private, resolve)
    deadline = time.monotonic() + timeout
    try:
        with closing(_connected(target, addresses, deadline)) as sock:
            status, after = _exchange(_DeadlineSocket(sock, deadline), target, body, headers)
    except (OSError, http.client.HTTPException) as error:
        raise Retry(f"The webhook's host {target.named} is unreachable: {type(error).__name__}: {error}") from error
    if 200 <= status < 300:
        return status
    if refused(status):
        raise Fail(
            f"The webhook's host {target.named} refused the message with status "
            f"{status}{' (gone)' if status == 410 else ''}."
        )
    moved = ", and redirects are not followed: declare the webhook with the new URL" if 300 <= status < 400 else ""
    raise Retry(f"The webhook's host {target.named} answered with status {status}{moved}.", after=after or None)


def _checked(target: _Target, allow_private: bool, resolve: Resolve) -> Sequence[str]:
    try:
        addresses = resolve(target.host, target.port)
    except UnicodeError:
        raise Fail(f"The webhook's host {target.host} is not a valid host name: correct it.") from None
    except OSError as error:
        raise Retry(f"The webhook's host {target.host} was not found: {error}") from error
    # Refuse the host even if only one of its addresses is private.
    if not allow_private and (private := [each for each in addresses if not is_public(each)]):
        raise Fail(_not_public(target.host, private[0]))
    return addresses


def _connected(target: _Target, addresses: Sequence[str], deadline: float) -> socket.socket:
    problem = OSError("the host has no address")
    for address in addresses:
        try:
            sock = socket.create_connection((address, target.port), _left(deadline))
        except OSError as error:
            problem = error
            continue
        return _context().wrap_socket(sock, server_hostname=target.host) if target.secure else sock
    raise problem


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _exchange(
    sock: "_DeadlineSocket", target: _Target, body: bytes, headers: Mapping[str, str]
) -> tuple[int, float | None]:
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = cast("socket.socket", sock)
    connection.auto_open = 0  # http.client must not resolve the name and connect by itself.
    connection.request("POST", target.path, body, {**headers, "Host": target.named, "Connection": "close"})
    with connection.getresponse() as response:
        # Read the body, so that the server can finish. Only the status counts.
        with suppress(OSError, http.client.HTTPException):
            response.read(MOST)
        return response.status, retry_after(response.headers)


class _DeadlineSocket(io.RawIOBase):
    """A socket for http.client that gives up at a deadline and reads at most `MOST` bytes."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._room = MOST

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._sock.settimeout(_left(self._deadline))
        count = self._sock.recv_into(memoryview(buffer)[: self._room])
        self._room -= count
        return count

    def close(self) -> None:
        """Do nothing: http.client closes the socket before it has read the response. The caller closes it."""
