"""The default error policy: whether an error is retried, and after how long."""

import io
import urllib.error
from datetime import timedelta
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.error_policy import (
    LONGEST,
    RetryDecision,
    decide_by_kind,
    decide_retry,
    describe,
    proves_not_applied,
)
from interlock.errors import CommitTimeout, NotApplied, PayloadError, TransitionRefused, UsageError

AGAIN = RetryDecision(retryable=True)
NEVER = RetryDecision(retryable=False)


def foreign(module: str, name: str, *bases: type[Exception]) -> Any:
    """Return an error class with the name that a library gives it."""
    return type(name, bases or (Exception,), {"__module__": module})


class Response:
    """A response of httpx or requests; in requests an error response is false."""

    def __init__(self, status_code: object, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}

    def __bool__(self) -> bool:
        return False


def httpx_like(status: object, headers: dict[str, str] | None = None) -> Exception:
    error = foreign("httpx", "HTTPStatusError")(f"status {status}")
    error.response = Response(status, headers)
    return error  # type: ignore[no-any-return]


def aiohttp_like(status: object, headers: dict[str, str] | None = None) -> Exception:
    error = foreign("aiohttp.client_exceptions", "ClientResponseError")(f"status {status}")
    error.status, error.headers = status, headers
    return error  # type: ignore[no-any-return]


def urllib_like(status: int, headers: dict[str, str] | None = None) -> Exception:
    message = Message()
    for name, value in (headers or {}).items():
        message[name] = value
    return urllib.error.HTTPError("https://example.com", status, "no", message, io.BytesIO())


LIBRARIES = [httpx_like, aiohttp_like, urllib_like]


# ---------------------------------------------------------------- the default decision
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 418, 422, 431, 451, 499])
def test_client_errors_are_not_retried(library: Any, status: int) -> None:
    assert decide_retry(library(status)) == NEVER


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_temporary_http_errors_are_retried(library: Any, status: int) -> None:
    assert decide_retry(library(status)) == AGAIN


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        ConnectionRefusedError(),
        RuntimeError("?"),
        CommitTimeout(),
        NotApplied(),
    ],
)
def test_other_errors_are_retried(error: Exception) -> None:
    assert decide_retry(error) == AGAIN


@pytest.mark.parametrize("error", [PayloadError("?"), UsageError("?"), TransitionRefused("?")])
def test_refusals_by_interlock_are_not_retried(error: Exception) -> None:
    assert decide_retry(error) == NEVER


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("asked", "after"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Sun, 26 Oct 2025 08:00:30 GMT", 30.0),
        ("Sun, 26 Oct 2025 07:00:00 GMT", 0.0),
        ("9" * 400, LONGEST),
        ("Sun, 26 Oct 2099 08:00:30 GMT", LONGEST),
        ("Sun, 26 Oct 2025 08:00:30 -0000", None),
        (f"Sun, 26 Oct 2025 08:00:30 +{'9' * 30}", None),
        ("-5", None),
        ("nan", None),
        ("9" * 999, LONGEST),
        ("9" * 1001, None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_header_sets_the_delay(library: Any, status: int, asked: str, after: float | None) -> None:
    """In seconds, or as a date that counts from the response's date, so that no local clock is needed."""
    error = library(status, {"Retry-After": asked, "Date": "Sun, 26 Oct 2025 08:00:00 GMT"})
    assert decide_retry(error) == RetryDecision(retryable=True, after=after)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "Sun, 26 Oct 2025 08:00:30 GMT"},
        {"retry-after": "Sun, 26 Oct 2025 08:00:30 GMT", "date": "today"},
    ],
)
def test_retry_after_date_without_a_date_header_is_ignored(headers: dict[str, str]) -> None:
    assert decide_retry(httpx_like(503, headers)) == AGAIN


dates = st.from_regex(
    r"\A(Sun, )?[0-9]{1,3} Oct [0-9]{1,6} [0-9]{1,2}:[0-9]{2}(:[0-9]+)? (GMT|[+-][0-9]{1,12}|[A-Z]*)\Z"
)


@given(st.text() | dates, st.text() | dates)
def test_any_retry_after_header_gives_a_valid_delay_or_none(asked: str, date: str) -> None:
    after = decide_retry(httpx_like(503, {"Retry-After": asked, "Date": date})).after
    assert after is None or 0 <= after <= LONGEST


