"""Events in the log have their fields, a fitting level, and no secrets."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interlock.errors import Unavailable, UsageError
from interlock.jobs import user_code
from interlock.telemetry import logs, redact
from interlock.telemetry.events import (
    AttemptEnded,
    Event,
    Events,
    ExecutionLost,
    MoveRefused,
    Notice,
    SlotStateChanged,
    Transition,
    WorkerError,
    WorkerStateChanged,
)
from tests.loops.event_examples import ID, ONE_OF_EACH, WORKER

SECRET = "hunter2"


def raised(error: Exception) -> Exception:
    """Raise the error and return it with its traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.fixture
def attached(caplog: pytest.LogCaptureFixture) -> Iterator[Events]:
    """Events that are logged at all levels."""
    caplog.set_level(logging.DEBUG, "interlock")
    events = Events()
    end = logs.attach(events)
    yield events
    end()


@contextmanager
def bare() -> Iterator[None]:
    """Remove all logging handlers, including those of pytest."""
    root, own = logging.getLogger(), logging.getLogger("interlock")
    handlers, level, root_level, bound = root.handlers[:], own.level, root.level, user_code.binders[:]
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        own.setLevel(level)
        user_code.binders[:] = bound
        logs.forget()


# ---------------------------------------------------------------- records
@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda one: type(one).__name__)
def test_every_event_is_a_record_with_its_fields(
    event: Event, attached: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """`record.interlock` has the fields for programs, and the message has them for people."""
    attached.emit(event)
    (record,) = caplog.records
    fields = record.__dict__["interlock"]
    assert record.name == "interlock"
    assert json.loads(json.dumps(fields)) == fields
    for value in logs.facts(event).values():
        assert str(value) in record.getMessage()
        assert value in fields.values()


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (Transition(ID, "paint", "standard", "claim", "PENDING", "RUNNING", 1, "worker"), logging.DEBUG),
        (SlotStateChanged(WORKER, 1, "Claiming", "Processing", "", None), logging.DEBUG),
        (WorkerStateChanged(WORKER, "Polling", "Backoff", "nothing is due"), logging.DEBUG),
        (WorkerStateChanged(WORKER, "Startup", "Connecting", "boot"), logging.INFO),
        (WorkerStateChanged(WORKER, "Polling", "ErrorWait", "OperationalError"), logging.WARNING),
        (AttemptEnded(ID, "paint", "default", 1, "succeed", 0, 0), logging.DEBUG),
        (AttemptEnded(ID, "paint", "default", 1, "fail", 0, 0), logging.WARNING),
        (ExecutionLost(ID, "paint", 1, "frozen"), logging.WARNING),
        (MoveRefused(ID, "paint", 1, "SUCCEEDED", "PENDING"), logging.WARNING),
        (WorkerError(WORKER, "claim", "x"), logging.ERROR),
    ],
)
def test_each_event_has_its_log_level(event: Event, level: int) -> None:
    assert logs.level(event) == level


def test_events_below_the_log_level_are_not_built(caplog: pytest.LogCaptureFixture) -> None:
    """No event is built after the log is detached."""
    caplog.set_level(logging.INFO, "interlock")
    events = Events()
    end = logs.attach(events)
    assert (
        events.wants(Transition),
        events.wants(SlotStateChanged),
        events.wants(WorkerStateChanged),
        events.wants(WorkerError),
    ) == (
        False,
        False,
        True,
        True,
    )
    events.emit(WorkerStateChanged(WORKER, "Polling", "Backoff", "nothing is due"))
    assert not caplog.records
    end()
    assert not events.active


def test_only_unexpected_errors_are_logged_with_a_traceback(attached: Events, caplog: pytest.LogCaptureFixture) -> None:
    attached.emit(WorkerError(WORKER, "claim", raised(ValueError(f"bad password={SECRET}"))))
    attached.emit(WorkerError(WORKER, "claim", raised(Unavailable("The database cannot be reached."))))
    unexpected, ours = (record.__dict__["interlock"] for record in caplog.records)
    assert unexpected["error"] == "ValueError: bad password=***"
    assert "in raised" in unexpected["traceback"]
    assert SECRET not in unexpected["traceback"]
    assert "traceback" not in ours


# ---------------------------------------------------------------- secrets
@pytest.mark.parametrize(
    "name",
    [
        "token",
        "password",
        "PASSWORD",
        "secret",
        "authorization",
        "Authorization",
        "api_key",
        "X-Api-Key",
        "apiKey",
        "cookie",
        "Set-Cookie",
        "db_password",
        "client_secret",
        "accessToken",
        "AWS_SECRET_ACCESS_KEY",
        "private_key",
        "session_id",
        "credentials",
    ],
)
@pytest.mark.parametrize(
    "value",
    [SECRET, 4711, [SECRET], {"a": SECRET}, SECRET.encode()],
    ids=["text", "number", "list", "mapping", "bytes"],
)
def test_field_with_a_secret_name_is_never_logged(
    name: str, value: object, attached: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """This holds for any type of value and any depth."""
    attached.emit(Notice(WORKER, "x", {name: value, "deep": [{"er": {name: value}}]}))
    (record,) = caplog.records
    assert record.__dict__["interlock"] == {
        "event": "x",
        "worker": WORKER,
        name: "***",
        "deep": [{"er": {name: "***"}}],
    }
    assert SECRET not in record.getMessage()


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@host/db",
        f"could not connect to postgresql://user:a/b:c@{SECRET}@host:5432/db",
        f"redis://:{SECRET}@host",
        f"https://{SECRET}@github.com/x",
        f"host=h user=u password={SECRET} dbname=d",
        f"password = '{SECRET} and more {SECRET}'",
        f'{{"password": "a\\"{SECRET}"}}',
        f'"{{\\"api_key\\": \\"a {SECRET}\\"}}"',
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f"Authorization: Basic {SECRET}",
        f"Cookie: a=b; session={SECRET}",
        f"GET /?x=1&access_token={SECRET}&y=2",
        f"sent Bearer {SECRET}",
        f"dbPassword: {SECRET}",
        f'password="{SECRET} never closed',
        "postgresql://u:" + SECRET * 4_000 + "@h",
        "x " * 3_990 + "postgresql://u:" + SECRET * 4_000 + "@h",
    ],
)
def test_secret_in_a_text_is_never_logged(text: str, attached: Events, caplog: pytest.LogCaptureFixture) -> None:
    """The text may be a message, a field, an error or a traceback."""
    attached.emit(Notice(WORKER, text, {"note": text, text: 1}))
    attached.emit(WorkerError(WORKER, text, raised(RuntimeError(text))))
    for record in caplog.records:
        assert SECRET not in record.getMessage()
        assert SECRET not in str(record.__dict__["interlock"])


