"""Classifies error responses of the Images API: safety filter, temporary or permanent."""

import json
from typing import cast

import httpx

from apps.common.retry_after import parse_retry_after

from ..errors import PermanentError, SafetyBlocked, StudioError, TemporaryError

FILTER_CODES = frozenset(
    {
        "contentpolicyviolation",
        "contentsafetyviolation",
        "moderationblocked",
        "contentfilter",
        "responsibleaipolicyviolation",
    }
)
"""Error codes of the safety filters of OpenAI and Azure, in lower case and without underscores."""
FILTER_PHRASES = ("safety system", "content policy")
"""Phrases of safety filters that send no code. The list is short, because users pay for rejections."""
RETRYABLE = frozenset({408, 409, 425, 429})
MAX_MESSAGE = 200
"""The longest part of a provider's message, in characters."""


def as_object(value: object) -> dict[str, object]:
    """The value if it is a JSON object, else an empty one."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def parse_json(body: bytes) -> object:
    """Parse JSON; None if it is not valid."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def classify_error(response: httpx.Response, body: bytes, secret: str) -> StudioError:
    """Classify an error response. The secret is removed from the message, even if the provider repeats it."""
    status, error = response.status_code, _error(body)
    words = _provider_message(error, secret)
    if status in (400, 403, 422) and _is_safety_filter(error):
        return SafetyBlocked(f"The provider's safety filter rejected this prompt{words or '.'}")
    if status in RETRYABLE or status >= 500:
        where = f"The provider at {response.request.url.netloc.decode()} (STUDIO_API_URL)"
        return TemporaryError(
            f"{where} is unavailable (status {status}){words or '.'}", parse_retry_after(response.headers)
        )
    return PermanentError(_permanent_message(status, words))


def _error(body: bytes) -> dict[str, object]:
    """The error object of a response. Some providers send a string instead of an object."""
    error = as_object(parse_json(body)).get("error")
    return {"message": error} if isinstance(error, str) else as_object(error)


def _permanent_message(status: int, words: str) -> str:
    if status < 400:
        return f"The provider responded with status {status} and no image. Check STUDIO_API_URL."
    if status == 401:
        # The provider's message may repeat a part of the key.
        return (
            "The provider does not accept the API key (status 401). "
            "Check STUDIO_API_KEY and STUDIO_API_URL, then redrive the job."
        )
    if status == 403:
        return (
            f"The API key lacks permission (status 403){words or '.'} Check the account's permissions at the provider."
        )
    if status in (404, 405):
        return (
            f"The provider has no such model or address (status {status}){words or '.'} "
            "Check STUDIO_API_URL and STUDIO_MODEL."
        )
    return (
        f"The provider rejected the request (status {status}){words or '.'} "
        "Check STUDIO_MODEL and the account at the provider."
    )


def _is_safety_filter(error: dict[str, object]) -> bool:
    # Azure has a code in the error and in its inner error, sometimes only in the latter.
    codes, kind = (
        [error.get("code"), *(as_object(error.get(inner)).get("code") for inner in ("inner_error", "innererror"))],
        error.get("type"),
    )
    if any(isinstance(code, str) and code.replace("_", "").lower() in FILTER_CODES for code in (*codes, kind)):
        return True
    # The phrases count only if the error has no code and no specific type.
    message, without_code = error.get("message"), not any(codes) and kind in (None, "", "invalid_request_error")
    return without_code and isinstance(message, str) and any(words in message.lower() for words in FILTER_PHRASES)


def _provider_message(error: dict[str, object], secret: str) -> str:
    """The provider's message as the end of a sentence, on one line and shortened; empty if there is none."""
    message = error.get("message")
    line = " ".join(message.replace(secret, "***").split()) if isinstance(message, str) else ""
    line = "".join(character for character in line if character.isprintable())
    if not line:
        return ""
    return f": “{line.rstrip('.') if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + '…'}”."
