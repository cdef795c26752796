"""What the courier raises, each with one sentence that says what happened.

CourierError
├── BadSettings    a setting in the environment cannot be used
├── BotRefused     Telegram does not know the bot's token
├── Refusal        the outside says no, and would again: `.code` says of what sort
├── Untried        secrets that can be tried only by using them up
└── Trouble        the outside cannot now, and may later
    └── Unsent     nothing was sent at all

No sentence names a token, an address, a file or a person: it stands in the audit, and administrators read it. So these are raised `from None`, since the
errors of HTTP libraries print addresses.
"""

import traceback
from pathlib import Path
from typing import Literal

from interlock import NotApplied

Code = Literal[
    "forbidden", "not_found", "too_big", "empty", "shut_out", "bot_refused", "blocked", "unreachable", "inactive", "stale_file", "refused",
]  # fmt: skip

STATUS: dict[Code, int] = {
    "not_found": 404, "too_big": 413, "shut_out": 401, "bot_refused": 401, "unreachable": 400, "stale_file": 400, "refused": 400, "empty": 400,
}  # fmt: skip
"""The HTTP status that a refusal stands for, where it is not 403."""
LONGEST = 86_400.0
"""Seconds. Whoever asks for a longer pause is asked again after a day all the same."""


class CourierError(Exception):
    """Everything that the courier itself raises."""


class BadSettings(CourierError):
    """A setting cannot be used. Nothing was opened."""


class BotRefused(CourierError):
    """Telegram does not know the bot's token. Nothing was begun, or what ran has ended."""


class Refusal(CourierError):
    """Trying again would not help, and what was asked for did not happen."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code: Code = code
        self.status_code = STATUS.get(code, 403)
        """Read by the engine: a status from 400 to 499 proves that an outside call did not happen."""


class Untried(CourierError):
    """Nothing was asked: the answer would have cost what it is about."""


class Trouble(CourierError):
    """Trying again may help. Whether an outside call happened, only a status from 400 to 499 says."""

    def __init__(self, sentence: str, *, status_code: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status_code = status_code
        self.retry_after = None if retry_after is None else min(retry_after, LONGEST)


class Unsent(Trouble, NotApplied):
    """The outside was never reached, so nothing happened there."""


def told(error: BaseException) -> str:
    """An error for the log: its sort and where it was raised. Its words only if they are ours, since others print what they were given."""
    frames = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}{f': {error}' if isinstance(error, CourierError) else ''} (at {', '.join(frames)})"
