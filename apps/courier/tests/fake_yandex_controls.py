"""What the fake Yandex Disk holds, and what a test may do to it; `yandex.py` serves it."""

import asyncio
import hashlib
import posixpath
import random
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from apps.common.tests.servers import Served

Where = Literal["resources", "download", "content", "token"]
Host = Literal["api", "downloader", "storage"]
PIECE = 1 << 20
SMALL = PIECE // 4
MADE = "2026-01-15T10:00:00+00:00"


@dataclass(frozen=True)
class Generated:
    """So many bytes that nobody keeps: each piece is made when it is read, the same every time, and no two pieces are alike."""

    size: int
    seed: int = 0

    @cached_property
    def _noise(self) -> bytes:
        return random.Random(self.seed).randbytes(PIECE - 8)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop`, within one piece."""
        number, at = divmod(start, PIECE)
        return (number.to_bytes(8, "big") + self._noise)[at : at + stop - start]

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` up to `stop`, or to the end, in small parts."""
        stop = self.size if stop is None else stop
        while start < stop:
            end = min(start - start % SMALL + SMALL, stop)
            yield self.read(start, end)
            start = end


@dataclass(frozen=True)
class Kept(Generated):
    """The same for bytes that are given."""

    content: bytes = b""

    def read(self, start: int, stop: int) -> bytes:
        return self.content[start:stop]


@dataclass
class Node:
    """A file, or a folder, which has no body."""

    path: str
    body: Generated | None = None
    md5: str = ""
    sha256: str = ""

    def row(self) -> dict[str, Any]:
        name = posixpath.basename(self.path) or "disk"
        id = hashlib.sha256(self.path.encode()).hexdigest()
        row: dict[str, Any] = {"name": name, "path": f"disk:{self.path}", "created": MADE, "modified": MADE, "resource_id": f"1:{id}", "revision": 1}
        if self.body is None:
            return row | {"type": "dir"}
        return row | {"type": "file", "size": self.body.size, "md5": self.md5, "sha256": self.sha256, "mime_type": "application/octet-stream"}


@dataclass(frozen=True)
class Asked:
    """One request that arrived. Of an Authorization header only the first word is kept."""

    where: Where | Literal["redirect"]
    host: Host
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class Gate:
    """Holds one answer back. `arrived` is set when the answer has come so far; `open` lets it go on."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        self._open = True
        for loop, opened in self._waiting:
            loop.call_soon_threadsafe(opened.set)

    async def passed(self) -> None:
        opened = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), opened))
        self.arrived.set()
        if not self._open:
            await opened.wait()


@dataclass
class Fault:
    times: int
    status: int = 0
    retry_after: str | None = None
    after: int = 0
    cuts: bool = False
    gate: Gate | None = None


def canonical(path: str) -> str | None:
    """`/a/b` for `disk:/a/b`, `/a/b` and `a/b`; None for what names no place on the disk."""
    scheme, colon, rest = path.partition(":")
    rest = (rest if scheme == "disk" else "") if colon and "/" not in scheme else path
    return None if not rest or ".." in rest.split("/") else "/" + posixpath.normpath("/" + rest).strip("/")


class Controls(Served):
    """What a test does to the disk, at any time and from its own thread. A fault counts `times`, and faults of one place take their turns."""

    def __init__(self) -> None:
        super().__init__()
        self.client_id, self.client_secret = "courier-app", secrets.token_hex(16)
        self.token, self.refresh_token = "y0_" + secrets.token_hex(20), "1:" + secrets.token_hex(20)
        self.expires_in = 31_536_000
        self.keeps_token = False
        """Whether a renewal answers the access token that there was, as Yandex may."""
        self.log: list[Asked] = []
        self.served = 0
        """Bytes of content that were written out, in all."""
        self.nodes: dict[str, Node] = {"/": Node("/")}
        self.links: dict[str, str] = {}
        self.gone = 410
        self._valid = {self.token}
        self._renewable = True
        self._faults: dict[Where, list[Fault]] = {"resources": [], "download": [], "content": [], "token": []}
        self._corrupt: set[str] = set()
        self._ignores_ranges = False
        self._lock = threading.Lock()

    def mkdir(self, path: str) -> None:
        """A folder, with those above it."""
        whole = canonical(path)
        assert whole, "the path names no place on the disk"
        while whole not in self.nodes:
            self.nodes[whole] = Node(whole)
            whole = posixpath.dirname(whole)

    def put(self, path: str, content: bytes | Generated) -> Node:
        """A file, with the folders above it."""
        body = Kept(len(content), content=content) if isinstance(content, bytes) else content
        md5, sha256 = hashlib.md5(), hashlib.sha256()
        for piece in body.pieces():
            md5.update(piece)
            sha256.update(piece)
        whole = canonical(path)
        assert whole, "the path names no place on the disk"
        self.mkdir(posixpath.dirname(whole))
        self.nodes[whole] = Node(whole, body, md5.hexdigest(), sha256.hexdigest())
        return self.nodes[whole]

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it."""
        whole = canonical(path)
        for node in [node for node in self.nodes if node == whole or node.startswith(f"{whole}/")]:
            del self.nodes[node]

    def revoke(self, *, refresh: bool = False) -> None:
        """The access token is no longer valid; with `refresh`, nor is the refresh token."""
        self._valid.clear()
        self._renewable = self._renewable and not refresh

    def expire_links(self, status: int = 410) -> None:
        """Every link that was given out so far answers this status."""
        self.links.clear()
        self.gone = status

    def fail(self, where: Where, status: int, *, retry_after: float | str | None = None, times: int = 1) -> None:
        """Answer with this status."""
        self._faults[where].append(Fault(times, status, None if retry_after is None else str(retry_after)))

    def stall(self, where: Where, *, times: int = 1) -> None:
        """Take the request, and answer nothing."""
        self._faults[where].append(Fault(times, gate=Gate()))

    def cut(self, where: Where, *, after: int = 0, times: int = 1) -> None:
        """Close the connection after so many bytes of the body."""
        self._faults[where].append(Fault(times, after=after, cuts=True))

    def gate(self, where: Where, *, after: int = 0, times: int = 1) -> Gate:
        """The body stands still after so many bytes, until the gate is opened."""
        gate = Gate()
        self._faults[where].append(Fault(times, after=after, gate=gate))
        return gate

    def corrupt(self, path: str) -> None:
        """Serve other bytes of the same number, for as long as `heal` is not called."""
        self._corrupt.add(canonical(path) or "")

    def ignore_ranges(self) -> None:
        """Answer 200 and everything to a request for a part, for as long as `heal` is not called."""
        self._ignores_ranges = True

    def heal(self) -> None:
        """No more faults."""
        for faults in self._faults.values():
            faults.clear()
        self._corrupt.clear()
        self._ignores_ranges = False

    def asked(self, where: Where | Literal["redirect"]) -> list[Asked]:
        """The requests that arrived there, the refused ones too. Content is asked for at the storage; `redirect` is the downloader on the way to it."""
        return [asked for asked in self.log if asked.where == where]

    def _fault(self, where: Where) -> Fault | None:
        with self._lock:
            faults = self._faults[where]
            if not faults:
                return None
            faults[0].times -= 1
            return faults[0] if faults[0].times else faults.pop(0)
