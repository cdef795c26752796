"""Addresses in a torrent: qBittorrent connects to no private network, unless the operator allows it."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import libtorrent
import pytest
from bencode2 import bdecode, bencode

from apps.common.hosts import is_public
from apps.librarian.errors import BadSource
from apps.librarian.library import Library
from apps.librarian.settings import Settings
from apps.librarian.source import source
from apps.librarian.tests import torrents
from apps.librarian.tests.kit import Branch, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent

PRIVATE = [
    "localhost", "localhost.", "LocalHost", "router", "nas.local", "vault.internal", "box.lan", "printer.home.arpa", "127.0.0.1", "127.1", "2130706433",
    "0x7f000001", "0177.0.0.1", "10.0.0.7", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::",
    "::1", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.7", "64:ff9b::7f00:1", "2002:7f00:1::", "", "-",
    "a b.example", "ⓛocalhost.example",
]  # fmt: skip
PUBLIC = ["tracker.example", "a-b.tracker.example.", "xn--bcher-kva.example", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"]


@pytest.mark.parametrize(("host", "public"), [*((host, False) for host in PRIVATE), *((host, True) for host in PUBLIC)])
def test_host_is_public_if_nothing_says_that_it_is_not(host: str, *, public: bool) -> None:
    assert is_public(host) is public


def link(parameter: str, value: str) -> str:
    return f"{magnet(1)}&{parameter}={quote(value, safe='')}"


def described(**keys: Any) -> bytes:
    """A .torrent with this beside its info dictionary."""
    return bencode(bdecode(torrents.v1()) | {key.replace("_", "-").encode(): value for key, value in keys.items()})


BAD = [
    *(link(parameter, "http://127.0.0.1:8080/api/v2/app/shutdown") for parameter in ("tr", "TR", "tr.1", "ws", "as", "xs", "mt")),
    *(link(parameter, "169.254.169.254:80") for parameter in ("x.pe", "X.PE", "dht")), link("x.pe", "[::1]:6881"), link("x.pe", "router:6881"),
    *(link("tr", address) for address in (
        "file:///etc/passwd", "gopher://tracker.example/", "ftp://tracker.example/a", "dict://tracker.example:11111/", "http:///announce", "http://[::1/a",
        "http://tracker.example@127.0.0.1/a", "http://127.0.0.1\\@tracker.example/a", "http://127.0.0.1%2etracker.example/", "http://tracker.example:x/",
        "udp://127.0.0.1:6969", "http://127.1/announce", "//127.0.0.1/announce", "tracker")),
    f"{magnet(1)}&tr=http://tracker.example/announce&tr=http://10.0.0.1/announce", f"{magnet(1)}&tr=http%3a%2f%2f10.0.0.1%2fa",
    described(announce=b"http://127.0.0.1/announce"), described(announce_list=[[b"http://tracker.example/a"], [b"udp://b.example:1", b"udp://192.168.0.1:1"]]),
    described(url_list=b"http://10.0.0.1/files/"), described(url_list=[b"http://a.example/", b"http://localhost/"]), described(httpseeds=[b"http://[fd00::1]/s"]),
    described(nodes=[[b"a.example", 6881], [b"127.0.0.1", 6881]]), described(nodes=[[b"::1", 6881]]), described(announce=b" http://127.0.0.1/a"),
]  # fmt: skip
GOOD = [
    magnet(1), link("tr", "udp://tracker.example:6969/announce"), link("tr", "wss://tracker.example"), link("ws", "https://a.example/files/"),
    link("x.pe", "8.8.8.8:6881"), link("x.pe", "[2606:4700::1111]:6881"), link("xs", "urn:btpk:" + "0" * 64), f"{magnet(1)}&xl=100&kt=night&so=0-2",
    described(announce=b"http://tracker.example/announce?passkey=1", announce_list=[[b"udp://a.example:1"]], url_list=[b"https://a.example/"],
              nodes=[[b"a.example", 6881], [b"2606:4700::1111", 6881]], comment=b"http://127.0.0.1/", publisher_url=b"http://10.0.0.1/"),
]  # fmt: skip


@pytest.mark.parametrize("given", BAD)
def test_torrent_that_names_an_address_of_a_private_network_is_refused(branch: Branch, given: str | bytes) -> None:
    """Nothing is stored, and the sentence names the address."""
    user, book = branch.library.add_user("ann").id, branch.library.add_book("Emma").id
    with pytest.raises(BadSource, match=r"not a public address.*LIBRARIAN_ALLOW_PRIVATE_ADDRESSES=1"):
        branch.library.start_download(user, book, "text", given)
    assert branch.app.jobs() == []


@pytest.mark.parametrize("given", GOOD)
def test_torrent_with_public_addresses_is_taken(branch: Branch, given: str | bytes) -> None:
    user, book = branch.library.add_user("ann").id, branch.library.add_book("Emma").id
    assert branch.library.start_download(user, book, "text", given).created


@pytest.mark.parametrize("given", [*(each for each in (*BAD, *GOOD) if isinstance(each, str))])
def test_no_address_that_libtorrent_finds_in_a_link_is_overlooked(given: str) -> None:
    read, theirs = " ".join(source(given).addresses), libtorrent.parse_magnet_uri(given)
    found = [*theirs.trackers, *theirs.url_seeds, *(host for host, _ in theirs.peers), *(host for host, _ in theirs.dht_nodes)]
    assert [each for each in found if each.lower() not in read.lower()] == []


@pytest.mark.parametrize("given", [*(each for each in (*BAD, *GOOD) if isinstance(each, bytes))])
def test_no_address_that_libtorrent_finds_in_a_torrent_is_overlooked(given: bytes) -> None:
    read, theirs = " ".join(source(given).addresses), libtorrent.load_torrent_buffer(given)
    found = [*theirs.trackers, *theirs.url_seeds, *(host for host, _ in theirs.dht_nodes)]
    assert [each for each in found if each.lower() not in read.lower()] == []


@pytest.mark.parametrize("given", [BAD[0], described(announce=b"http://127.0.0.1/announce")], ids=["magnet", "torrent"])
def test_operator_may_allow_private_addresses(branch: Branch, qbittorrent: FakeQbittorrent, given: str | bytes) -> None:
    """The worker that hands the torrent over must be allowed to, as well."""
    lenient = replace(branch.librarian, allow_private_addresses=True)
    user, book = branch.library.add_user("ann").id, branch.library.add_book("Emma").id
    id = Library(lenient).start_download(user, book, "text", given).id
    branch.run()
    seen = branch.seen(id)
    assert (seen.status, qbittorrent.torrents) == ("failed", {})
    assert "which is not a public address" in (seen.failure_reason or "")
    assert Settings.from_env({"LIBRARIAN_ALLOW_PRIVATE_ADDRESSES": "1"}).allow_private_addresses
    assert not Settings.from_env({}).allow_private_addresses
