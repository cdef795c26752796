"""Addresses that a torrent has qBittorrent call by itself: trackers, web seeds, peers and nodes.

Whoever may start a download could make qBittorrent send requests into the network that it is in, and learn from its answers or its silence what is there.
So a torrent that names an address of a private network, or one that is no plain address, is refused.
"""

from urllib.parse import urlsplit

from apps.common.hosts import is_public

from .errors import BadSource

SCHEMES = frozenset({"http", "https", "udp", "ws", "wss"})
"""Of trackers and web seeds."""
SHOWN = 80


def check(addresses: tuple[str, ...]) -> None:
    """Raise BadSource unless each is of the public internet, as far as can be seen without asking a name server."""
    for address in addresses:
        if not _is_public(address):
            raise BadSource(
                f"The torrent names {_shown(address)}, which is no address of the public internet, and qBittorrent would call it: leave it out of the "
                "link, or give another torrent. For trackers of your own network, the operator sets LIBRARIAN_ALLOW_PRIVATE_ADDRESSES=1.")


def _is_public(address: str) -> bool:
    # What one program takes for a user name or a separator, another takes for the host.
    if any(each in address for each in "\\@ ") or not address.isascii() or not address.isprintable():
        return False
    try:
        # A peer or a node has no scheme.
        parts = urlsplit(address if "://" in address else f"udp://{address}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in SCHEMES and host is not None and is_public(host)


def _shown(address: str) -> str:
    shown = repr(address)
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 1]}…"