def test_lower_case_headers_are_read() -> None:
    assert decide_retry(httpx_like(429, {"retry-after": "3"})).after == 3


@pytest.mark.parametrize(
    ("value", "after"),
    [(9, 9.0), (timedelta(minutes=1), 60.0), (10**9, LONGEST), (-1, None), (True, None), ("9", None)],
)
def test_retry_after_attribute_sets_the_delay(value: object, after: float | None) -> None:
    """Errors of any library may have it."""
    error = foreign("chat.errors", "Flooded")("flood")
    error.retry_after = value
    assert decide_retry(error) == RetryDecision(retryable=True, after=after)


@pytest.mark.parametrize(
    ("status", "decision", "unapplied"),
    [(403, NEVER, True), (400, NEVER, True), (429, AGAIN, True), (500, AGAIN, False), (None, AGAIN, False)],
)
def test_status_code_attribute_is_read_from_any_error(
    status: int | None, decision: RetryDecision, unapplied: bool
) -> None:
    """The engine knows no classes of provider clients: an application that wraps their errors gives them a
    `status_code`.
    """
    error = foreign("chat.errors", "Refused")("said the provider")
    error.status_code = status
    assert (decide_retry(error), proves_not_applied(error)) == (decision, unapplied)


@pytest.mark.parametrize(
    "name", ["TelegramForbiddenError", "TelegramBadRequest", "TelegramRetryAfter", "TelegramServerError"]
)
def test_errors_of_telegram_are_not_known_by_name(name: str) -> None:
    """The courier, which uses that library, translates its errors itself."""
    error = foreign("aiogram.exceptions", name)("said Telegram")
    assert (decide_retry(error), proves_not_applied(error)) == (AGAIN, False)


@pytest.mark.parametrize("status", [None, "404", True, 42, 4040, 404.0])
def test_invalid_status_is_ignored(status: object) -> None:
    assert decide_retry(httpx_like(status)) == AGAIN


def test_code_without_headers_is_not_an_http_status() -> None:
    error = RuntimeError("exit")
    error.code = 404  # type: ignore[attr-defined]
    assert decide_retry(error) == AGAIN
    assert not proves_not_applied(error)


def test_error_whose_properties_raise_is_retried() -> None:
    class Hostile(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not yet")

        retry_after = response

        @property
        def headers(self) -> object:
            return {1: 2}.__iter__()

    class Odd(Exception):
        headers = type("Headers", (), {"get": lambda self: None})()

    assert decide_retry(Hostile()) == AGAIN
    assert decide_retry(Odd()) == AGAIN
    assert not proves_not_applied(Hostile())


def test_group_is_retried_if_all_its_errors_are() -> None:
    """After the longest delay that one of them asks for."""
    busy, busier = httpx_like(429, {"Retry-After": "3"}), httpx_like(503, {"Retry-After": "5"})
    assert decide_retry(ExceptionGroup("both", [busy, busier, TimeoutError()])) == RetryDecision(
        retryable=True, after=5
    )
    assert not decide_retry(ExceptionGroup("both", [busy, ExceptionGroup("inner", [httpx_like(404)])])).retryable


# ---------------------------------------------------------------- a kind's own error policy
def test_error_policy_of_the_kind_takes_precedence() -> None:
    assert decide_by_kind(httpx_like(404), lambda _: RetryDecision(retryable=True, after=7)) == RetryDecision(
        retryable=True, after=7
    )
    assert decide_by_kind(TimeoutError(), lambda _: NEVER) == NEVER


def test_error_policy_that_returns_none_leaves_the_default() -> None:
    assert decide_by_kind(httpx_like(404), lambda _: None) is None
    assert decide_by_kind(httpx_like(404), None) is None


def broken(error: Exception) -> RetryDecision | None:
    raise KeyError("no such table")


@pytest.mark.parametrize(
    ("error_policy", "said"),
    [
        (broken, "KeyError: 'no such table'"),
        (lambda _: True, "returned True: return a RetryDecision"),
        (lambda _: RetryDecision(retryable=True, after=-1), "from zero"),
    ],
)
def test_failing_error_policy_is_ignored_and_noted_in_the_error(error_policy: Any, said: str) -> None:
    error = httpx_like(404)
    assert decide_by_kind(error, error_policy) is None
    note = next(line for line in describe(error).splitlines() if "error policy failed to classify" in line)
    assert said in note
    assert describe(error).splitlines()[-1] == "httpx.HTTPStatusError: status 404"
