"""Translates the errors of aiogram and of the network to the courier's own errors."""

import re

import aiohttp
from aiogram import exceptions

from ..errors import Code, NotSentError, PermanentError, TemporaryError

_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ConnectionRefusedError)
_TOO_BIG = "The file is too large for this Bot API server."
_DESCRIPTIONS: list[tuple[str, Code, str]] = [
    (
        "chat not found|user not found|deactivated|PEER_ID_INVALID|initiate conversation",
        "unreachable",
        "Telegram cannot find the chat with this user.",
    ),
    (
        "file identifier|FILE_REFERENCE|no document in the request",
        "stale_file",
        "Telegram no longer knows this file ID.",
    ),
    ("must be non-empty", "empty", "The file is empty, and Telegram does not accept empty files."),
    ("file is too big", "too_big", _TOO_BIG),
]
_PERMANENT: dict[type[exceptions.TelegramAPIError], tuple[Code, str]] = {
    exceptions.TelegramEntityTooLarge: ("too_big", _TOO_BIG),
    exceptions.TelegramUnauthorizedError: (
        "bot_token_rejected",
        "Telegram rejects the bot token. Set COURIER_BOT_TOKEN to the token from @BotFather.",
    ),
    exceptions.TelegramForbiddenError: ("blocked", "The user has blocked the bot."),
}


def translate_error(error: exceptions.AiogramError | OSError) -> PermanentError | TemporaryError:
    """Translate an error of aiogram or of the network.

    Raise the result `from None`: the original error may contain addresses with the token.
    """
    match error:
        case exceptions.TelegramRetryAfter():
            sentence = f"Telegram rate limit: retry in {error.retry_after} seconds."
            return TemporaryError(sentence, status_code=429, retry_after=float(error.retry_after))
        case exceptions.TelegramServerError():
            return TemporaryError("Telegram has a server error (5xx). Try again later.", status_code=500)
        case exceptions.TelegramConflictError():
            return TemporaryError(
                "Another bot is running with this token. Stop it: Telegram allows one poller per token.",
                status_code=409,
            )
        case exceptions.TelegramAPIError() if type(error) is not exceptions.TelegramNetworkError:
            return _api_error(error)
        case exceptions.TelegramAPIError() | OSError():
            return _network_error(error.__cause__ if isinstance(error, exceptions.TelegramAPIError) else error)
        case _:
            return TemporaryError(
                "Telegram's answer is not readable. A proxy may have answered instead. Try again later."
            )


def _network_error(cause: BaseException | None) -> TemporaryError:
    if isinstance(cause, _UNREACHABLE):
        return NotSentError("Telegram is unreachable. Nothing was sent. Try again later.")
    if isinstance(cause, TimeoutError):
        return TemporaryError("Telegram did not answer in time. Try again later.")
    return TemporaryError("The connection to Telegram broke before it answered. Try again later.")


def _api_error(error: exceptions.TelegramAPIError) -> PermanentError | TemporaryError:
    description = error.message
    if description.startswith("Too Many Requests"):
        return TemporaryError("Telegram rate limit: retry later.", status_code=429)
    for pattern, code, sentence in _DESCRIPTIONS:
        if re.search(pattern, description, re.IGNORECASE):
            return PermanentError(code, sentence)
    # Repeat Telegram's description only if it has no digit and no dot, and so no ID, address or file name.
    quoted = f": {description}" if re.fullmatch(r"[A-Za-z' ,:_-]{1,120}", description) else ""
    return PermanentError(*_PERMANENT.get(type(error), ("refused", f"Telegram rejects the request{quoted}.")))
