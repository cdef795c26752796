"""What an error means: whether trying again may help, whether the outside was reached at all, and how it is told.

An error of any library carries its HTTP status in `status_code` or `response`, and a requested delay in `retry_after`
or a header. No attribute says that nothing was sent at all, so errors of common HTTP clients that mean it are listed by
name; the engine imports none of these libraries.
"""

import os
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import cast

from .clock import seconds
from .errors import InterlockError, NotApplied, PayloadError, TransitionRefused, UsageError
from .payload import clean

LONGEST = 86_400.0
"""An error that asks for a longer delay than a day is asked again after a day."""

_HEADER = 1000
"""Characters of a header that are read: no date or number needs more."""
_AGAIN = {408, 425, 429}
_HOPELESS = (PayloadError, UsageError, TransitionRefused)
_IN_DOUBT = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

# Raised before anything was sent: no name, no connection, no handshake.
_UNSENT = {
    "socket.gaierror", "socket.herror", "ssl.SSLCertVerificationError",
    "httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout", "httpcore.ConnectError", "httpcore.ConnectTimeout", "httpcore.PoolTimeout",
    "aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError",
    "requests.ConnectTimeout", "urllib3.NewConnectionError", "urllib3.ConnectTimeoutError",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether trying again may help, and the delay in seconds that the error itself asks for."""

    retryable: bool
    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            seconds(self.after, "The delay of a verdict")


Taxonomy = Callable[[Exception], Verdict | None]
"""A kind's own judgement of an error; None leaves it to the default."""


def judge(error: Exception) -> Verdict:
    """What to make of an error that a handler raised, unless its kind knows better.

    What can never work is not tried again: an HTTP status from 400 to 499 but for 408, 425 and 429, and a value, call or move that Interlock refused.
    All else is, with the delay that the error asks for. A group of errors is tried again if each of them is.
    """
    if isinstance(error, ExceptionGroup):
        members = cast("ExceptionGroup[Exception]", error).exceptions
        verdicts = [judge(each) for each in members]
        return Verdict(all(each.retryable for each in verdicts), max((each.after for each in verdicts if each.after is not None), default=None))
    status, headers = _http(error)
    if isinstance(error, _HOPELESS) or (status is not None and refused(status)):
        return Verdict(retryable=False)
    after = _number(_read(error, "retry_after"))
    return Verdict(retryable=True, after=retry_after(headers) if after is None else after)


def by_kind(error: Exception, taxonomy: Taxonomy | None) -> Verdict | None:
    """What a kind's own taxonomy makes of an error. One that itself raises has no word, and the error's text says so."""
    if taxonomy is None:
        return None
    try:
        verdict = taxonomy(error)
        if verdict is not None and not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"it answered {verdict!r}: give a Verdict or None")  # noqa: TRY301 - told as any other fault of it
    except BaseException as fault:  # noqa: BLE001 - it must not replace the job's own error
        error.add_note(f"The kind's taxonomy failed to classify this error: {headline(fault)}")
        return None
    return verdict


def refused(status: int) -> bool:
    """Whether an HTTP status says that the same request will be refused again."""
    return 400 <= status < 500 and status not in _AGAIN


def surely_not_applied(error: BaseException) -> bool:
    """Whether an error proves that the outside call did not happen.

    It does if the connection was refused or never made, if the name was not found, if the answer was an HTTP status from 400 to 499, or if it is
    `NotApplied`; so does an error that was raised *from* such a one. A time-out, a reset and any other status leave doubt, and so does what was merely
    raised while another error was handled: a second call may have been under way.
    """
    for each in islice(_told(error), 20):
        status, _ = _http(each)
        if status is not None:
            return 400 <= status < 500
        if isinstance(each, NotApplied | ConnectionRefusedError) or not _UNSENT.isdisjoint(_names(each)):
            return True
        if isinstance(each, _IN_DOUBT):
            return False
    return False


