"""The courier's errors. Each has one sentence that says what happened.

CourierError
├── SettingsError      a setting is missing or invalid
├── BotTokenRejected   Telegram rejects the bot token
├── PermanentError     an external system rejects the request and would again; `.code` says why
├── NotCheckedError    a secret cannot be checked without using it up
└── TemporaryError     an external system cannot answer now; a retry may succeed
    └── NotSentError   the request never reached the external system

No sentence contains a token, an address, a file or a person: it is stored in the audit, and administrators read it.
Raise these errors `from None`, because the errors of HTTP libraries print addresses.
"""

import traceback
from pathlib import Path
from typing import Literal

from interlock import NotApplied

Code = Literal[
    "forbidden",
    "not_found",
    "too_big",
    "empty",
    "disk_token_rejected",
    "bot_token_rejected",
    "blocked",
    "unreachable",
    "inactive",
    "stale_file",
    "refused",
]

HTTP_STATUS: dict[Code, int] = {
    "not_found": 404,
    "too_big": 413,
    "disk_token_rejected": 401,
    "bot_token_rejected": 401,
    "unreachable": 400,
    "stale_file": 400,
    "refused": 400,
    "empty": 400,
}
"""The HTTP status of each code, if it is not 403."""
MAX_PAUSE = 86_400.0
"""Seconds. If a server asks for a longer pause, the courier retries after a day."""


class CourierError(Exception):
    """Base class of all errors that the courier raises."""


class SettingsError(CourierError):
    """A setting is missing or invalid. Nothing was opened."""


class BotTokenRejected(CourierError):
    """Telegram rejects the bot token. The process does not start, or has ended."""


class PermanentError(CourierError):
    """An external system rejected the request. Nothing happened there, and a retry would not help."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code: Code = code
        self.status_code = HTTP_STATUS.get(code, 403)
        """The engine reads this: a status from 400 to 499 proves that an external call did not happen."""


class NotCheckedError(CourierError):
    """A secret was not checked, because checking would use it up."""


class TemporaryError(CourierError):
    """A retry may succeed. Only a status from 400 to 499 proves that an external call did not happen."""

    def __init__(self, sentence: str, *, status_code: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status_code = status_code
        self.retry_after = None if retry_after is None else min(retry_after, MAX_PAUSE)


class NotSentError(TemporaryError, NotApplied):
    """The external system was unreachable, so nothing happened there."""


def format_error(error: BaseException) -> str:
    """Format an error for the log: its type, where it was raised, and its text if it is a `CourierError`.

    Other errors print the values that they were given, so their text is left out.
    """
    frames = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    text = f": {error}" if isinstance(error, CourierError) else ""
    return f"{type(error).__name__}{text} (at {', '.join(frames)})"
