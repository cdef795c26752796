"""What may stand in a log: no token, no address's secret part, and nobody's id."""

import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import quote

from typing_extensions import override

GONE = "***"
CHATTY = ("httpx", "httpcore", "aiohttp.access", "aiogram")
SHORTEST = 6
"""Characters. What is shorter is no secret, and taking it out would spoil every text."""

_RULES = [
    # As part of an address, where the colon may be quoted, and by itself.
    (re.compile(r"bot\d+(?::|%3A)[\w%-]+", re.ASCII | re.IGNORECASE), f"bot{GONE}"),
    (re.compile(r"\b\d{3,}(?::|%3A)[\w-]{20,}", re.ASCII | re.IGNORECASE), GONE),
    (re.compile(r"\b(OAuth|Bearer|Basic)\s+[^\s'\",;)\]}]+", re.IGNORECASE), rf"\1 {GONE}"),
    (re.compile(r"((?:access_token|refresh_token|client_secret)[\"']?\s*[=:]\s*b?[\"']?)[^\s\"'&,;)\]}]+", re.IGNORECASE), rf"\1{GONE}"),
    # The path of a download link is its signature: whoever has it has the file.
    (re.compile(r"(https?://[^/\s\"'<>]{0,255}/r?disk/)[^\s\"'<>]+", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(r"(https?://[^/\s\"'<>@:]{0,255}:)[^/\s\"'<>@]{1,255}@", re.IGNORECASE), rf"\1{GONE}@"),
    # A whole address or path, from its beginning: begun anywhere within it, a long one would take as long as its square.
    (re.compile(r"(?<![^\s\"'<>])([^\s\"'<>?/]*+/[^\s\"'<>?]*+)\?[^\s\"'<>]+"), rf"\1?{GONE}"),
]
_hidden: set[str] = set()
_key = secrets.token_bytes(32)


def hide(values: Iterable[str]) -> None:
    """From now on these very values stand in no text that is scrubbed, whatever is around them."""
    for secret in values:
        if len(secret) >= SHORTEST:
            # As an address, a form and a representation of bytes would show it.
            _hidden.update((secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]))


def scrub(text: str) -> str:
    """The text without tokens of bots and of Yandex, without the query strings of addresses, and without what is hidden."""
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, GONE)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


class Redacting(logging.Filter):
    """Lets every record pass, scrubbed: its message with the arguments and the traceback in it, and all that was given with it."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        parts = [_message(record), *([_PLAIN.formatException(record.exc_info)] if record.exc_info else [])]
        record.msg, record.args = "\n".join(parts), None
        # In the message, since there are formatters that make the traceback once more, out of the exception.
        record.exc_info = record.exc_text = None
        for name, value in vars(record).items():
            setattr(record, name, _scrubbed(value))
        return True


_PLAIN = logging.Formatter()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # Logging itself would print the arguments of a record that it cannot format.
        return f"{record.msg} {record.args}"


def _scrubbed(value: object) -> object:
    if isinstance(value, str | BaseException):
        return scrub(str(value))
    if isinstance(value, Mapping):
        return {key: _scrubbed(each) for key, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(each) for each in cast("Sequence[object]", value)]
    return value


def key(secret: str) -> None:
    """From now on people's names in logs depend on this secret: processes that have the same one name everybody the same. Before, only this process does."""
    global _key  # noqa: PLW0603 - as `_hidden`, it is one for all the logs of a process
    _key = hmac.digest(secret.encode(), b"names of people in logs", "sha256")


def who(user_id: int) -> str:
    """A person, in logs: always the same for the same one, and not their id."""
    # There are few enough ids to try all of them, so that without a key a hash would give them away.
    return f"u_{hmac.digest(_key, str(user_id).encode(), 'sha256').hex()[:8]}"


def quiet() -> None:
    """Make logs fit to be read: the libraries say only what went wrong, and every handler of the root scrubs what it is given."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    handlers = [*logging.getLogger().handlers, *([logging.lastResort] if logging.lastResort else [])]
    for handler in handlers:
        if not any(isinstance(each, Redacting) for each in handler.filters):
            handler.addFilter(Redacting())
