"""Keeps tokens, secret parts of addresses and user IDs out of logs."""

import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import quote

from typing_extensions import override

REDACTED = "***"
VERBOSE_LOGGERS = ("httpx", "httpcore", "aiohttp.access", "aiogram")
MIN_SECRET_LENGTH = 6
"""Characters. Shorter values are not treated as secrets, because removing them would garble every text."""

_RULES = [
    # As part of an address, where the colon may be quoted, and alone.
    (re.compile(r"bot\d+(?::|%3A)[\w%-]+", re.ASCII | re.IGNORECASE), f"bot{REDACTED}"),
    (re.compile(r"\b\d{3,}(?::|%3A)[\w-]{20,}", re.ASCII | re.IGNORECASE), REDACTED),
    (re.compile(r"\b(OAuth|Bearer|Basic)\s+[^\s'\",;)\]}]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    (
        re.compile(
            r"((?:access_token|refresh_token|client_secret)[\"']?\s*[=:]\s*b?[\"']?)[^\s\"'&,;)\]}]+", re.IGNORECASE
        ),
        rf"\1{REDACTED}",
    ),
    # The path of a download link contains its signature: anyone with the link can read the file.
    (re.compile(r"(https?://[^/\s\"'<>]{0,255}/r?disk/)[^\s\"'<>]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(https?://[^/\s\"'<>@:]{0,255}:)[^/\s\"'<>@]{1,255}@", re.IGNORECASE), rf"\1{REDACTED}@"),
    # Match an address or path from its start only. Starting anywhere would take quadratic time on long texts.
    (re.compile(r"(?<![^\s\"'<>])([^\s\"'<>?/]*+/[^\s\"'<>?]*+)\?[^\s\"'<>]+"), rf"\1?{REDACTED}"),
]
_secrets: set[str] = set()
_alias_key = secrets.token_bytes(32)


def add_secrets(values: Iterable[str]) -> None:
    """Remove these values from every redacted text from now on."""
    for secret in values:
        if len(secret) >= MIN_SECRET_LENGTH:
            # Also as they appear in addresses, forms and representations of bytes.
            _secrets.update((secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]))


def redact_text(text: str) -> str:
    """Remove tokens, query strings of addresses, and the secrets that were added."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


class RedactingFilter(logging.Filter):
    """A log filter that redacts every record: its message, arguments, traceback and extra values."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        parts = [_message(record), *([_PLAIN.formatException(record.exc_info)] if record.exc_info else [])]
        record.msg, record.args = "\n".join(parts), None
        # Move the traceback into the message, because some formatters format the exception again.
        record.exc_info = record.exc_text = None
        for name, value in vars(record).items():
            setattr(record, name, _redact_value(value))
        return True


_PLAIN = logging.Formatter()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # Logging itself would print the arguments of a record that it cannot format.
        return f"{record.msg} {record.args}"


def _redact_value(value: object) -> object:
    if isinstance(value, str | BaseException):
        return redact_text(str(value))
    if isinstance(value, Mapping):
        return {
            set_alias_key: _redact_value(each) for set_alias_key, each in cast("Mapping[object, object]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_redact_value(each) for each in cast("Sequence[object]", value)]
    return value


def set_alias_key(secret: str) -> None:
    """Set the key of user aliases. Processes with the same key log the same alias for a user."""
    global _alias_key  # noqa: PLW0603 - as `_hidden`, it is one for all the logs of a process
    _alias_key = hmac.digest(secret.encode(), b"names of people in logs", "sha256")


def user_alias(user_id: int) -> str:
    """Return a stable alias of a user for logs, which does not reveal the ID."""
    # There are few enough IDs to try them all, so a hash without a key would reveal them.
    return f"u_{hmac.digest(_alias_key, str(user_id).encode(), 'sha256').hex()[:8]}"


def protect_logs() -> None:
    """Redact every handler of the root logger, and log only warnings of verbose libraries."""
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    handlers = [*logging.getLogger().handlers, *([logging.lastResort] if logging.lastResort else [])]
    for handler in handlers:
        if not any(isinstance(each, RedactingFilter) for each in handler.filters):
            handler.addFilter(RedactingFilter())
