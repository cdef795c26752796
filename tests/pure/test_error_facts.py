"""An error says whether trying again may help, whether the outside was reached, and how it is told."""

import io
import socket
import ssl
import traceback
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import CommitTimeout, NotApplied, PayloadError, TransitionRefused, UsageError
from interlock.taxonomy import LONGEST, Verdict, by_kind, describe, judge, surely_not_applied

AGAIN = Verdict(retryable=True)
NEVER = Verdict(retryable=False)


def foreign(module: str, name: str, *bases: type[Exception]) -> Any:
    """An error class as a library of this name has it."""
    return type(name, bases or (Exception,), {"__module__": module})


class Response:
    """As httpx and requests have it; that of requests is false if its status is an error."""

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


# ---------------------------------------------------------------- judge
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 418, 422, 431, 451, 499])
def test_what_the_outside_refuses_is_not_tried_again(library: Any, status: int) -> None:
    assert judge(library(status)) == NEVER


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(library: Any, status: int) -> None:
    assert judge(library(status)) == AGAIN


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), ConnectionRefusedError(), RuntimeError("?"), CommitTimeout(), NotApplied()])
def test_what_is_not_known_to_be_hopeless_is_tried_again(error: Exception) -> None:
    assert judge(error) == AGAIN


@pytest.mark.parametrize("error", [PayloadError("?"), UsageError("?"), TransitionRefused("?")])
def test_what_interlock_refused_is_not_tried_again(error: Exception) -> None:
    assert judge(error) == NEVER


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
def test_the_outside_says_how_long_to_wait(library: Any, status: int, asked: str, after: float | None) -> None:
    """In seconds or as a date, which counts from the date of the answer, so that no clock of ours is needed."""
    error = library(status, {"Retry-After": asked, "Date": "Sun, 26 Oct 2025 08:00:00 GMT"})
    assert judge(error) == Verdict(retryable=True, after=after)


@pytest.mark.parametrize("headers", [{"Retry-After": "Sun, 26 Oct 2025 08:00:30 GMT"}, {"retry-after": "Sun, 26 Oct 2025 08:00:30 GMT", "date": "today"}])
def test_a_date_without_a_date_to_count_from_says_nothing(headers: dict[str, str]) -> None:
    assert judge(httpx_like(503, headers)) == AGAIN


dates = st.from_regex(r"\A(Sun, )?[0-9]{1,3} Oct [0-9]{1,6} [0-9]{1,2}:[0-9]{2}(:[0-9]+)? (GMT|[+-][0-9]{1,12}|[A-Z]*)\Z")


@given(st.text() | dates, st.text() | dates)
def test_whatever_the_outside_says_is_read_or_says_nothing(asked: str, date: str) -> None:
    after = judge(httpx_like(503, {"Retry-After": asked, "Date": date})).after
    assert after is None or 0 <= after <= LONGEST


def test_headers_in_small_letters_are_read_too() -> None:
    assert judge(httpx_like(429, {"retry-after": "3"})).after == 3


@pytest.mark.parametrize(("value", "after"), [(9, 9.0), (timedelta(minutes=1), 60.0), (10**9, LONGEST), (-1, None), (True, None), ("9", None)])
def test_an_error_may_itself_say_how_long_to_wait(value: object, after: float | None) -> None:
    """By an attribute, whatever library it is of."""
    error = foreign("chat.errors", "Flooded")("flood")
    error.retry_after = value
    assert judge(error) == Verdict(retryable=True, after=after)


@pytest.mark.parametrize(("status", "verdict", "unapplied"), [
    (403, NEVER, True), (400, NEVER, True), (429, AGAIN, True), (500, AGAIN, False), (None, AGAIN, False)])
def test_error_of_any_library_says_its_status_by_an_attribute(status: int | None, verdict: Verdict, unapplied: bool) -> None:
    """The engine knows no class of an application's library, such as a client of one provider: whoever wraps its errors gives them a `status_code`."""
    error = foreign("chat.errors", "Refused")("said the provider")
    error.status_code = status
    assert (judge(error), surely_not_applied(error)) == (verdict, unapplied)


@pytest.mark.parametrize("name", ["TelegramForbiddenError", "TelegramBadRequest", "TelegramRetryAfter", "TelegramServerError"])
def test_error_of_one_applications_library_is_not_known_by_name(name: str) -> None:
    """The courier, which uses that library, translates its errors by itself."""
    error = foreign("aiogram.exceptions", name)("said Telegram")
    assert (judge(error), surely_not_applied(error)) == (AGAIN, False)


