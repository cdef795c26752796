"""What a provider's reply means: the safety filter, trouble that may pass, or trouble that will not."""

import json
from typing import cast

import httpx

from apps.common.pauses import retry_after

from ..errors import Blocked, Hopeless, StudioError, Trouble

FILTERS = frozenset({"contentpolicyviolation", "contentsafetyviolation", "moderationblocked", "contentfilter", "responsibleaipolicyviolation"})
"""Codes of safety filters, of OpenAI's older and newer models and of Azure, without the underscores that one has and another has not."""
SPOKEN = ("safety system", "content policy")
"""What a safety filter says that names no code. It is few words, since a user pays for what is taken for a filter's."""
PASSING = frozenset({408, 409, 425, 429})
LONGEST = 200
"""Characters of the provider's own words."""


def mapping(value: object) -> dict[str, object]:
    """The value, if it is an object of JSON; else an empty one."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def parsed(body: bytes) -> object:
    """The JSON, or `None` where there is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def judged(response: httpx.Response, body: bytes, secret: str) -> StudioError:
    """What a reply that is no success means. The secret is in no sentence, even if the provider repeats it."""
    status, error = response.status_code, _error(body)
    words = _words(error, secret)
    if status in (400, 403, 422) and _filtered(error):
        return Blocked(f"The provider's safety filter refuses this prompt{words or '.'}")
    if status in PASSING or status >= 500:
        where = f"The provider at {response.request.url.netloc.decode()}, which is STUDIO_API_URL,"
        return Trouble(f"{where} cannot answer now (status {status}){words or '.'}", retry_after(response.headers))
    return Hopeless(_hopeless(status, words))


def _error(body: bytes) -> dict[str, object]:
    """What the reply says of the error. Some say it as a text, where others have an object with one."""
    said = mapping(parsed(body)).get("error")
    return {"message": said} if isinstance(said, str) else mapping(said)


def _hopeless(status: int, words: str) -> str:
    if status < 400:
        return f"The provider answers with status {status}, which is no image. Check STUDIO_API_URL."
    if status == 401:
        # Without its own words, which may repeat a part of the key.
        return "The provider does not accept the API key (status 401). Check STUDIO_API_KEY and STUDIO_API_URL, then drive the job again."
    if status == 403:
        return f"The API key may not be used for this (status 403){words or '.'} Look at what the provider allows this account."
    if status in (404, 405):
        return f"The provider has no such model or address (status {status}){words or '.'} Check STUDIO_API_URL and STUDIO_MODEL."
    return f"The provider refuses the request (status {status}){words or '.'} Look at STUDIO_MODEL, and at the account with the provider."


def _filtered(error: dict[str, object]) -> bool:
    # Azure says so twice, sometimes only in the inner one.
    codes, kind = [error.get("code"), *(mapping(error.get(inner)).get("code") for inner in ("inner_error", "innererror"))], error.get("type")
    if any(isinstance(code, str) and code.replace("_", "").lower() in FILTERS for code in (*codes, kind)):
        return True
    # Where the error has a name, that counts, and not its words.
    said, nameless = error.get("message"), not any(codes) and kind in (None, "", "invalid_request_error")
    return nameless and isinstance(said, str) and any(words in said.lower() for words in SPOKEN)


def _words(error: dict[str, object], secret: str) -> str:
    """The provider's own words, on one line and shortened, as the end of a sentence; nothing if it has none."""
    said = error.get("message")
    line = " ".join(said.replace(secret, "***").split()) if isinstance(said, str) else ""
    line = "".join(character for character in line if character.isprintable())
    if not line:
        return ""
    return f": “{line.rstrip('.') if len(line) <= LONGEST else line[: LONGEST - 1] + '…'}”."
