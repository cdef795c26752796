"""Magnet links and .torrent files are parsed as libtorrent does, and refused if they are invalid or harmful."""

import base64
from collections.abc import Callable
from typing import Any

import libtorrent
import pytest
from bencode2 import bencode
from hypothesis import example, given
from hypothesis import strategies as st

from apps.librarian.errors import BadSource
from apps.librarian.tests import torrent_files
from apps.librarian.torrent_source import MAX_TORRENT, Source, parse_magnet, parse_source, parse_torrent_file

V1, V2 = "c344a3ce02b06716a515e59a0277524d202cbba2", "a178b1e300228bc56599a8c00bf6d50e9e0fe8b3350766a14f877638734b2f79"
BASE32 = base64.b32encode(bytes.fromhex(V1)).decode()
ESCAPING_NAMES = [
    "..",
    ".",
    "",
    "/etc",
    "a/b",
    "../../etc/passwd",
    "a\\b",
    "..\\..",
    "C:",
    "c:\\x",
    "C:x",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "a\x85b",
]


def hashes(info_hashes: Any) -> tuple[str | None, str | None]:
    return (
        str(info_hashes.v1) if info_hashes.has_v1() else None,
        str(info_hashes.v2) if info_hashes.has_v2() else None,
    )


# ---------------------------------------------------------------- magnet links


@pytest.mark.parametrize(
    ("text", "v1", "v2"),
    [
        (f"magnet:?xt=urn:btih:{V1}", V1, None),
        (f"magnet:?xt=urn:btih:{V1.upper()}", V1, None),
        (f"magnet:?xt=urn:btih:{BASE32}", V1, None),
        (f"magnet:?xt=urn:btih:{BASE32.lower()}", V1, None),
        (f"magnet:?dn=night.epub&xt=urn:btih:{V1}&tr=http%3A%2F%2Ft.example%2Fa&", V1, None),
        (f"magnet:?xt=urn%3Abtih%3A{V1}", V1, None),
        (f"magnet:?XT.1=urn:btih:{V1}&xt.2=urn:btmh:1220{V2}", V1, V2),
        (f"magnet:?xt=urn:btmh:1220{V2.upper()}", None, V2),
        (f"magnet:?xt=urn:btmh:1220{V2}&xt=urn:btih:{BASE32}", V1, V2),
        (f"magnet:?xt=urn:btih:{V1}&xt=urn:btih:{BASE32}", V1, None),
        (f"magnet:?xt=urn:sha1:ABC&xt=urn:btih:{V1}", V1, None),
    ],
)
def test_magnet_link_is_parsed_as_libtorrent_does(text: str, v1: str | None, v2: str | None) -> None:
    read = parse_source(text)
    assert (read.v1, read.v2) == (v1, v2) == hashes(libtorrent.parse_magnet_uri(text).info_hashes)
    assert read.id == (v1 or (v2 or "")[:40])
    assert read.text == text
    assert read.torrent is None


def test_magnet_link_is_stripped_and_keeps_its_name() -> None:
    assert parse_magnet(f"  magnet:?xt=urn:btih:{V1}&dn=A+dark%20night\n") == Source(
        f"magnet:?xt=urn:btih:{V1}&dn=A+dark%20night", V1, V1, None, "A dark night"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a magnet link"),
        ("https://books.example/night.torrent", "not a magnet link"),
        (f"MAGNET:?xt=urn:btih:{V1}", "not a magnet link"),
        (f"magnet:xt=urn:btih:{V1}", "not a magnet link"),
        ("magnet:?dn=night", "no info-hash"),
        ("magnet:?xt=urn:sha1:YNCKHTQCWBTRNJIV4WNAE52SJUQCZO5C", "no info-hash"),
        ("magnet:?", "without a value"),
        (f"magnet:?&&xt=urn:btih:{V1}", "without a value"),
        ("magnet:?xt=urn:btih:", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{V1[:-1]}", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{V1[:-1]}g", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{V2}", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{V1}#", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{'0' * 40}", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{BASE32[:-1]}1", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{'１' * 40}", "is not an info-hash"),
        (f"magnet:?xt=urn:btmh:1220{V2[:-1]}", "is not an info-hash"),
        (f"magnet:?xt=urn:btmh:1114{V1}", "is not an info-hash"),
        (f"magnet:?xt=urn:btih:{V1}&xt=urn:btih:{'ab' * 20}", "two different torrents"),
        (f"magnet:?xt=urn:btmh:1220{V2}&xt=urn:btmh:1220{'ab' * 32}", "two different torrents"),
        (f"magnet:?xt=urn:btih:{V1}&tr={'a' * 8192}", "longer than 8192"),
        (f"magnet:?xt=urn:btih:{V1}\nhttps://elsewhere.example/x.torrent", "control characters"),
        (f"magnet:?xt=urn:btih:{V1}\0", "control characters"),
        (f"magnet:?xt=urn:btih:{V1}&dn=\ud800", "control characters"),
    ],
)
def test_invalid_magnet_link_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadSource, match=says):
        parse_source(text)


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc", "%2Fetc%2Fpasswd", "..", "a%5Cb", "a/b", "C%3A%5Cx", "a%00b", "a%0Ab"]
)
def test_magnet_link_with_a_path_as_its_name_is_refused(name: str) -> None:
    with pytest.raises(BadSource, match="could lead out of the download directory"):
        parse_magnet(f"magnet:?xt=urn:btih:{V1}&dn={name}")


