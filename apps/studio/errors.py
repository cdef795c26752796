"""The studio's exceptions."""

from typing import Literal

from interlock import Refused

Code = Literal[
    "prompt_empty",
    "prompt_too_long",
    "prompt_characters",
    "prompt_blocked",
    "prompt_flagged",
    "params_invalid",
    "credits_insufficient",
    "user_unknown",
    "not_redrivable",
]


class StudioError(Exception):
    """Base class. The message is one sentence for people that says what to do next."""


class BadSettings(StudioError):
    """The settings are not usable. Nothing was started."""


class NotFound(StudioError):
    """The object does not exist or belongs to another user."""


class Conflict(StudioError):
    """The object's current state does not allow this. Nothing was changed."""


class ModerationUnavailable(StudioError):
    """The moderation model did not answer. Nothing was stored or deducted; the order can be sent again."""


class Refusal(Refused):
    """An order is refused; nothing was stored or deducted. The code is for programs, the message for people."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code: Code = code


# ---------------------------------------------------------------- while an image is generated
class SafetyBlocked(StudioError):
    """The provider's safety filter rejected the prompt or the image. The credits are not refunded."""


class TemporaryError(StudioError):
    """The provider, the network or the storage failed; a retry may succeed."""

    def __init__(self, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after
        """Seconds to wait before the next attempt, if the provider said so."""


class PermanentError(StudioError):
    """The provider refused the request; a retry cannot succeed."""
