"""Hosts by their names and addresses: whether one can be outside our own network."""

import ipaddress
import re
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
OWN = (".internal", ".local", ".localhost", ".localdomain", ".lan", ".home", ".corp", ".intranet", ".home.arpa")
"""Ends of names that only a network of one's own resolves."""
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)+")


def is_public(host: str) -> bool:
    """Whether this names a host of the public internet. A name may still resolve to any address: only who connects can know that."""
    name = host.lower().rstrip(".")
    address = _address(name)
    if address is not None:
        return all(each.is_global and not each.is_multicast for each in _meant(address))
    return _NAME.fullmatch(name) is not None and not name.endswith(OWN)


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # As resolvers read numbers: 127.1, 2130706433, 0x7f000001 and 0177.0.0.1 are all the same address.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _meant(address: Address) -> list[Address]:
    """The address, and those of the older internet that it stands for."""
    if not isinstance(address, ipaddress.IPv6Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inside = [address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inside.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [address, *(each for each in inside if each is not None)]
