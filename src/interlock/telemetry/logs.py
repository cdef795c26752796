"""Writes events to `logging.getLogger("interlock")`, and formats the log of the command line.

The fields of an event are in `record.interlock`. Transitions and polling are DEBUG, state changes of a worker INFO,
refusals and losses WARNING, unexpected errors ERROR. Passwords, tokens and other secrets are hidden before a record is
created.
"""

import contextvars
import functools
import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TextIO

from ..core.error_policy import describe
from ..errors import InterlockError, Unavailable, UsageError
from ..jobs.results import Fail, Reject
from ..jobs.user_code import CallScope, binders, scope
from . import redact
from .events import (
    EVENT_TYPES,
    AttemptEnded,
    Claimed,
    DatabaseCall,
    DatabaseReachable,
    Event,
    Events,
    ExecutionLost,
    ExternalCheckFailed,
    ExternalCheckSucceeded,
    FinishFailed,
    HookFailed,
    Measured,
    MoveRefused,
    Notice,
    Recovered,
    Renewed,
    SlotStateChanged,
    Transition,
    WorkerError,
    WorkerStateChanged,
)

if TYPE_CHECKING:
    from structlog.typing import Processor

log = logging.getLogger("interlock")

LEVELS: dict[type[Event], int] = {
    SlotStateChanged: logging.DEBUG,
    Claimed: logging.DEBUG,
    DatabaseCall: logging.DEBUG,
    Renewed: logging.DEBUG,
    ExternalCheckSucceeded: logging.DEBUG,
    Transition: logging.DEBUG,
    Measured: logging.DEBUG,
    Recovered: logging.INFO,
    Notice: logging.INFO,
    DatabaseReachable: logging.INFO,
    ExecutionLost: logging.WARNING,
    MoveRefused: logging.WARNING,
    FinishFailed: logging.WARNING,
    HookFailed: logging.WARNING,
    ExternalCheckFailed: logging.WARNING,
    WorkerError: logging.ERROR,
    WorkerStateChanged: logging.WARNING,
    AttemptEnded: logging.WARNING,
}
"""The highest level of each event type. Only events of the last two types may have a lower level."""
ROUND = frozenset({"connecting", "recovery", "polling", "claiming", "backoff", "idle"})
"""The states that a worker passes in every round of its loop."""
NAMES = {
    kind: "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()
    for kind in EVENT_TYPES
}


def level(event: Event) -> int:
    """Return the log level of an event."""
    if isinstance(event, WorkerStateChanged):
        if event.target.lower() == "errorwait":
            return logging.WARNING
        return logging.DEBUG if event.source.lower() in ROUND and event.target.lower() in ROUND else logging.INFO
    if isinstance(event, AttemptEnded):
        if event.outcome in ("fail", "bury"):
            return logging.WARNING
        return logging.DEBUG if event.outcome in ("succeed", "handed") else logging.INFO
    return LEVELS[type(event)]


def attach(events: Events) -> Callable[[], None]:
    """Start writing events to the log. Call the result to stop.

    Event types below the log's current level are not subscribed, so set the level before the worker starts.
    """
    throttle = _ErrorThrottle()
    ends = [
        events.subscribe(throttle.write if kind in (WorkerError, DatabaseReachable) else write, kind)
        for kind in EVENT_TYPES
        if log.isEnabledFor(LEVELS[kind]) and (kind is not AttemptEnded or log.isEnabledFor(logging.DEBUG))
    ]
    if log.isEnabledFor(LEVELS[AttemptEnded]) and not log.isEnabledFor(logging.DEBUG):
        # An attempt that succeeds is a DEBUG record.
        ends.append(events.subscribe_to_failures(write))

    def end() -> None:
        for one in ends:
            one()

    return end


def write(event: Event) -> None:
    """Write one event to the log."""
    at = level(event)
    if not log.isEnabledFor(at):
        return
    shown = facts(event)
    name = shown.pop("sentence", None) or NAMES[type(event)]
    line = " ".join(
        (
            str(name),
            *(
                f"{key}={value!r}" if " " in str(value) else f"{key}={value}"
                for key, value in shown.items()
                if key != "traceback"
            ),
        )
    )
    log.log(at, "%s", line, extra={"interlock": {**shown, "event": name}})


DATABASE = "database"
REACHABLE = "The database is reachable again."


