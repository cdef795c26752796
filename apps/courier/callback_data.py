"""What a button says when it is pressed: at most 64 bytes, and nothing that a stranger could make up to their gain.

Telegram hands back whatever a client sends as a button's data, so all of it is read as written by a stranger. What only looks is checked where it is used; a
download is signed for one user and one showing of the file, so that each click has a nonce that the bot itself has made.
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from .desk import Decision

NONCE, SEAL = 6, 8
"""Bytes."""
LARGEST_ID = 2**31 - 1
"""Of a file: what its column can hold."""
LARGEST_USER = 2**52 - 1
"""Telegram promises that no id has more bits."""
LARGEST_PAGE = 999_999

_DECISIONS: dict[str, Decision] = {"A": "ACTIVE", "B": "BLOCKED"}
_NUMBER = r"(0|[1-9][0-9]{0,15})"
_SHAPES = {
    "b": re.compile(rf"b:{_NUMBER}:{_NUMBER}"),
    "f": re.compile(rf"f:{_NUMBER}"),
    "d": re.compile(rf"d:{_NUMBER}:([\w-]{{19}})", re.ASCII),
    "c": re.compile(r"c:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"),
    "a": re.compile(rf"a:{_NUMBER}:([AB])"),
}


@dataclass(frozen=True)
class Browse:
    """Show this page of this folder; of the root, if none is named."""

    folder_id: int | None
    page: int = 1


@dataclass(frozen=True)
class Look:
    """Show this file."""

    file_id: int


def _nonce() -> str:
    return secrets.token_hex(NONCE)


@dataclass(frozen=True)
class Download:
    """Deliver this file. The nonce, in hexadecimal, is that of one showing: pressed again, it is the same click."""

    file_id: int
    nonce: str = field(default_factory=_nonce)


@dataclass(frozen=True)
class Cancel:
    """Give up this delivery."""

    job_id: str


@dataclass(frozen=True)
class Decide:
    """Let this person in, or keep them out."""

    user_id: int
    status: Decision


Callback = Browse | Look | Download | Cancel | Decide


class Callbacks:
    """Writes callbacks as a button's data, and reads them."""

    def __init__(self, bot_token: str) -> None:
        self._key = hashlib.sha256(b"courier: downloads\n" + bot_token.encode()).digest()

    def pack(self, callback: Callback, user_id: int) -> str:
        """The data of a button for this user."""
        match callback:
            case Browse(folder_id, page):
                return f"b:{folder_id or 0}:{page}"
            case Look(file_id):
                return f"f:{file_id}"
            case Download(file_id, nonce):
                return f"d:{file_id}:{self._sealed(user_id, file_id, bytes.fromhex(nonce))}"
            case Cancel(job_id):
                return f"c:{job_id}"
            case Decide(decided, status):
                return f"a:{decided}:{status[0]}"

    def unpack(self, data: str | None, user_id: int) -> Callback | None:
        """What this user has pressed. None for all that `pack` never made, and for a download that was shown to somebody else."""
        shape = _SHAPES.get((data or "")[:1])
        found = shape.fullmatch(data or "") if shape else None
        if found is None:
            return None
        read: dict[str, Callable[..., Callback | None]] = {"b": _browse, "f": _look, "d": self._download, "c": Cancel, "a": _decide}
        callback = read[found[0][0]](*found.groups())
        # Compared as a whole and in constant time: that covers the seal, and every other way to write the same thing.
        return callback if callback and hmac.compare_digest(self.pack(callback, user_id), found[0]) else None

    def _sealed(self, user_id: int, file_id: int, nonce: bytes) -> str:
        seal = hmac.digest(self._key, b"%d:%d:%b" % (user_id, file_id, nonce), "sha256")[:SEAL]
        return urlsafe_b64encode(nonce + seal).decode().rstrip("=")

    def _download(self, file_id: str, sealed: str) -> Download | None:
        nonce = urlsafe_b64decode(sealed + "=")[:NONCE]
        return Download(int(file_id), nonce.hex()) if _within(file_id, LARGEST_ID) else None


def _browse(folder_id: str, page: str) -> Browse | None:
    return Browse(int(folder_id) or None, int(page)) if int(folder_id) <= LARGEST_ID and _within(page, LARGEST_PAGE) else None


def _look(file_id: str) -> Look | None:
    return Look(int(file_id)) if _within(file_id, LARGEST_ID) else None


def _decide(user_id: str, status: str) -> Decide | None:
    return Decide(int(user_id), _DECISIONS[status]) if _within(user_id, LARGEST_USER) else None


def _within(number: str, largest: int) -> bool:
    return 1 <= int(number) <= largest
