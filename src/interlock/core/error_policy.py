"""Classifies errors: whether a retry may help, whether an external call happened, and how the error is described.

Most libraries store the HTTP status of an error in `status_code` or `response`, and a requested delay in
`retry_after` or a header. No attribute says that nothing was sent, so this module lists such errors of common HTTP
clients by name. It imports none of these libraries.
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

from ..errors import InterlockError, NotApplied, PayloadError, TransitionRefused, UsageError
from .clock import seconds
from .payload import clean

LONGEST = 86_400.0
"""The longest delay, in seconds, that an error can request: a day."""

_HEADER = 1000
"""Longer headers are ignored: no date or number needs more characters."""
_RETRYABLE_STATUSES = {408, 425, 429}
_NEVER_RETRIED = (PayloadError, UsageError, TransitionRefused)
_IN_DOUBT = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

# Raised before anything was sent: the name, the connection or the handshake failed.
_UNSENT = {
    "socket.gaierror", "socket.herror", "ssl.SSLCertVerificationError",
    "httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout",
    "httpcore.ConnectError", "httpcore.ConnectTimeout", "httpcore.PoolTimeout",
    "aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError",
    "requests.ConnectTimeout", "urllib3.NewConnectionError", "urllib3.ConnectTimeoutError",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Whether a retry may help, and the delay in seconds that the error requests."""

    retryable: bool
    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            seconds(self.after, "The delay of a decision")


ErrorPolicy = Callable[[Exception], RetryDecision | None]
"""A kind's function that decides whether to retry an error. None means the default decision."""


def decide_retry(error: Exception) -> RetryDecision:
    """The default decision about an error that a handler raised.

    These errors are not retried: an HTTP status from 400 to 499, except 408, 425 and 429, and a value, call or
    transition that Interlock refused. All others are retried, after the delay that the error requests. An exception
    group is retried if each of its errors is.
    """
    if isinstance(error, ExceptionGroup):
        members = cast("ExceptionGroup[Exception]", error).exceptions
        decisions = [decide_retry(each) for each in members]
        return RetryDecision(
            all(each.retryable for each in decisions),
            max((each.after for each in decisions if each.after is not None), default=None),
        )
    status, headers = _http(error)
    if isinstance(error, _NEVER_RETRIED) or (status is not None and refused(status)):
        return RetryDecision(retryable=False)
    after = _number(_read(error, "retry_after"))
    return RetryDecision(retryable=True, after=retry_after(headers) if after is None else after)


def decide_by_kind(error: Exception, error_policy: ErrorPolicy | None) -> RetryDecision | None:
    """The decision of a kind's own error policy; None leaves it to the default.

    If the policy raises, the default decides, and a note on the error says so.
    """
    if error_policy is None:
        return None
    try:
        decision = error_policy(error)
        if decision is not None and not isinstance(decision, RetryDecision):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"it returned {decision!r}: return a RetryDecision or None")  # noqa: TRY301 - handled like its other errors
    except BaseException as fault:  # noqa: BLE001 - it must not replace the job's own error
        error.add_note(f"The kind's error policy failed to classify this error: {headline(fault)}")
        return None
    return decision


def refused(status: int) -> bool:
    """Whether an HTTP status means that a retry of the same request will be refused, too."""
    return 400 <= status < 500 and status not in _RETRYABLE_STATUSES


def proves_not_applied(error: BaseException) -> bool:
    """Whether an error proves that the external call did not happen.

    It is proof if the connection was refused or never made, if the name was not found, if the response has an HTTP
    status from 400 to 499, or if the error is `NotApplied` or was raised *from* any of these. A timeout, a reset and
    any other status leave doubt. An error that was only raised while handling another one also leaves doubt, since it
    may come from a second call.
    """
    for each in islice(_causes(error), 20):
        status, _ = _http(each)
        if status is not None:
            return 400 <= status < 500
        if isinstance(each, NotApplied | ConnectionRefusedError) or not _UNSENT.isdisjoint(_names(each)):
            return True
        if isinstance(each, _IN_DOUBT):
            return False
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain of causes. Errors of urllib and requests have their cause as the first argument."""
    inner: object = error
    while isinstance(inner, BaseException):
        yield inner
        inner = inner.__cause__ or next(iter(inner.args), None)


def _names(error: BaseException) -> set[str]:
    return {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}


def _http(error: BaseException) -> tuple[int | None, object]:
    """The HTTP status and the headers of an error, if it has them."""
    response, headers = _read(error, "response"), _read(error, "headers")
    # Compare with None: a response of requests is false if its status is an error.
    if response is not None:
        headers = _read(response, "headers")
        found = [_read(response, "status_code"), _read(response, "status")]
    else:
        # Any error may have a `status` or a `code`. It is an HTTP status if the error also has headers, even empty.
        is_http = headers is not None or "headers" in error.__dict__
        found = [_read(error, name) for name in ("status_code", *(("status", "code") if is_http else ()))]
    return next((each for each in found if isinstance(each, int) and 100 <= each <= 599), None), headers


def retry_after(headers: object) -> float | None:
    """Seconds that a `Retry-After` header requests, at most a day.

    A date is compared with the `Date` header of the same response, not with the local clock.
    """
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
    except BaseException:  # noqa: BLE001 - a library's headers may raise anything
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


# ---------------------------------------------------------------- the text of an error
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHON = f"{Path(traceback.__file__).parent}{os.sep}"


def describe(error: BaseException, limit: int = 8000) -> str:
    """The text of an error as it is stored with a job: the traceback from the first frame of user code, then
    `Type: message` as the last line. A long text is cut in the middle.

    It never raises, and its result can always be stored.
    """
    try:
        text = _traceback(error)
    except BaseException as fault:  # noqa: BLE001 - an error without a readable text must still be reported
        text = f"{type(error).__name__}: (no traceback: formatting it raised {type(fault).__name__})"
    if len(text) > limit:
        left_out = f"\n  … {len(text) - limit:,} characters left out …\n"
        room = max(limit - len(left_out), 2)
        text = text[: room // 3] + left_out + text[-(room - room // 3) :]
    return clean(text, limit)


def _traceback(error: BaseException) -> str:
    formatted = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    user_frames = _user_frames(formatted.stack)
    if not user_frames and isinstance(error, InterlockError):
        # The engine raised it: its own frames would only hide the sentence.
        return headline(error)
    formatted.stack[:] = user_frames or formatted.stack
    text = "".join(formatted.format()).rstrip()
    last = headline(error)
    return text if text.endswith(f"\n{last}") or text == last else f"{text}\n{last}"


def _user_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames from the first one outside Interlock and the standard library."""

    def is_library(frame: traceback.FrameSummary) -> bool:
        return frame.filename.startswith(_OURS) or (
            frame.filename.startswith(_PYTHON) and "-packages" not in frame.filename
        )

    first = next((place for place, frame in enumerate(stack) if not is_library(frame)), len(stack))
    return stack[first:]


def headline(error: BaseException) -> str:
    """An error in one line, `Type: message`. It never raises, even if `str(error)` does."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - a fixed text replaces the message
        message = "<exception str() failed>"
    return f"{name}: {message[:500]}" if message else name
