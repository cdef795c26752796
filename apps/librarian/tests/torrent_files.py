"""Makes .torrent files for tests. Extra keys of the info dictionary make invalid ones."""

import hashlib
from typing import Any

from bencode2 import bencode

PIECE = 16 * 1024
# Less than one piece, so that its v2 root is the hash of its only block.
CONTENT = b"It was a dark and stormy night. " * 300


def v1(name: str = "night.epub", content: bytes = CONTENT, **more: Any) -> bytes:
    return torrent(_v1(name, content) | _keys(more))


def v2(name: str = "night.epub", content: bytes = CONTENT, **more: Any) -> bytes:
    return torrent(_v2(name, content) | _keys(more))


def hybrid(name: str = "night.epub", content: bytes = CONTENT, **more: Any) -> bytes:
    return torrent(_v1(name, content) | _v2(name, content) | _keys(more))


def of_files(*paths: list[str], name: str = "night", **more: Any) -> bytes:
    """A v1 torrent of several small files."""
    files = [{b"length": 10, b"path": [element.encode() for element in path]} for path in paths]
    pieces = b"\1" * 20
    return torrent({b"name": name.encode(), b"piece length": PIECE, b"pieces": pieces, b"files": files} | _keys(more))


def of_tree(tree: dict[bytes, Any], name: str = "night") -> bytes:
    """A v2 torrent with this file tree."""
    return torrent({b"name": name.encode(), b"piece length": PIECE, b"meta version": 2, b"file tree": tree})


def file_of(content: bytes = CONTENT) -> dict[bytes, Any]:
    """The entry of a file in a v2 file tree."""
    assert 0 < len(content) <= PIECE
    return {b"": {b"length": len(content), b"pieces root": hashlib.sha256(content).digest()}}


def torrent(info: dict[bytes, Any]) -> bytes:
    return bencode({b"created by": b"a test", b"info": info} | ({b"piece layers": {}} if b"file tree" in info else {}))


def _v1(name: str, content: bytes) -> dict[bytes, Any]:
    pieces = b"".join(hashlib.sha1(content[start : start + PIECE]).digest() for start in range(0, len(content), PIECE))
    return {b"name": name.encode(), b"piece length": PIECE, b"pieces": pieces, b"length": len(content)}


def _v2(name: str, content: bytes) -> dict[bytes, Any]:
    return {
        b"name": name.encode(),
        b"piece length": PIECE,
        b"meta version": 2,
        b"file tree": {name.encode(): file_of(content)},
    }


def _keys(more: dict[str, Any]) -> dict[bytes, Any]:
    return {key.replace("_", " ").encode(): value for key, value in more.items()}
