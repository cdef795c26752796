"""What may be downloaded: a magnet link or a .torrent, read and judged before anything is stored.

A torrent is known by the hash of its description: v1 (SHA-1, 40 hex digits), v2 (SHA-256, 64), or both (a hybrid). qBittorrent names it by 40
digits, of the v2 hash if it knows one, and so renames a hybrid when its description arrives. Here it is named by v1 where there is one.

Names inside a torrent become paths on disk, so a name that could lead anywhere else is refused, whatever qBittorrent itself would do with it.
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

LONGEST_MAGNET = 8 * 1024
LARGEST_TORRENT = 10 * 1024 * 1024
DEEPEST = 64  # lists and dicts inside one another; a book lies three or four deep

type_of_hash = re.compile(r"urn:(btih|btmh):(.*)", re.DOTALL)
hash_parameter = re.compile(r"xt(\.[0-9]+)?", re.IGNORECASE)
# Trackers, web seeds, sources and manifests of other networks, peers, and nodes of the distributed hash table.
address_parameter = re.compile(r"(tr|ws|as|xs|mt|x\.pe|dht)(\.[0-9]+)?", re.IGNORECASE)
v1_hex, v1_base32, v2_multihash = re.compile(r"[0-9a-f]{40}"), re.compile(r"[a-z2-7]{32}"), re.compile(r"1220([0-9a-f]{64})")

Bencoded = bytes | int | list["Bencoded"] | dict[bytes, "Bencoded"]
Dictionary = dict[bytes, Bencoded]


@dataclass(frozen=True)
class Source:
    """One torrent, as it was given. At least one of its hashes is there, all in lower case."""

    text: str
    """The magnet link, or `torrent:<id>` for a .torrent."""
    id: str
    """40 hex digits: the v1 hash where there is one, else the first 40 of v2."""
    v1: str | None
    v2: str | None
    name: str | None
    torrent: bytes | None = None
    addresses: tuple[str, ...] = ()
    """The addresses that qBittorrent connects to for this source."""


def source(given: str | bytes) -> Source:
    """Read a magnet link (text) or a .torrent (bytes). Raises BadSource, and nothing else."""
    return magnet(given) if isinstance(given, str) else torrent(given)


def magnet(text: str) -> Source:
    """Read a magnet link. Whatever is taken here, qBittorrent reads the same hashes from."""
    text = text.strip()
    if any(map(_unprintable, text)):
        raise BadSource("The magnet link has control characters in it: copy it again, as one line.")
    if len(text.encode()) > LONGEST_MAGNET:
        raise BadSource(f"The magnet link is longer than {LONGEST_MAGNET} bytes: leave trackers out of it, or give the .torrent.")
    prefix, query = text[:8], text[8:]
    if prefix != "magnet:?":
        raise BadSource('That is not a magnet link: one begins with "magnet:?".')
    v1: set[str] = set()
    v2: set[str] = set()
    names: list[str] = []
    addresses: list[str] = []
    for pair in query.rstrip("&").split("&"):
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadSource("The magnet link has a parameter without a value: copy it again, whole.")
        if hash_parameter.fullmatch(key):
            _take_hash(unquote_plus(value), v1, v2)
        elif key.lower() == "dn" and value:
            names.append(_safe(unquote_plus(value), "display name (dn)"))
        elif address_parameter.fullmatch(key) and not unquote_plus(value).lower().startswith("urn:"):
            addresses.append(unquote_plus(value))
    if len(v1) > 1 or len(v2) > 1:
        raise BadSource("The magnet link names two different torrents: give one link for each.")
    return _source(next(iter(v1), None), next(iter(v2), None), names[0] if names else None, text=text, addresses=addresses)


def torrent(data: bytes) -> Source:
    """Read a .torrent. Its hashes are those of the info dictionary's own bytes: what is not written in the one canonical way is refused."""
    if len(data) > LARGEST_TORRENT:
        raise BadSource(f"The .torrent is larger than {LARGEST_TORRENT} bytes: give a magnet link instead.")
    whole = _decoded(data)
    info = whole.get(b"info")
    if not isinstance(info, dict):
        raise BadSource("The .torrent does not say what is in it (no info dictionary): download it again.")
    names = [_text(info[key], "name") for key in (b"name.utf-8", b"name") if key in info]
    if b"name" not in info:
        raise BadSource("The .torrent has no name: it is damaged, download it again.")
    version = info.get(b"meta version", 1)
    if version not in (1, 2):
        raise BadSource(f"The .torrent is of a version that nobody here knows ({_shown(version)}): give a v1 or v2 torrent.")
    raw = bencode(info)
    if b"pieces" in info or version == 1:
        _check_v1(info)
    if version == 2:
        _check_v2(info)
    v1 = hashlib.sha1(raw, usedforsecurity=False).hexdigest() if b"pieces" in info else None
    v2 = hashlib.sha256(raw).hexdigest() if version == 2 else None
    return _source(v1, v2, names[0], torrent=data, addresses=_addresses(whole))


def _source(
    v1: str | None, v2: str | None, name: str | None, *, text: str | None = None, torrent: bytes | None = None, addresses: Iterable[str],
) -> Source:
    id = v1 or (v2 or "")[:40]
    if not id:
        raise BadSource("The magnet link has no info-hash (xt=urn:btih:… or xt=urn:btmh:…), so nobody can tell what to download: copy it again, whole.")
    return Source(text or f"torrent:{id}", id, v1, v2, name, torrent, tuple(addresses))