def _told(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it says that it comes from: its cause, or the error that it was made of, as those of urllib and requests are."""
    inner: object = error
    while isinstance(inner, BaseException):
        yield inner
        inner = inner.__cause__ or next(iter(inner.args), None)


def _names(error: BaseException) -> set[str]:
    return {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}


def _http(error: BaseException) -> tuple[int | None, object]:
    """The HTTP status of an error and its headers, where it has them."""
    response, headers = _read(error, "response"), _read(error, "headers")
    # Compared with None, since a response of requests is false if its status is an error.
    if response is not None:
        headers = _read(response, "headers")
        found = [_read(response, "status_code"), _read(response, "status")]
    else:
        # Anything may have a `status` or a `code`; beside headers, even empty ones, it is HTTP's.
        spoken = headers is not None or "headers" in error.__dict__
        found = [_read(error, name) for name in ("status_code", *(("status", "code") if spoken else ()))]
    return next((each for each in found if isinstance(each, int) and 100 <= each <= 599), None), headers


def retry_after(headers: object) -> float | None:
    """Seconds that a `Retry-After` among headers asks for, a day at most. A date counts from the answer's own `Date`, whatever our clock says."""
    asked = _header(headers, "Retry-After")
    if asked is None or re.fullmatch(r"[0-9]+(\.[0-9]+)?", asked.strip()):
        return None if asked is None else _number(float(asked))
    then, sent = _date(asked), _date(_header(headers, "Date"))
    return None if then is None or sent is None else _number(max((then - sent).total_seconds(), 0.0))


def _header(headers: object, name: str) -> str | None:
    get = _read(headers, "get")
    if not callable(get):
        return None
    try:
        value = get(name) or get(name.lower())
    except BaseException:  # noqa: BLE001 - a library's headers may raise anything, too
        return None
    return value if isinstance(value, str) and len(value) <= _HEADER else None


def _date(text: str | None) -> datetime | None:
    try:
        found = None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return None if found is None or found.tzinfo is None else found


def _number(value: object) -> float | None:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
        return None
    return float(min(number, LONGEST))


def _read(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except BaseException:  # noqa: BLE001 - a property of a library's error may raise anything, and then counts as missing
        return None


# ---------------------------------------------------------------- telling it
_OURS = f"{Path(__file__).parent}{os.sep}"
_PYTHON = f"{Path(traceback.__file__).parent}{os.sep}"


def describe(error: BaseException, limit: int = 8000) -> str:
    """The text of an error as a job keeps it: its traceback from the user's first frame on, cut in the middle, and `Type: message` as its last line.

    It never raises, and it can be stored.
    """
    try:
        text = _traceback(error)
    except BaseException as fault:  # noqa: BLE001 - an error without a readable text must still be reported
        text = f"{type(error).__name__}: (its traceback cannot be told: {type(fault).__name__})"
    if len(text) > limit:
        left_out = f"\n  … {len(text) - limit:,} characters left out …\n"
        room = max(limit - len(left_out), 2)
        text = text[: room // 3] + left_out + text[-(room - room // 3) :]
    return clean(text, limit)


def _traceback(error: BaseException) -> str:
    told = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    users = _users(told.stack)
    if not users and isinstance(error, InterlockError):
        # The engine itself says this, so its own frames would only hide the sentence.
        return headline(error)
    told.stack[:] = users or told.stack
    text = "".join(told.format()).rstrip()
    last = headline(error)
    return text if text.endswith(f"\n{last}") or text == last else f"{text}\n{last}"


def _users(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames from the first one that is neither ours nor Python's own."""

    def machinery(frame: traceback.FrameSummary) -> bool:
        return frame.filename.startswith(_OURS) or (frame.filename.startswith(_PYTHON) and "-packages" not in frame.filename)

    first = next((place for place, frame in enumerate(stack) if not machinery(frame)), len(stack))
    return stack[first:]


def headline(error: BaseException) -> str:
    """An error in one line, `Type: message`. It never raises, whatever the error's own text does."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - told in place of the message
        message = "<exception str() failed>"
    return f"{name}: {message[:500]}" if message else name
