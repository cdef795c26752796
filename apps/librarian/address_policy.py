"""Checks the addresses in a torrent that qBittorrent connects to: trackers, web seeds, peers and nodes.

A user who may start a download could make qBittorrent send requests into its own network, and learn from the responses
what is there. So the librarian refuses a torrent with a private address, or with anything but a plain address.
"""

from urllib.parse import urlsplit

from apps.common.public_hosts import is_public

from .errors import BadSource

SCHEMES = frozenset({"http", "https", "udp", "ws", "wss"})
"""Allowed schemes of trackers and web seeds."""
MAX_SHOWN = 80


def check_addresses(addresses: tuple[str, ...]) -> None:
    """Raise BadSource unless every address is public, as far as can be judged without a name server."""
    for address in addresses:
        if not _is_public(address):
            raise BadSource(
                f"The torrent contains {_shorten(address)}, which is not a public address, and qBittorrent would "
                "connect to it. Remove it from the link, or use another torrent. To allow trackers in a private "
                "network, the operator sets LIBRARIAN_ALLOW_PRIVATE_ADDRESSES=1."
            )


def _is_public(address: str) -> bool:
    # Programs disagree on whether these characters end a host, a user name or the address.
    if any(each in address for each in "\\@ ") or not address.isascii() or not address.isprintable():
        return False
    try:
        # A peer or a node has no scheme.
        parts = urlsplit(address if "://" in address else f"udp://{address}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in SCHEMES and host is not None and is_public(host)


def _shorten(address: str) -> str:
    shown = repr(address)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"
