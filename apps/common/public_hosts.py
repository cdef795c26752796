"""Decides by its name or IP address whether a host can be on the public internet."""

import ipaddress
import re
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
OWN = (".internal", ".local", ".localhost", ".localdomain", ".lan", ".home", ".corp", ".intranet", ".home.arpa")
"""Suffixes of names that only a private network resolves."""
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)+")


def is_public(host: str) -> bool:
    """Whether this names a host of the public internet. The name may still resolve to a private address."""
    name = host.lower().rstrip(".")
    address = _address(name)
    if address is not None:
        return all(each.is_global and not each.is_multicast for each in _embedded(address))
    return _NAME.fullmatch(name) is not None and not name.endswith(OWN)


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # Resolvers read 127.1, 2130706433, 0x7f000001 and 0177.0.0.1 as the same address.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded(address: Address) -> list[Address]:
    """The address, and the IPv4 addresses that it embeds."""
    if not isinstance(address, ipaddress.IPv6Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inside = [address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inside.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [address, *(each for each in inside if each is not None)]
