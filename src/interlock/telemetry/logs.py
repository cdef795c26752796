"""Events as log records of `logging.getLogger("interlock")`, each with its fields in `record.interlock`; and the format that the command line gives them.

Transitions and the rounds of polling are DEBUG, what a worker becomes is INFO, what was refused or lost is WARNING, what nobody expected is ERROR.
Passwords, tokens and their like are hidden, in fields and within texts, before a record is made: no handler ever sees them.
"""

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TextIO

from ..answers import Fail, Reject
from ..errors import InterlockError, UsageError
from ..events import (
    KINDS,
    AttemptEnded,
    Batch,
    Checked,
    Claimed,
    Event,
    Events,
    FinishFailed,
    HookFailed,
    LeaseLost,
    Measured,
    MoveRefused,
    Notice,
    OutsideFailed,
    Recovered,
    Renewed,
    SlotMoved,
    Transition,
    Trouble,
    WorkerMoved,
)
from ..taxonomy import describe
from ..user_code import Scope, binders, scope
from . import redact

if TYPE_CHECKING:
    from structlog.typing import Processor

log = logging.getLogger("interlock")

LEVELS: dict[type[Event], int] = {
    SlotMoved: logging.DEBUG,
    Claimed: logging.DEBUG,
    Batch: logging.DEBUG,
    Renewed: logging.DEBUG,
    Checked: logging.DEBUG,
    Transition: logging.DEBUG,
    Measured: logging.DEBUG,
    Recovered: logging.INFO,
    Notice: logging.INFO,
    LeaseLost: logging.WARNING,
    MoveRefused: logging.WARNING,
    FinishFailed: logging.WARNING,
    HookFailed: logging.WARNING,
    OutsideFailed: logging.WARNING,
    Trouble: logging.ERROR,
    WorkerMoved: logging.WARNING,
    AttemptEnded: logging.WARNING,
}
"""The highest level that each can have; all but the last two have it always."""
ROUND = frozenset({"connecting", "recovery", "polling", "claiming", "backoff", "idle"})
"""The states that a worker goes through all day."""
NAMES = {kind: "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip() for kind in KINDS}


def level(event: Event) -> int:
    """How much an event matters."""
    if isinstance(event, WorkerMoved):
        if event.target.lower() == "errorwait":
            return logging.WARNING
        return logging.DEBUG if event.source.lower() in ROUND and event.target.lower() in ROUND else logging.INFO
    if isinstance(event, AttemptEnded):
        if event.outcome in ("fail", "bury"):
            return logging.WARNING
        return logging.DEBUG if event.outcome in ("succeed", "handed") else logging.INFO
    return LEVELS[type(event)]


def attach(events: Events) -> Callable[[], None]:
    """Writes events to the log from now on; answers what ends that. An event that the level of the log shuts out at this moment is not even built, so
    set the level before the worker starts."""
    calm = _Calm()
    ends = [events.subscribe(calm.write if kind is Trouble else write, kind) for kind in KINDS if log.isEnabledFor(LEVELS[kind])]

    def end() -> None:
        for one in ends:
            one()

    return end


def write(event: Event) -> None:
    """Writes one event to the log."""
    at = level(event)
    if not log.isEnabledFor(at):
        return
    shown = facts(event)
    name = shown.pop("sentence", None) or NAMES[type(event)]
    line = " ".join((str(name), *(f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in shown.items() if key != "traceback")))
    log.log(at, "%s", line, extra={"interlock": {**shown, "event": name}})


class _Calm:
    """Writes the same trouble the first, second, fourth, eighth… time: a database that is away is tried again and again, and one line says so."""

    def __init__(self) -> None:
        self._same: dict[str, tuple[str, int]] = {}

    def write(self, event: Event) -> None:
        if not isinstance(event, Trouble):
            return
        text = redact.error(event.error) if isinstance(event.error, BaseException) else event.error
        before, times = self._same.get(event.where, ("", 0))
        times = times + 1 if text == before else 1
        self._same[event.where] = text, times
        if times & (times - 1) == 0:
            write(event)


def facts(event: Event) -> dict[str, object]:
    """The fields of an event as they may be shown. Where it has an exception that is not one of our own sentences, the traceback too."""
    given: dict[str, object] = {}
    trace: str | None = None
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(event, AttemptEnded) and field.name in ("exception", "final"):
            # A retry logs one line with its error; a failed job also logs the traceback.
            trace = _raised_in_the_job(event)
        elif isinstance(value, BaseException):
            given[field.name] = redact.error(value)
            trace = redact.trace(value) if _unexpected(value) else None
        elif field.name == "fields":
            given = {**value, **given}
        elif value is not None:
            # `event` is the name of the record itself, for structlog and for whoever reads it.
            given["arrow" if field.name == "event" else field.name] = value
    shown = redact.fields(given)
    if trace is not None:
        shown["traceback"] = trace
    return shown


def _raised_in_the_job(event: AttemptEnded) -> str | None:
    """The traceback of the error that failed a job, unless the handler ended its job on purpose."""
    error = event.exception
    if not event.final or error is None or isinstance(error, Fail | Reject) or not _traced(error):
        return None
    return redact.text(describe(error), limit=redact.TRACEBACK, lines=True)


def _unexpected(error: BaseException) -> bool:
    """Whether a traceback helps. It does not for our own errors."""
    return not isinstance(error, InterlockError) and _traced(error)


def _traced(error: BaseException) -> bool:
    return error.__traceback__ is not None or bool(getattr(error, "__notes__", None))


# ---------------------------------------------------------------- for the command line
def configure(*, json: bool = False, level: str | int = "INFO", stream: TextIO | None = None) -> bool:
    """Send the log of the whole process to stderr, one line per record, as text or JSON, with secrets hidden.

    Records of a job carry its `job_id`, `kind` and `attempt`. If the program has configured logging itself, only these
    fields and the level of `interlock` change, and the result is False.
    """
    try:
        log.setLevel(level.upper() if isinstance(level, str) else level)
    except ValueError:
        raise UsageError(f"There is no log level {level!r}: name one of debug, info, warning, error.") from None
    _chosen.update(json=json, level=level)
    if _bind not in binders:
        binders.append(_bind)
    root = logging.getLogger()
    own = all(isinstance(one, _Ours) for one in root.handlers)
    if own:
        for one in root.handlers[:]:
            root.removeHandler(one)
        handler = _Ours(stream or sys.stderr)
        handler.setFormatter(_formatter(json=json, colors=handler.stream.isatty()))
        root.addHandler(handler)
        root.setLevel(log.level)
    for one in root.handlers:
        one.addFilter(_name_job)
    return own


def chosen() -> dict[str, Any] | None:
    """The arguments of `configure`, for the child processes of this worker; None if it was not called."""
    return dict(_chosen) or None


def forget() -> None:
    """Forget the arguments of `configure`, so that later child processes do not use them."""
    _chosen.clear()


_chosen: dict[str, Any] = {}
JOB = ("job_id", "kind", "attempt")


def _name_job(record: logging.LogRecord) -> bool:
    """Add the job's fields to a record, except those that the record already has."""
    running = scope.get()
    for name in JOB:
        if not hasattr(record, name):
            setattr(record, name, getattr(running, name, None))
    return True


def _bind(running: Scope | None) -> None:
    """Add the job's fields to structlog's context."""
    from structlog.contextvars import bind_contextvars, unbind_contextvars

    if running is None:
        unbind_contextvars(*JOB)
    else:
        bind_contextvars(**{name: value for name in JOB if (value := getattr(running, name)) is not None})


class _Ours(logging.StreamHandler[TextIO]):
    """The handler that `configure` put there."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as `logging` calls it
        """Ignore a log that cannot be written, even if standard error is closed, so that the worker continues."""
        with suppress(Exception):
            super().handleError(record)


def _formatter(*, json: bool, colors: bool) -> logging.Formatter:
    import structlog

    last: Processor = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, structlog.processors.TimeStamper(fmt="iso", utc=True)],
        processors=[_take_fields, structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, _hide, last],
    )


def _take_fields(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The fields in place of the line that repeats them."""
    del logger, method
    record = entry["_record"]
    given = dict(getattr(record, "interlock", {}))
    if given:
        entry["event"] = given.pop("event")
    else:
        given = {name: value for name in JOB if (value := getattr(record, name, None)) is not None}
    if "traceback" in given:
        entry["exception"] = given.pop("traceback")
    for name, value in given.items():
        entry.setdefault(name, value)
    return entry


def _hide(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Whatever a handler or a library wrote, with its secrets hidden."""
    del logger, method
    trace = entry.pop("exception", None)
    shown: dict[str, Any] = redact.fields(entry)
    if trace is not None:
        shown["exception"] = redact.text(str(trace), limit=redact.TRACEBACK, lines=True)
    return shown
