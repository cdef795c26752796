"""OpenTelemetry: the context of whoever enqueues goes with the job, and the handler's span is its child.

Nothing here imports OpenTelemetry for a program that does not: where no code of the process has, no span can be recording. It needs the extra `otel`.
"""

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from ..payload import encode
from . import redact

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OtelSpan

log = logging.getLogger("interlock")

CARRIED = 4_096
"""Characters of context that go with a job; beyond that, only its trace id does."""
Attribute = str | int | float | bool

_told: set[str] = set()


class Span(Protocol):
    """What a worker tells of the attempt that it is running."""

    def set(self, name: str, value: Attribute) -> None:
        """Adds an attribute."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Marks the span as failed. An exception that passes through the span does not do so by itself: a retry may be all in order."""
        ...


# ---------------------------------------------------------------- from the one who enqueues
def carrier() -> str | None:
    """The current trace context as canonical JSON, for `NewJob.trace`. None if no span is recording, so always where OpenTelemetry is not in use."""
    module = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    try:
        # Another thread may be importing it at this moment: then it is not in use yet.
        current = getattr(module, "get_current_span", None)
        return _carried() if current is not None and current().is_recording() else None
    except Exception as error:  # noqa: BLE001 - what watches the work must not stop it
        _tell_once("The trace context could not be taken along: jobs are enqueued without it", error)
        return None


def _carried() -> str | None:
    from opentelemetry import propagate

    context: dict[str, str] = {}
    propagate.inject(context)
    if sum(len(name) + len(value) for name, value in context.items()) > CARRIED:
        context = {name: value for name, value in context.items() if name == "traceparent"}
    return encode(context, what="trace") if context else None


# ---------------------------------------------------------------- to the one who runs
def span(name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
    """A span around a handler, current within it and of kind CONSUMER: a child of the carried context, or a root where there is none.

    Enter it where the handler runs: in its task, or in its thread. Nothing happens where OpenTelemetry is not in use."""
    return _recorded(name, trace, attributes) if "opentelemetry.trace" in sys.modules else _SILENT


@contextmanager
def _recorded(name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]) -> Generator[Span]:
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import set_span_in_context

    begun = _begin(name, trace, attributes)
    if begun is None:
        yield _SILENT
        return
    span, context = begun
    token = attach(set_span_in_context(span, context))
    try:
        yield _Recording(span)
    finally:
        detach(token)
        span.end()


def _begin(name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]) -> "tuple[OtelSpan, Context] | None":
    try:
        from opentelemetry import propagate
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, get_tracer

        # An empty context, not the worker's own: whatever span is open around its loop is no parent of a job.
        context = propagate.extract(trace, Context()) if trace else Context()
        return get_tracer("interlock").start_span(name, context, SpanKind.CONSUMER, dict(attributes)), context
    except Exception as error:  # noqa: BLE001 - what watches the work must not stop it
        _tell_once("A span could not be begun: handlers run without it", error)
        return None


class _Recording:
    """A span of OpenTelemetry. What it is told goes to whoever collects traces, so secrets are hidden first."""

    __slots__ = ("_span",)

    def __init__(self, span: "OtelSpan") -> None:
        self._span = span

    def set(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, redact.text(value) if isinstance(value, str) else value)

    def fail(self, error: BaseException | str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR, redact.error(error)))
        if isinstance(error, BaseException):
            hidden = {"exception.message": redact.text(str(error)), "exception.stacktrace": redact.trace(error)}
            self._span.record_exception(error, attributes=hidden)


class _Silent:
    """The span of a process without OpenTelemetry."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set(self, name: str, value: Attribute) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass


_SILENT = _Silent()


def _tell_once(sentence: str, error: Exception) -> None:
    if sentence not in _told:
        _told.add(sentence)
        log.warning("%s (%s).", sentence, redact.error(error))
