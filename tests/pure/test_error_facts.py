"""Facts about an error: whether it proves that a call had no effect, and its description."""

import socket
import ssl
import traceback
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.error_policy import (
    RetryDecision,
    describe,
    proves_not_applied,
)
from interlock.errors import NotApplied, UsageError
from tests.pure.test_error_policy import LIBRARIES, foreign, httpx_like


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
    NotApplied("the external system said so"),
    *(library(status) for library in LIBRARIES for status in (400, 403, 404, 408, 409, 429)),
    foreign("httpx", "ConnectError")("no"),
    foreign("httpx", "ConnectTimeout")("no"),
    foreign("httpx", "PoolTimeout")("no"),
    foreign("httpcore", "ConnectError")("no"),
    foreign("aiohttp.client_exceptions", "ClientConnectorError")("no"),
    foreign(
        "aiohttp.client_exceptions",
        "ClientConnectorDNSError",
        foreign("aiohttp.client_exceptions", "ClientConnectorError"),
    )("no"),
    foreign("aiohttp.client_exceptions", "ConnectionTimeoutError", TimeoutError)("no"),
    foreign("requests.exceptions", "ConnectTimeout")("no"),
    foreign("requests.exceptions", "ConnectionError")(
        from_cause(Exception("max retries"), foreign("urllib3.exceptions", "NewConnectionError")("no"))
    ),
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
    foreign("requests.exceptions", "ConnectionError")(
        foreign("urllib3.exceptions", "ProtocolError")("Connection aborted.", ConnectionResetError())
    ),
    urllib.error.URLError(TimeoutError()),
    ExceptionGroup("both", [REFUSED, TimeoutError()]),
    from_cause(TimeoutError(), REFUSED),
    from_cause(httpx_like(502), REFUSED),
]


@pytest.mark.parametrize("error", PROOFS, ids=repr)
def test_error_proves_that_the_call_was_not_applied(error: BaseException) -> None:
    """Protocol 23."""
    assert proves_not_applied(error)


@pytest.mark.parametrize("error", DOUBTS, ids=repr)
def test_other_errors_do_not_prove_that_the_call_was_not_applied(error: BaseException) -> None:
    """Protocol 23: timeouts, resets, 5xx and all unknown errors."""
    assert not proves_not_applied(error)


def test_error_in_the_context_of_another_proves_nothing() -> None:
    """The first call was refused, and the second one, made instead, failed in the middle."""
    assert not proves_not_applied(in_context(foreign("httpx", "RemoteProtocolError")("disconnected"), REFUSED))


def test_cyclic_exception_chain_ends() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert not proves_not_applied(first)


# ---------------------------------------------------------------- describe
def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_description_has_the_traceback_and_ends_with_the_error() -> None:
    text = describe(raised(ValueError("too small")))
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in raised\n    raise error\n" in text
    assert text.splitlines()[-1] == "ValueError: too small"


def test_frames_above_the_handler_are_left_out() -> None:
    """Frames of Interlock and of Python itself, up to the user's first frame."""
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(int, "x").exception()
        deep = pool.submit(lambda: int("y")).exception()
    assert deep is not None
    assert error is not None
    assert any("concurrent" in frame.filename for frame in traceback.extract_tb(deep.__traceback__))
    assert "concurrent" not in describe(deep)
    assert 'int("y")' in describe(deep)
    assert "concurrent" in describe(error), "without a user's frame, all frames are shown"


def test_frames_below_the_handler_are_kept() -> None:
    with pytest.raises(UsageError) as caught:
        RetryDecision(retryable=True, after=-1)
    assert "in test_frames_below" in describe(caught.value)
    assert "clock.py" in describe(caught.value)


def test_description_has_the_causes() -> None:
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
def test_last_line_of_a_description_is_the_type_and_the_message(error: Exception, last: str) -> None:
    assert describe(raised(error)).splitlines()[-1] == last
    error.add_note("a note\nof two lines")
    assert describe(error).splitlines()[-1] == last
    assert "of two lines" in describe(error)


def test_long_description_is_shortened_in_the_middle() -> None:
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


def test_error_without_a_usable_text_is_described() -> None:
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
def test_description_can_be_stored_and_respects_its_limit(message: str, limit: int) -> None:
    text = describe(ValueError(message), limit)
    assert len(text) <= limit
    assert "\0" not in text
    text.encode()