def _take_hash(urn: str, v1: set[str], v2: set[str]) -> None:
    """Read one `xt`. One that is no BitTorrent hash is left alone, as magnet links may name a file in several networks."""
    named = type_of_hash.fullmatch(urn)
    if named is None:
        return
    sort, given = named[1], named[2].lower()
    digits: str | None = None
    if sort == "btmh" and (multihash := v2_multihash.fullmatch(given)):
        digits = multihash[1]
    elif sort == "btih" and v1_hex.fullmatch(given):
        digits = given
    elif sort == "btih" and v1_base32.fullmatch(given):
        digits = base64.b32decode(given, casefold=True).hex()
    if digits is None or not digits.strip("0"):
        raise BadSource(f"{_shown(urn)} is no info-hash: v1 has 40 hex or 32 base32 digits after urn:btih:, v2 has 1220 and 64 hex digits after urn:btmh:.")
    (v1 if sort == "btih" else v2).add(digits)


# ---------------------------------------------------------------- .torrent


def _decoded(data: bytes) -> Dictionary:
    """Decode a whole .torrent. What comes back encodes to the same bytes again, part by part."""
    try:
        decoded = cast(Bencoded, bdecode(data))
    except ValueError:
        raise BadSource("That is not a .torrent: it is not canonical bencode. Download it again.") from None
    if _deeper_than(DEEPEST, decoded):
        raise BadSource(f"The .torrent is nested more than {DEEPEST} deep: no honest one is.")
    # The decoder refuses unsorted and doubled keys, of which others might read the first where this reads the last. The hashes rest on it, so it is held here.
    if not isinstance(decoded, dict) or bencode(decoded) != data:
        raise BadSource("That is not a .torrent: it is not a canonical bencoded dictionary. Download it again.")
    return decoded


def _addresses(whole: Dictionary) -> Iterator[str]:
    """Trackers, web seeds and nodes, from lists of any depth."""
    for key in (b"announce", b"announce-list", b"url-list", b"httpseeds"):
        yield from map(_address, _flat(whole.get(key, [])))
    nodes = whole.get(b"nodes", [])
    for node in nodes if isinstance(nodes, list) else [nodes]:
        # A pair of host and port.
        for host in map(_address, _flat(node[:1] if isinstance(node, list) else node)):
            yield f"[{host}]" if ":" in host else host


def _flat(value: Bencoded) -> list[Bencoded]:
    inside = _inside(value)
    return [value] if not isinstance(value, dict | list) else [each for inner in inside for each in _flat(inner)]


def _address(value: Bencoded) -> str:
    return value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value)


def _deeper_than(limit: int, value: Bencoded) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Bencoded) -> list[Bencoded]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_v1(info: Dictionary) -> None:
    pieces = info.get(b"pieces")
    if not isinstance(pieces, bytes) or not pieces or len(pieces) % 20:
        raise BadSource("The .torrent has no checksums (pieces): it is damaged, download it again.")
    if not _positive(info.get(b"piece length")):
        raise BadSource("The .torrent does not say how long a piece is: it is damaged, download it again.")
    if b"files" not in info:
        _check_file(info)
        return
    files = info[b"files"]
    if not isinstance(files, list) or not files:
        raise BadSource("The .torrent lists no files: it is damaged, download it again.")
    for file in files:
        if not isinstance(file, dict) or b"path" not in file:
            raise BadSource("The .torrent lists a file without a path: it is damaged, download it again.")
        _check_file(file)
        for key in (b"path", b"path.utf-8"):
            if key in file:
                _check_path(file[key])


def _check_v2(info: Dictionary) -> None:
    if not _positive(info.get(b"piece length")):
        raise BadSource("The .torrent does not say how long a piece is: it is damaged, download it again.")
    for file in _leaves(info.get(b"file tree")):
        _check_file(file)


def _leaves(tree: Bencoded | None) -> Iterator[Dictionary]:
    """Every file of a v2 file tree, with the names on the way to it checked. A file is the entry named "" of its own dictionary."""
    if not isinstance(tree, dict) or not tree or b"" in tree:
        raise BadSource("The .torrent has no proper file tree: it is damaged, download it again.")
    for name, below in tree.items():
        _text(name, "file name")
        if isinstance(below, dict) and set(below) == {b""}:
            file = below[b""]
            if not isinstance(file, dict):
                raise BadSource("The .torrent has a file that is not described: it is damaged, download it again.")
            yield file
        else:
            yield from _leaves(below)


def _check_file(file: Dictionary) -> None:
    length = file.get(b"length")
    if not isinstance(length, int) or length < 0:
        raise BadSource("The .torrent has a file without a length: it is damaged, download it again.")
    if b"symlink path" in file:
        _check_path(file[b"symlink path"])


def _check_path(path: Bencoded) -> None:
    if not isinstance(path, list) or not path:
        raise BadSource("The .torrent lists a file without a path: it is damaged, download it again.")
    for element in path:
        _text(element, "file name")


def _positive(value: Bencoded | None) -> bool:
    return isinstance(value, int) and value > 0


# ---------------------------------------------------------------- names


def _text(name: Bencoded, what: str) -> str:
    """A name as text. One in an old encoding is taken as well as it can be; what could be a separator in it still counts as one."""
    if not isinstance(name, bytes):
        raise BadSource(f"The .torrent has a {what} that is not text: it is damaged, download it again.")
    return _safe(name.decode(errors="replace"), what)


def _safe(name: str, what: str) -> str:
    """Let a name through that can only ever name something in the directory it is put in."""
    led_away = name in ("", ".", "..") or "/" in name or "\\" in name or re.match(r"[A-Za-z]:", name)
    if led_away or any(map(_unprintable, name)):
        raise BadSource(f"The {what} {_shown(name)} could lead out of the download directory, so this torrent is not taken.")
    return name


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"