@pytest.mark.parametrize("status", [None, "404", True, 42, 4040, 404.0])
def test_a_status_that_is_none_is_not_taken_for_one(status: object) -> None:
    assert judge(httpx_like(status)) == AGAIN


def test_a_code_that_is_not_beside_headers_is_not_http() -> None:
    error = RuntimeError("exit")
    error.code = 404  # type: ignore[attr-defined]
    assert judge(error) == AGAIN
    assert not surely_not_applied(error)


def test_an_error_whose_properties_raise_is_judged_all_the_same() -> None:
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

    assert judge(Hostile()) == AGAIN
    assert judge(Odd()) == AGAIN
    assert not surely_not_applied(Hostile())


def test_a_group_is_tried_again_if_each_of_its_errors_is() -> None:
    """After the longest delay that one of them asks for."""
    busy, busier = httpx_like(429, {"Retry-After": "3"}), httpx_like(503, {"Retry-After": "5"})
    assert judge(ExceptionGroup("both", [busy, busier, TimeoutError()])) == Verdict(retryable=True, after=5)
    assert not judge(ExceptionGroup("both", [busy, ExceptionGroup("inner", [httpx_like(404)])])).retryable


# ---------------------------------------------------------------- a kind's own taxonomy
def test_the_kinds_own_taxonomy_has_the_first_word() -> None:
    assert by_kind(httpx_like(404), lambda _: Verdict(retryable=True, after=7)) == Verdict(retryable=True, after=7)
    assert by_kind(TimeoutError(), lambda _: NEVER) == NEVER


def test_what_the_kinds_own_taxonomy_does_not_judge_is_judged_by_default() -> None:
    assert by_kind(httpx_like(404), lambda _: None) is None
    assert by_kind(httpx_like(404), None) is None


def broken(error: Exception) -> Verdict | None:
    raise KeyError("no such table")


@pytest.mark.parametrize(
    ("taxonomy", "said"),
    [(broken, "KeyError: 'no such table'"), (lambda _: True, "answered True: give a Verdict"), (lambda _: Verdict(retryable=True, after=-1), "from zero")],
)
def test_a_taxonomy_that_fails_has_no_word_and_the_errors_text_says_so(taxonomy: Any, said: str) -> None:
    error = httpx_like(404)
    assert by_kind(error, taxonomy) is None
    note = next(line for line in describe(error).splitlines() if "taxonomy failed to classify" in line)
    assert said in note
    assert describe(error).splitlines()[-1] == "httpx.HTTPStatusError: status 404"


