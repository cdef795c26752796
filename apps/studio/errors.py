"""What can go wrong, by whose doing."""

from typing import Literal

from interlock import Refused

Code = Literal[
    "prompt_empty", "prompt_too_long", "prompt_characters", "prompt_blocked", "prompt_flagged", "params_invalid", "credits_insufficient", "user_unknown",
    "not_redrivable",
]


class StudioError(Exception):
    """Something of the studio's own, in one sentence that says what to do."""


class BadSettings(StudioError):
    """The settings can never work. Nothing was begun."""


class NotFound(StudioError):
    """There is no such thing, or it is somebody else's."""


class Conflict(StudioError):
    """It cannot be done to this thing as it stands now. Nothing was changed."""


class Unjudged(StudioError):
    """The moderation model could not be asked. Nothing was stored or deducted: try again."""


class Refusal(Refused):
    """A job is not made: nothing was stored or deducted. The code is for programs, the sentence for people."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code: Code = code


# ---------------------------------------------------------------- while an image is made
class Blocked(StudioError):
    """The provider's safety filter says no. Asking again would not help, and credits are kept."""


class Trouble(StudioError):
    """The provider, or the way to it, is in trouble that may pass."""

    def __init__(self, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after
        """Seconds that the provider asked us to wait for."""


class Hopeless(StudioError):
    """The provider will not do it, and asking again would not help."""
