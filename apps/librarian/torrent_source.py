"""Parses and validates magnet links and .torrent files before anything is stored.

A torrent is identified by the hash of its info dictionary: v1 (SHA-1, 40 hex digits), v2 (SHA-256, 64), or both (a
hybrid). qBittorrent's id has 40 digits, of the v2 hash if it knows it, so it renames a hybrid when the metadata of a
magnet link arrives. The librarian uses the v1 hash where there is one.

Names inside a torrent become paths on disk, so the parser refuses a name that could lead out of the directory.
"""

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote_plus

from bencode2 import bdecode, bencode

from .errors import BadSource

MAX_MAGNET = 8 * 1024
MAX_TORRENT = 10 * 1024 * 1024
MAX_DEPTH = 64
"""Nested lists and dictionaries. A normal torrent needs three or four."""

HASH_URN = re.compile(r"urn:(btih|btmh):(.*)", re.DOTALL)
HASH_PARAMETER = re.compile(r"xt(\.[0-9]+)?", re.IGNORECASE)
# Trackers, web seeds, sources and manifests of other networks, peers, and DHT nodes.
ADDRESS_PARAMETER = re.compile(r"(tr|ws|as|xs|mt|x\.pe|dht)(\.[0-9]+)?", re.IGNORECASE)
V1_HEX = re.compile(r"[0-9a-f]{40}")
V1_BASE32 = re.compile(r"[a-z2-7]{32}")
V2_MULTIHASH = re.compile(r"1220([0-9a-f]{64})")

Bencoded = bytes | int | list["Bencoded"] | dict[bytes, "Bencoded"]
Dictionary = dict[bytes, Bencoded]


@dataclass(frozen=True)
class Source:
    """A valid magnet link or .torrent file. It has at least one hash, in lower case."""

    text: str
    """The magnet link, or `torrent:<id>` for a .torrent."""
    id: str
    """40 hex digits: the v1 hash if there is one, else the first 40 digits of v2."""
    v1: str | None
    v2: str | None
    name: str | None
    torrent: bytes | None = None
    addresses: tuple[str, ...] = ()
    """The addresses that qBittorrent connects to for this source."""


def parse_source(given: str | bytes) -> Source:
    """Parse a magnet link (text) or a .torrent file (bytes). Raises only BadSource."""
    return parse_magnet(given) if isinstance(given, str) else parse_torrent_file(given)


def parse_magnet(text: str) -> Source:
    """Parse a magnet link. qBittorrent reads the same hashes from every link that is accepted."""
    text = text.strip()
    if any(map(_is_control, text)):
        raise BadSource("The magnet link contains control characters. Copy it again, as one line.")
    if len(text.encode()) > MAX_MAGNET:
        raise BadSource(
            f"The magnet link is longer than {MAX_MAGNET} bytes. Remove trackers from it, or use the .torrent file."
        )
    prefix, query = text[:8], text[8:]
    if prefix != "magnet:?":
        raise BadSource('This is not a magnet link. A magnet link begins with "magnet:?".')
    v1: set[str] = set()
    v2: set[str] = set()
    names: list[str] = []
    addresses: list[str] = []
    for pair in query.rstrip("&").split("&"):
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadSource("The magnet link has a parameter without a value. Copy the whole link again.")
        if HASH_PARAMETER.fullmatch(key):
            _read_hash(unquote_plus(value), v1, v2)
        elif key.lower() == "dn" and value:
            names.append(_check_name(unquote_plus(value), "display name (dn)"))
        elif ADDRESS_PARAMETER.fullmatch(key) and not unquote_plus(value).lower().startswith("urn:"):
            addresses.append(unquote_plus(value))
    if len(v1) > 1 or len(v2) > 1:
        raise BadSource("The magnet link names two different torrents. Use one link for each.")
    return _make_source(
        next(iter(v1), None), next(iter(v2), None), names[0] if names else None, text=text, addresses=addresses
    )


def parse_torrent_file(data: bytes) -> Source:
    """Parse a .torrent file. It must be canonical bencode, because its hashes cover its info dictionary as bytes."""
    if len(data) > MAX_TORRENT:
        raise BadSource(f"The .torrent file is larger than {MAX_TORRENT} bytes. Use a magnet link instead.")
    whole = _decode(data)
    info = whole.get(b"info")
    if not isinstance(info, dict):
        raise _damaged("has no info dictionary")
    names = [_decode_name(info[key], "name") for key in (b"name.utf-8", b"name") if key in info]
    if b"name" not in info:
        raise _damaged("has no name")
    version = info.get(b"meta version", 1)
    if version not in (1, 2):
        raise BadSource(f"The .torrent file has the unknown version {_shorten(version)}. Use a v1 or v2 torrent.")
    raw = bencode(info)
    if b"pieces" in info or version == 1:
        _check_v1(info)
    if version == 2:
        _check_v2(info)
    v1 = hashlib.sha1(raw, usedforsecurity=False).hexdigest() if b"pieces" in info else None
    v2 = hashlib.sha256(raw).hexdigest() if version == 2 else None
    return _make_source(v1, v2, names[0], torrent=data, addresses=_addresses(whole))


def _make_source(
    v1: str | None,
    v2: str | None,
    name: str | None,
    *,
    text: str | None = None,
    torrent: bytes | None = None,
    addresses: Iterable[str],
) -> Source:
    id = v1 or (v2 or "")[:40]
    if not id:
        raise BadSource("The magnet link has no info-hash (xt=urn:btih:… or xt=urn:btmh:…). Copy the whole link again.")
    return Source(text or f"torrent:{id}", id, v1, v2, name, torrent, tuple(addresses))