# ---------------------------------------------------------------- surely_not_applied
def from_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def in_context(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


REFUSED = ConnectionRefusedError(111, "Connection refused")
PROOFS: list[BaseException] = [
    REFUSED,
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLCertVerificationError("self-signed"),
    NotApplied("the outside said so"),
    *(library(status) for library in LIBRARIES for status in (400, 403, 404, 408, 409, 429)),
    foreign("httpx", "ConnectError")("no"),
    foreign("httpx", "ConnectTimeout")("no"),
    foreign("httpx", "PoolTimeout")("no"),
    foreign("httpcore", "ConnectError")("no"),
    foreign("aiohttp.client_exceptions", "ClientConnectorError")("no"),
    foreign("aiohttp.client_exceptions", "ClientConnectorDNSError", foreign("aiohttp.client_exceptions", "ClientConnectorError"))("no"),
    foreign("aiohttp.client_exceptions", "ConnectionTimeoutError", TimeoutError)("no"),
    foreign("requests.exceptions", "ConnectTimeout")("no"),
    foreign("requests.exceptions", "ConnectionError")(from_cause(Exception("max retries"), foreign("urllib3.exceptions", "NewConnectionError")("no"))),
    foreign("urllib3.exceptions", "NewConnectionError")("no"),
    urllib.error.URLError(REFUSED),
    urllib.error.URLError(socket.gaierror(-2, "no")),
    from_cause(httpx_like(0), REFUSED),
    from_cause(RuntimeError("could not call"), from_cause(OSError("all attempts failed"), REFUSED)),
]
DOUBTS: list[BaseException] = [
    TimeoutError(),
    ConnectionResetError(),
    ConnectionAbortedError(),
    BrokenPipeError(),
    OSError("?"),
    RuntimeError("?"),
    KeyboardInterrupt(),
    *(library(status) for library in LIBRARIES for status in (302, 500, 502, 503, 504)),
    foreign("httpx", "ReadTimeout")("no"),
    foreign("httpx", "RemoteProtocolError")("no"),
    foreign("elsewhere", "ConnectError")("whatever that means there"),
    foreign("requests.exceptions", "ConnectionError")(foreign("urllib3.exceptions", "ProtocolError")("Connection aborted.", ConnectionResetError())),
    urllib.error.URLError(TimeoutError()),
    ExceptionGroup("both", [REFUSED, TimeoutError()]),
    from_cause(TimeoutError(), REFUSED),
    from_cause(httpx_like(502), REFUSED),
]


@pytest.mark.parametrize("error", PROOFS, ids=repr)
def test_an_error_that_proves_that_nothing_was_sent_or_taken_removes_the_doubt(error: BaseException) -> None:
    """Protocol 23."""
    assert surely_not_applied(error)


@pytest.mark.parametrize("error", DOUBTS, ids=repr)
def test_any_other_error_leaves_the_doubt(error: BaseException) -> None:
    """Protocol 23: time-outs, resets and 5xx; and whatever is not known."""
    assert not surely_not_applied(error)


def test_what_was_raised_while_another_error_was_handled_proves_nothing() -> None:
    """The first call was refused, and the second one, made instead, broke in the middle."""
    assert not surely_not_applied(in_context(foreign("httpx", "RemoteProtocolError")("disconnected"), REFUSED))


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert not surely_not_applied(first)


# ---------------------------------------------------------------- describe
def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_the_text_tells_where_it_happened_and_ends_with_what_it_was() -> None:
    text = describe(raised(ValueError("too small")))
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in raised\n    raise error\n" in text
    assert text.splitlines()[-1] == "ValueError: too small"


def test_what_called_the_handler_is_left_out() -> None:
    """Frames of Interlock, and of Python itself, up to the user's first."""
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(int, "x").exception()
        deep = pool.submit(lambda: int("y")).exception()
    assert deep is not None
    assert error is not None
    assert any("concurrent" in frame.filename for frame in traceback.extract_tb(deep.__traceback__))
    assert "concurrent" not in describe(deep)
    assert 'int("y")' in describe(deep)
    assert "concurrent" in describe(error), "there is no user's frame, so what there is is told"


def test_the_frames_below_the_users_are_kept() -> None:
    with pytest.raises(UsageError) as caught:
        Verdict(retryable=True, after=-1)
    assert "in test_the_frames_below" in describe(caught.value)
    assert "clock.py" in describe(caught.value)


def test_causes_are_told_too() -> None:
    text = describe(from_cause(raised(RuntimeError("outer")), raised(KeyError("inner"))))
    assert "KeyError: 'inner'" in text
    assert text.splitlines()[-1] == "RuntimeError: outer"


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (ValueError("one\n  two\n\nthree"), "ValueError: one two three"),
        (ValueError(), "ValueError"),
        (SyntaxError("bad", ("f.py", 1, 1, "x +", 1, 2)), "SyntaxError: bad (f.py, line 1)"),
        (ExceptionGroup("several", [ValueError("a")]), "ExceptionGroup: several (1 sub-exception)"),
        (NotApplied("no"), "interlock.errors.NotApplied: no"),
    ],
)
def test_the_last_line_is_the_type_and_the_message(error: Exception, last: str) -> None:
    assert describe(raised(error)).splitlines()[-1] == last
    error.add_note("a note\nof two lines")
    assert describe(error).splitlines()[-1] == last
    assert "of two lines" in describe(error)


def test_a_long_text_is_cut_in_the_middle() -> None:
    def fall(depth: int) -> None:
        if depth:
            fall(depth - 1) if depth % 2 else (fall(depth - 1), None)
        raise ValueError("at last " + "x" * 9000)

    with pytest.raises(ValueError, match="at last") as caught:
        fall(200)
    text = describe(caught.value)
    assert len(text) <= 8000
    assert text.startswith("Traceback")
    assert "characters left out" in text
    assert text.splitlines()[-1].startswith("ValueError: at last xxx")


def test_an_error_that_cannot_be_told_is_told_to_be_one() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Shy(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError("nor notes")

        @property
        def __cause__(self) -> None:  # type: ignore[override]
            raise RuntimeError("nor causes")

    assert describe(raised(Mute())).splitlines()[-1].endswith("Mute: <exception str() failed>")
    assert "Shy" in describe(Shy()).splitlines()[-1]


@given(st.text(st.characters(codec=None)), st.integers(1, 300))
def test_the_text_can_be_stored_and_is_no_longer_than_asked(message: str, limit: int) -> None:
    text = describe(ValueError(message), limit)
    assert len(text) <= limit
    assert "\0" not in text
    text.encode()
