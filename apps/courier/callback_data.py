"""The data of a button: at most 64 bytes, which a client may forge.

Telegram returns any data that a client sends, so all of it is untrusted. Buttons that only show something are checked
when they are handled. A download button is signed for one user and one display of the file, so that each click has a
nonce of the bot.
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from .service_models import Decision

NONCE_BYTES, SIGNATURE_BYTES = 6, 8
MAX_FILE_ID = 2**31 - 1
"""The largest value of the column."""
MAX_USER_ID = 2**52 - 1
"""Telegram guarantees that no ID has more bits."""
MAX_PAGE = 999_999

_DECISIONS: dict[str, Decision] = {"A": "ACTIVE", "B": "BLOCKED"}
_NUMBER = r"(0|[1-9][0-9]{0,15})"
_PATTERNS = {
    "b": re.compile(rf"b:{_NUMBER}:{_NUMBER}"),
    "f": re.compile(rf"f:{_NUMBER}"),
    "d": re.compile(rf"d:{_NUMBER}:([\w-]{{19}})", re.ASCII),
    "c": re.compile(r"c:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"),
    "a": re.compile(rf"a:{_NUMBER}:([AB])"),
}


@dataclass(frozen=True)
class Browse:
    """Show this page of a folder; without an ID, of the root."""

    folder_id: int | None
    page: int = 1


@dataclass(frozen=True)
class ViewFile:
    """Show this file."""

    file_id: int


def _new_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


@dataclass(frozen=True)
class Download:
    """Deliver this file. Each display has its own hexadecimal nonce, so pressing a button twice is the same click."""

    file_id: int
    nonce: str = field(default_factory=_new_nonce)


@dataclass(frozen=True)
class Cancel:
    """Cancel this delivery."""

    job_id: str


@dataclass(frozen=True)
class Decide:
    """Allow or block this person."""

    user_id: int
    status: Decision


Callback = Browse | ViewFile | Download | Cancel | Decide


class CallbackCodec:
    """Encodes callbacks as button data, and decodes them."""

    def __init__(self, bot_token: str) -> None:
        self._key = hashlib.sha256(b"courier: downloads\n" + bot_token.encode()).digest()

    def pack(self, callback: Callback, user_id: int) -> str:
        """Encode the data of a button for this user."""
        match callback:
            case Browse(folder_id, page):
                return f"b:{folder_id or 0}:{page}"
            case ViewFile(file_id):
                return f"f:{file_id}"
            case Download(file_id, nonce):
                return f"d:{file_id}:{self._sign(user_id, file_id, bytes.fromhex(nonce))}"
            case Cancel(job_id):
                return f"c:{job_id}"
            case Decide(decided, status):
                return f"a:{decided}:{status[0]}"

    def unpack(self, data: str | None, user_id: int) -> Callback | None:
        """Decode the data that this user sent. Return None for forged data and for another user's download."""
        pattern = _PATTERNS.get((data or "")[:1])
        match = pattern.fullmatch(data or "") if pattern else None
        if match is None:
            return None
        parsers: dict[str, Callable[..., Callback | None]] = {
            "b": _browse,
            "f": _view_file,
            "d": self._download,
            "c": Cancel,
            "a": _decide,
        }
        callback = parsers[match[0][0]](*match.groups())
        # Compare the whole data in constant time: this covers the signature and every other spelling of the same data.
        return callback if callback and hmac.compare_digest(self.pack(callback, user_id), match[0]) else None

    def _sign(self, user_id: int, file_id: int, nonce: bytes) -> str:
        signature = hmac.digest(self._key, b"%d:%d:%b" % (user_id, file_id, nonce), "sha256")[:SIGNATURE_BYTES]
        return urlsafe_b64encode(nonce + signature).decode().rstrip("=")

    def _download(self, file_id: str, signed: str) -> Download | None:
        nonce = urlsafe_b64decode(signed + "=")[:NONCE_BYTES]
        return Download(int(file_id), nonce.hex()) if _is_between(file_id, MAX_FILE_ID) else None


def _browse(folder_id: str, page: str) -> Browse | None:
    return (
        Browse(int(folder_id) or None, int(page))
        if int(folder_id) <= MAX_FILE_ID and _is_between(page, MAX_PAGE)
        else None
    )


def _view_file(file_id: str) -> ViewFile | None:
    return ViewFile(int(file_id)) if _is_between(file_id, MAX_FILE_ID) else None


def _decide(user_id: str, status: str) -> Decide | None:
    return Decide(int(user_id), _DECISIONS[status]) if _is_between(user_id, MAX_USER_ID) else None


def _is_between(number: str, maximum: int) -> bool:
    return 1 <= int(number) <= maximum
