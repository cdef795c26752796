"""Addresses in a torrent: private addresses are refused, unless the operator allows them."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import libtorrent
import pytest
from bencode2 import bdecode, bencode

from apps.common.public_hosts import is_public
from apps.librarian.address_policy import check_addresses
from apps.librarian.errors import BadSource
from apps.librarian.service import LibraryService
from apps.librarian.settings import Settings
from apps.librarian.tests import torrent_files
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, magnet
from apps.librarian.torrent_source import parse_source

PRIVATE = [
    "localhost", "localhost.", "LocalHost", "router", "nas.local", "vault.internal", "box.lan",
    "printer.home.arpa", "127.0.0.1", "127.1", "2130706433",
    "0x7f000001", "0177.0.0.1", "10.0.0.7", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "0.0.0.0", "224.0.0.1", "255.255.255.255", "::",
    "::1", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.7", "64:ff9b::7f00:1",
    "2002:7f00:1::", "", "-",
    "a b.example", "ⓛocalhost.example",
]  # fmt: skip
PUBLIC = [
    "tracker.example",
    "a-b.tracker.example.",
    "xn--bcher-kva.example",
    "8.8.8.8",
    "2606:4700::1111",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize(("host", "public"), [*((host, False) for host in PRIVATE), *((host, True) for host in PUBLIC)])
def test_public_and_private_hosts_are_told_apart(host: str, *, public: bool) -> None:
    assert is_public(host) is public


def link(parameter: str, value: str) -> str:
    return f"{magnet(1)}&{parameter}={quote(value, safe='')}"


def torrent_with(**keys: Any) -> bytes:
    """A .torrent file with these keys beside its info dictionary."""
    return bencode(bdecode(torrent_files.v1()) | {key.replace("_", "-").encode(): value for key, value in keys.items()})


BAD = [
    *(link(parameter, "http://127.0.0.1:8080/api/v2/app/shutdown") for parameter in ("tr", "TR", "tr.1", "ws",
    "as", "xs", "mt")),
    *(link(parameter, "169.254.169.254:80") for parameter in ("x.pe", "X.PE", "dht")), link("x.pe", "[::1]:6881"),
    link("x.pe", "router:6881"),
    *(link("tr", address) for address in (
        "file:///etc/passwd", "gopher://tracker.example/", "ftp://tracker.example/a",
        "dict://tracker.example:11111/", "http:///announce", "http://[::1/a",
        "http://tracker.example@127.0.0.1/a", "http://127.0.0.1\\@tracker.example/a",
        "http://127.0.0.1%2etracker.example/", "http://tracker.example:x/",
        "udp://127.0.0.1:6969", "http://127.1/announce", "//127.0.0.1/announce", "tracker")),
    f"{magnet(1)}&tr=http://tracker.example/announce&tr=http://10.0.0.1/announce",
    f"{magnet(1)}&tr=http%3a%2f%2f10.0.0.1%2fa",
    torrent_with(announce=b"http://127.0.0.1/announce"), torrent_with(announce_list=[[b"http://tracker.example/a"],
    [b"udp://b.example:1", b"udp://192.168.0.1:1"]]),
    torrent_with(url_list=b"http://10.0.0.1/files/"), torrent_with(url_list=[b"http://a.example/",
    b"http://localhost/"]), torrent_with(httpseeds=[b"http://[fd00::1]/s"]),
    torrent_with(nodes=[[b"a.example", 6881], [b"127.0.0.1", 6881]]), torrent_with(nodes=[[b"::1", 6881]]),
    torrent_with(announce=b" http://127.0.0.1/a"),
]  # fmt: skip
GOOD = [
    magnet(1), link("tr", "udp://tracker.example:6969/announce"), link("tr", "wss://tracker.example"), link("ws",
    "https://a.example/files/"),
    link("x.pe", "8.8.8.8:6881"), link("x.pe", "[2606:4700::1111]:6881"), link("xs", "urn:btpk:" + "0" * 64),
    f"{magnet(1)}&xl=100&kt=night&so=0-2",
    torrent_with(announce=b"http://tracker.example/announce?passkey=1", announce_list=[[b"udp://a.example:1"]],
    url_list=[b"https://a.example/"],
              nodes=[[b"a.example", 6881], [b"2606:4700::1111", 6881]], comment=b"http://127.0.0.1/",
              publisher_url=b"http://10.0.0.1/"),
]  # fmt: skip


@pytest.mark.parametrize("given", BAD)
def test_private_address_is_refused(given: str | bytes) -> None:
    with pytest.raises(BadSource, match=r"not a public address.*LIBRARIAN_ALLOW_PRIVATE_ADDRESSES=1"):
        check_addresses(parse_source(given).addresses)


def test_download_with_a_private_address_is_refused_and_stores_nothing(kit: LibrarianKit) -> None:
    user, book = kit.service.add_user("ann").id, kit.service.add_book("Emma").id
    before = kit.row_counts()
    for given in BAD:
        with pytest.raises(BadSource, match="not a public address"):
            kit.service.start_download(user, book, "text", given)
    assert kit.row_counts() == before


def test_download_with_public_addresses_is_started(kit: LibrarianKit) -> None:
    user = kit.service.add_user("ann").id
    for given in GOOD:
        assert kit.service.start_download(user, kit.service.add_book("Emma").id, "text", given).created


@pytest.mark.parametrize("given", [*(each for each in (*BAD, *GOOD) if isinstance(each, str))])
def test_every_address_that_libtorrent_finds_in_a_link_is_checked(given: str) -> None:
    read, theirs = " ".join(parse_source(given).addresses), libtorrent.parse_magnet_uri(given)
    found = [
        *theirs.trackers,
        *theirs.url_seeds,
        *(host for host, _ in theirs.peers),
        *(host for host, _ in theirs.dht_nodes),
    ]
    assert [each for each in found if each.lower() not in read.lower()] == []


@pytest.mark.parametrize("given", [*(each for each in (*BAD, *GOOD) if isinstance(each, bytes))])
def test_every_address_that_libtorrent_finds_in_a_file_is_checked(given: bytes) -> None:
    read, theirs = " ".join(parse_source(given).addresses), libtorrent.load_torrent_buffer(given)
    found = [*theirs.trackers, *theirs.url_seeds, *(host for host, _ in theirs.dht_nodes)]
    assert [each for each in found if each.lower() not in read.lower()] == []


@pytest.mark.parametrize(
    "given", [BAD[0], torrent_with(announce=b"http://127.0.0.1/announce")], ids=["magnet", "torrent"]
)
def test_operator_may_allow_private_addresses(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, given: str | bytes
) -> None:
    """The setting of the worker counts, too: it checks the addresses before the hand-over."""
    lenient = replace(kit.librarian, allow_private_addresses=True)
    user, book = kit.service.add_user("ann").id, kit.service.add_book("Emma").id
    id = LibraryService(lenient).start_download(user, book, "text", given).id
    kit.run()
    download = kit.download(id)
    assert (download.status, qbittorrent.torrents) == ("failed", {})
    assert "which is not a public address" in (download.failure_reason or "")
    assert Settings.from_env({"LIBRARIAN_ALLOW_PRIVATE_ADDRESSES": "1"}).allow_private_addresses
    assert not Settings.from_env({}).allow_private_addresses