@pytest.mark.parametrize(
    "text",
    ["http://host:8080/path", "passwordless login", "a: b = c", ID, "mail user@example.org", "tok-en", "12:30:01"],
)
def test_other_text_is_not_redacted(text: str) -> None:
    assert redact.text(text) == text


def test_number_of_tokens_is_not_redacted() -> None:
    assert redact.fields({"input_tokens": 12, "tokens": ["abc"]}) == {"input_tokens": 12, "tokens": "***"}


def test_logged_values_have_a_maximum_size() -> None:
    """Long texts, large collections and deep nesting are truncated, and a list that contains itself ends."""
    itself: list[object] = []
    itself.append(itself)
    shown = json.dumps(
        redact.fields(
            {"text": "x" * 10**6, "words": "y " * 10**6, "wide": list(range(10**5)), "itself": itself, "k" * 10**5: 1}
        )
    )
    assert len(shown) < 10_000
    assert len(redact.fields({str(n): n for n in range(1000)})) == redact.ITEMS + 1


def test_control_characters_are_removed() -> None:
    """Stored text cannot forge a log line or control a terminal."""
    assert redact.text("a\x1b[31mb\r\nc\u202ed") == "a\ufffd[31mb c\ufffdd"


# ---------------------------------------------------------------- the command line's format
def test_json_lines_have_the_fields_and_no_secrets() -> None:
    with bare():
        out = io.StringIO()
        assert logs.configure(json=True, level="debug", stream=out)
        logs.write(Transition(ID, "paint", "standard", "claim", "PENDING", "RUNNING", 1, "worker"))
        logging.getLogger("theirs").error(
            "sent %s", f"password={SECRET}", exc_info=raised(RuntimeError(f"token={SECRET}"))
        )
        ours, theirs = map(json.loads, out.getvalue().splitlines())
        assert ours.pop("timestamp")
        assert ours == {
            "event": "transition",
            "level": "debug",
            "logger": "interlock",
            "job_id": ID,
            "kind": "paint",
            "lifecycle": "standard",
            "transition": "claim",
            "source": "PENDING",
            "target": "RUNNING",
            "attempt": 1,
            "actor": "worker",
        }
        assert (theirs["event"], theirs["level"], theirs["logger"]) == ("sent password=***", "error", "theirs")
        assert "RuntimeError" in theirs["exception"]
        assert SECRET not in out.getvalue()


def test_text_lines_have_the_fields_and_no_secrets() -> None:
    with bare():
        out = io.StringIO()
        logs.configure(stream=out)
        logs.write(Notice(WORKER, "The last slot is busy.", {"slots": 4, "token": SECRET}))
        logs.write(Transition(ID, "paint", "standard", "claim", "PENDING", "RUNNING", 1, "worker"))
        (line,) = out.getvalue().splitlines()
        assert "The last slot is busy." in line
        assert "slots=4" in line
        assert "token=***" in line
        assert "\x1b" not in line


def test_configuring_again_does_not_write_twice() -> None:
    with bare():
        first, second = io.StringIO(), io.StringIO()
        logs.configure(stream=first)
        logs.configure(stream=second)
        logs.write(WorkerError(WORKER, "claim", "x"))
        assert first.getvalue() == ""
        assert len(second.getvalue().splitlines()) == 1


def test_configured_logging_of_a_program_is_not_changed() -> None:
    """Its handlers receive the records. Only the level of the `interlock` logger is set."""
    with bare():
        theirs, ours = io.StringIO(), io.StringIO()
        logging.getLogger().addHandler(logging.StreamHandler(theirs))
        assert not logs.configure(json=True, level=logging.DEBUG, stream=ours)
        logs.write(Transition(ID, "paint", "standard", "claim", "PENDING", "RUNNING", 1, "worker"))
        assert ID in theirs.getvalue()
        assert ours.getvalue() == ""


def test_unknown_log_level_is_refused() -> None:
    with pytest.raises(UsageError, match="There is no log level 'loud'"):
        logs.configure(level="loud")


def test_repeated_error_is_logged_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged the first, second, fourth and eighth time, and so on. Another error is logged at once."""
    events = Events()
    with caplog.at_level(logging.INFO, "interlock"):
        end = logs.attach(events)
        for _ in range(100):
            events.emit(WorkerError("w", "renew", "the server is unreachable"))
        events.emit(WorkerError("w", "renew", "the disk is full"))
        end()
    assert [record.getMessage().count("unreachable") for record in caplog.records] == [1] * 7 + [0]