def _read_hash(urn: str, v1: set[str], v2: set[str]) -> None:
    """Read one `xt` parameter. Hashes of other networks are ignored."""
    found = HASH_URN.fullmatch(urn)
    if found is None:
        return
    sort, given = found[1], found[2].lower()
    digits: str | None = None
    if sort == "btmh" and (multihash := V2_MULTIHASH.fullmatch(given)):
        digits = multihash[1]
    elif sort == "btih" and V1_HEX.fullmatch(given):
        digits = given
    elif sort == "btih" and V1_BASE32.fullmatch(given):
        digits = base64.b32decode(given, casefold=True).hex()
    if digits is None or not digits.strip("0"):
        raise BadSource(
            f"{_shorten(urn)} is not an info-hash. v1 has 40 hex or 32 base32 digits after urn:btih:, "
            "v2 has 1220 and 64 hex digits after urn:btmh:."
        )
    (v1 if sort == "btih" else v2).add(digits)


# ---------------------------------------------------------------- .torrent


def _decode(data: bytes) -> Dictionary:
    """Decode a .torrent file. Each part of the result encodes to the same bytes again."""
    try:
        decoded = cast(Bencoded, bdecode(data))
    except ValueError:
        raise BadSource("This is not a .torrent file: it is not canonical bencode. Download it again.") from None
    if _is_deeper_than(MAX_DEPTH, decoded):
        raise BadSource(f"The .torrent file is nested more than {MAX_DEPTH} levels deep. Use another torrent.")
    # Encoding it again refuses unsorted and duplicate keys, which another parser might read differently.
    if not isinstance(decoded, dict) or bencode(decoded) != data:
        raise BadSource("This is not a .torrent file: it is not a canonical bencoded dictionary. Download it again.")
    return decoded


def _addresses(whole: Dictionary) -> Iterator[str]:
    """Trackers, web seeds and nodes, from lists of any depth."""
    for key in (b"announce", b"announce-list", b"url-list", b"httpseeds"):
        yield from map(_address, _flatten(whole.get(key, [])))
    nodes = whole.get(b"nodes", [])
    for node in nodes if isinstance(nodes, list) else [nodes]:
        # A pair of host and port.
        for host in map(_address, _flatten(node[:1] if isinstance(node, list) else node)):
            yield f"[{host}]" if ":" in host else host


def _flatten(value: Bencoded) -> list[Bencoded]:
    inside = _children(value)
    return [value] if not isinstance(value, dict | list) else [each for inner in inside for each in _flatten(inner)]


def _address(value: Bencoded) -> str:
    return value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value)


def _is_deeper_than(limit: int, value: Bencoded) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [inner for outer in level for inner in _children(outer)]
    return bool(level)


def _children(value: Bencoded) -> list[Bencoded]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_v1(info: Dictionary) -> None:
    pieces = info.get(b"pieces")
    if not isinstance(pieces, bytes) or not pieces or len(pieces) % 20:
        raise _damaged("has no checksums (pieces)")
    if not _is_positive(info.get(b"piece length")):
        raise _damaged("has no piece length")
    if b"files" not in info:
        _check_file(info)
        return
    files = info[b"files"]
    if not isinstance(files, list) or not files:
        raise _damaged("lists no files")
    for file in files:
        if not isinstance(file, dict) or b"path" not in file:
            raise _damaged("lists a file without a path")
        _check_file(file)
        for key in (b"path", b"path.utf-8"):
            if key in file:
                _check_path(file[key])


def _check_v2(info: Dictionary) -> None:
    if not _is_positive(info.get(b"piece length")):
        raise _damaged("has no piece length")
    for file in _files_of_tree(info.get(b"file tree")):
        _check_file(file)


def _files_of_tree(tree: Bencoded | None) -> Iterator[Dictionary]:
    """Every file of a v2 file tree, with the names of its path checked. A file is the entry "" of a dictionary."""
    if not isinstance(tree, dict) or not tree or b"" in tree:
        raise _damaged("has no valid file tree")
    for name, below in tree.items():
        _decode_name(name, "file name")
        if isinstance(below, dict) and set(below) == {b""}:
            file = below[b""]
            if not isinstance(file, dict):
                raise _damaged("has a file without a description")
            yield file
        else:
            yield from _files_of_tree(below)


def _check_file(file: Dictionary) -> None:
    length = file.get(b"length")
    if not isinstance(length, int) or length < 0:
        raise _damaged("has a file without a length")
    if b"symlink path" in file:
        _check_path(file[b"symlink path"])


def _check_path(path: Bencoded) -> None:
    if not isinstance(path, list) or not path:
        raise _damaged("lists a file without a path")
    for element in path:
        _decode_name(element, "file name")


def _is_positive(value: Bencoded | None) -> bool:
    return isinstance(value, int) and value > 0


# ---------------------------------------------------------------- names


def _decode_name(name: Bencoded, what: str) -> str:
    """A name as text. An old encoding is decoded with replacements; separators in it are still found."""
    if not isinstance(name, bytes):
        raise _damaged(f"has a {what} that is not text")
    return _check_name(name.decode(errors="replace"), what)


def _check_name(name: str, what: str) -> str:
    """Check that a name can only refer to an entry of its own directory."""
    escapes = name in ("", ".", "..") or "/" in name or "\\" in name or re.match(r"[A-Za-z]:", name)
    if escapes or any(map(_is_control, name)):
        raise BadSource(f"The {what} {_shorten(name)} could lead out of the download directory. Use another torrent.")
    return name


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs")


def _shorten(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


def _damaged(problem: str) -> BadSource:
    return BadSource(f"The .torrent file {problem}. It is damaged; download it again.")