# ---------------------------------------------------------------- .torrent files


@pytest.mark.parametrize(
    ("data", "sorts"),
    [
        (torrent_files.v1(), (True, False)),
        (torrent_files.v2(), (False, True)),
        (torrent_files.hybrid(), (True, True)),
        (torrent_files.of_files(["one", "a.epub"], ["two", "b.epub"], [".pad", "16"]), (True, False)),
        (
            torrent_files.of_tree({b"one": {b"a.epub": torrent_files.file_of()}, b"two.epub": torrent_files.file_of()}),
            (False, True),
        ),
        (torrent_files.v1(private=1, source=b"x", zz={b"of": [1, b"no", {}]}), (True, False)),
        (torrent_files.v1(name="夜.epub"), (True, False)),
    ],
)
def test_torrent_file_has_the_hashes_that_libtorrent_finds(data: bytes, sorts: tuple[bool, bool]) -> None:
    read, theirs = parse_source(data), libtorrent.load_torrent_buffer(data)
    assert (read.v1, read.v2) == hashes(theirs.info_hashes)
    assert (read.v1 is not None, read.v2 is not None) == sorts
    assert read.name == theirs.ti.name()
    assert read.id == (read.v1 or str(read.v2)[:40])
    assert read.text == f"torrent:{read.id}"
    assert read.torrent == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a torrent",
        b"i1e",
        b"le",
        b"de",
        b"d4:infoi1ee",
        torrent_files.v1()[:-1],
        torrent_files.v1() + b"e",
        bencode({b"info": {}}),
        torrent_files.torrent({b"name": b"x"}),
        torrent_files.v1().replace(b"4:name", b"4:nome"),
        torrent_files.torrent({b"name": {}, b"piece length": 16384, b"pieces": b"x" * 20, b"length": 1}),
        torrent_files.v1(pieces=b""),
        torrent_files.v1(pieces=b"x" * 19),
        torrent_files.v1(piece_length=0),
        torrent_files.v1(length=-1),
        torrent_files.v1(files=[]),
        torrent_files.v1(files=[b"x"]),
        torrent_files.v1(files=[{b"length": 1}]),
        torrent_files.v1(files=[{b"length": 1, b"path": []}]),
        torrent_files.v1(files=[{b"length": 1, b"path": b"x"}]),
        torrent_files.v1(files=[{b"length": 1, b"path": [1]}]),
        torrent_files.v1(meta_version=3),
        torrent_files.v1(meta_version=2),
        torrent_files.v2(file_tree={}),
        torrent_files.v2(file_tree={b"": torrent_files.file_of()}),
        torrent_files.v2(file_tree={b"x": {}}),
        torrent_files.v2(file_tree={b"x": {b"": 1}}),
        torrent_files.v2(file_tree={b"x": {b"": {}, b"y": torrent_files.file_of()}}),
        b"d4:infod4:name1:x6:pieces20:" + b"x" * 20 + b"6:lengthi1eee",  # keys out of order
        b"d4:infod4:name1:x4:name2:..ee",  # a key twice
        b"i" + b"9" * 5000 + b"e",
        b"l" * 1_000_000,
    ],
)
def test_invalid_torrent_file_is_refused(data: bytes) -> None:
    with pytest.raises(BadSource, match=r"^(This is not a|The) \.torrent file.+\.$"):
        parse_source(data)


def test_oversized_torrent_file_is_refused_before_parsing() -> None:
    with pytest.raises(BadSource, match="larger than"):
        parse_torrent_file(b"l" * (MAX_TORRENT + 1))