class _ErrorThrottle:
    """Logs a repeated error only the first, second, fourth, eighth… time.

    All parts of a worker share one count for an unreachable database, so that an outage begins with one line. Another
    line says when the database is reachable again.
    """

    def __init__(self) -> None:
        self._same: dict[str, tuple[str, int]] = {}

    def write(self, event: Event) -> None:
        if isinstance(event, DatabaseReachable):
            self._reachable(event)
        elif isinstance(event, WorkerError):
            self._failed(event)

    def _reachable(self, event: DatabaseReachable) -> None:
        _, errors = self._same.pop(DATABASE, ("", 0))
        if not errors:
            write(event)
        else:
            log.info(
                "The database is reachable again after %d failed calls. The worker claims jobs again.",
                errors,
                extra={"interlock": {"worker": event.worker, "errors": errors, "event": REACHABLE}},
            )

    def _failed(self, event: WorkerError) -> None:
        text = redact.error(event.error) if isinstance(event.error, BaseException) else event.error
        down = isinstance(event.error, Unavailable)
        key = DATABASE if down else event.where
        before, times = self._same.get(key, ("", 0))
        times = times + 1 if down or text == before else 1
        self._same[key] = text, times
        if times & (times - 1) == 0:
            write(event)


def facts(event: Event) -> dict[str, object]:
    """Return the fields of an event without secrets, and the traceback of an unexpected exception."""
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
            # structlog uses `event` for the name of the record.
            given["transition" if field.name == "event" else field.name] = value
    shown = redact.fields(given)
    if trace is not None:
        shown["traceback"] = trace
    return shown


def _raised_in_the_job(event: AttemptEnded) -> str | None:
    """Return the traceback of the error that failed a job; None if the handler raised `Fail` or `Reject`."""
    error = event.exception
    if not event.final or error is None or isinstance(error, Fail | Reject) or not _traced(error):
        return None
    return redact.text(describe(error), limit=redact.TRACEBACK, lines=True)


def _unexpected(error: BaseException) -> bool:
    """Whether to log a traceback. Interlock's own errors need none."""
    return not isinstance(error, InterlockError) and _traced(error)


def _traced(error: BaseException) -> bool:
    return error.__traceback__ is not None or bool(getattr(error, "__notes__", None))


# ---------------------------------------------------------------- for the command line
def configure(
    *, json: bool = False, level: str | int = "INFO", stream: TextIO | None = None, worker: str | None = None
) -> bool:
    """Send the log of the whole process to stderr, one line per record, as text or JSON, with secrets hidden.

    Records of a job have its `job_id`, `kind` and `attempt`; all records have the `worker`, if one is named. If the
    program has configured logging itself, this function adds only the fields of jobs, sets the level of `interlock`,
    and returns False.
    """
    try:
        log.setLevel(level.upper() if isinstance(level, str) else level)
    except ValueError:
        raise UsageError(f"There is no log level {level!r}. Use debug, info, warning or error.") from None
    _chosen.update(json=json, level=level, worker=worker)
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
    """Return the arguments of `configure`, for the worker's child processes; None if it was not called."""
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


def _bind(running: CallScope | None) -> None:
    """Add the job's fields to structlog's context."""
    if running is None:
        from structlog.contextvars import unbind_contextvars

        unbind_contextvars(*JOB)
        return
    for name, variable in _variables():
        if (value := getattr(running, name)) is not None:
            variable.set(value)


@functools.cache
def _variables() -> tuple[tuple[str, contextvars.ContextVar[Any]], ...]:
    """Return structlog's variables of the job's fields: to set them costs a third of `bind_contextvars`."""
    from structlog.contextvars import bind_contextvars

    tokens = contextvars.copy_context().run(bind_contextvars, **dict.fromkeys(JOB))
    return tuple((name, tokens[name].var) for name in JOB)


class _Ours(logging.StreamHandler[TextIO]):
    """The handler that `configure` installs."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as `logging` calls it
        """Ignore errors while writing the log, for example if stderr is closed, so that the worker continues."""
        with suppress(Exception):
            super().handleError(record)


def _formatter(*, json: bool, colors: bool) -> logging.Formatter:
    import structlog

    last: Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            _take_fields,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _hide,
            last,
        ],
    )


def _take_fields(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the text of a record with its fields."""
    del logger, method
    record = entry["_record"]
    given = dict(getattr(record, "interlock", {}))
    if given:
        entry["event"] = given.pop("event")
    else:
        given = {name: value for name in JOB if (value := getattr(record, name, None)) is not None}
    if "traceback" in given:
        entry["exception"] = given.pop("traceback")
    if worker := _chosen.get("worker"):
        given.setdefault("worker", worker)
    for name, value in given.items():
        entry.setdefault(name, value)
    return entry


def _hide(logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide secrets in the records of handlers and libraries."""
    del logger, method
    trace = entry.pop("exception", None)
    shown: dict[str, Any] = redact.fields(entry)
    if trace is not None:
        shown["exception"] = redact.text(str(trace), limit=redact.TRACEBACK, lines=True)
    return shown