def test_deeply_nested_torrent_file_is_refused() -> None:
    def nested(depth: int) -> bytes:
        value: Any = []
        for _ in range(depth):
            value = [value]
        return torrent_files.v1(zz=value)

    assert parse_torrent_file(nested(60)).name == "night.epub"
    with pytest.raises(BadSource, match="nested more than 64 levels deep"):
        parse_torrent_file(nested(70))
    with pytest.raises(BadSource, match="nested more than 64 levels deep"):
        parse_torrent_file(nested(900))


PLACES: dict[str, Callable[[str], bytes]] = {
    "name": lambda name: torrent_files.v1(name=name),
    "name.utf-8": lambda name: torrent_files.v1(**{"name.utf-8": name.encode()}),
    "directory": lambda name: torrent_files.of_files(["fine"], [name, "a.epub"]),
    "file": lambda name: torrent_files.of_files(["fine"], ["a", name]),
    "path.utf-8": lambda name: torrent_files.v1(
        files=[{b"length": 1, b"path": [b"fine"], b"path.utf-8": [b"a", name.encode()]}]
    ),
    "symlink": lambda name: torrent_files.v1(
        files=[{b"length": 1, b"path": [b"fine"], b"attr": b"l", b"symlink path": [name.encode()]}]
    ),
    "v2 name": lambda name: torrent_files.v2(name=name),
    "v2 directory": lambda name: torrent_files.of_tree({b"fine": {name.encode(): {b"deep": torrent_files.file_of()}}}),
    "v2 file": lambda name: torrent_files.of_tree({b"fine": {b"deep": {name.encode(): torrent_files.file_of()}}}),
    "v2 beside a file": lambda name: torrent_files.of_tree(
        {b"fine": torrent_files.file_of(), name.encode(): torrent_files.file_of()}
    ),
}


@pytest.mark.parametrize("name", ESCAPING_NAMES)
@pytest.mark.parametrize("place", PLACES)
def test_no_name_in_a_torrent_file_can_lead_out_of_the_download_directory(place: str, name: str) -> None:
    # In a v2 tree the empty name marks a file, so in the wrong place the tree is damaged.
    says = (
        "It is damaged"
        if not name and place.startswith("v2 ") and place != "v2 name"
        else "could lead out of the download directory"
    )
    with pytest.raises(BadSource, match=says):
        parse_source(PLACES[place](name))


def test_name_in_an_old_encoding_is_accepted() -> None:
    assert (
        parse_torrent_file(
            torrent_files.torrent({b"name": b"caf\xe9", b"piece length": 16384, b"pieces": b"x" * 20, b"length": 1})
        ).name
        == "caf\ufffd"
    )


# ---------------------------------------------------------------- arbitrary input


VALID_FILES = [
    torrent_files.v1(),
    torrent_files.v2(),
    torrent_files.hybrid(),
    torrent_files.of_files(["a", "b"], ["c"]),
    torrent_files.of_tree({b"a": {b"b": torrent_files.file_of()}}),
]


def parse_or_refuse(given_source: str | bytes) -> None:
    try:
        answer = parse_source(given_source).id
    except BadSource as refused:
        answer = str(refused)
    assert len(answer) == 40 or answer.endswith(".")


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200), st.text(max_size=80).map("magnet:?xt=urn:btih:".__add__))
)
def test_random_input_is_parsed_or_refused(given_source: str | bytes) -> None:
    parse_or_refuse(given_source)


@given(st.sampled_from(VALID_FILES), st.data())
def test_damaged_torrent_file_is_parsed_or_refused(valid: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(valid)))
    end = data.draw(st.integers(start, min(len(valid), start + 20)))
    parse_or_refuse(valid[:start] + data.draw(st.binary(max_size=20)) + valid[end:])


bencoded: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(), st.binary(max_size=25)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.binary(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


KEYS = [b"name", b"name.utf-8", b"pieces", b"piece length", b"length", b"files", b"file tree", b"meta version", b"x"]


@given(st.booleans(), st.dictionaries(st.sampled_from(KEYS), st.one_of(bencoded, st.integers(0, 3)), min_size=1))
@example(False, {b"files": [{b"path": [b"a"], b"length": 1, b"path.utf-8": 1}]})
def test_nonsense_in_a_torrent_file_is_parsed_or_refused(is_v2: bool, nonsense: dict[bytes, Any]) -> None:
    v1, v2 = {b"pieces": b"x" * 20, b"length": 1}, {b"meta version": 2, b"file tree": {b"x": torrent_files.file_of()}}
    parse_or_refuse(torrent_files.torrent({b"name": b"x", b"piece length": 16384} | (v2 if is_v2 else v1) | nonsense))
