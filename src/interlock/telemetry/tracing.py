"""OpenTelemetry spans around handlers, as children of the context in which the job was enqueued.

This module uses OpenTelemetry only if the program has imported it. It needs the extra `otel`.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from ..jobs.trace_context import warn_once
from . import redact

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OtelSpan

Attribute = str | int | float | bool


class Span(Protocol):
    """The span of a running attempt."""

    def set(self, name: str, value: Attribute) -> None:
        """Add an attribute."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Mark the span as failed.

        An exception alone does not mark it, because handlers also raise exceptions to retry or snooze.
        """
        ...


def span(
    name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]
) -> AbstractContextManager[Span]:
    """Return a context manager for a span around a handler. The span is current inside it and has the kind CONSUMER.

    The span is a child of the context in `trace`, or a root span without one. Enter it in the task or thread that runs
    the handler. If the program does not use OpenTelemetry, the span does nothing.
    """
    return _recorded(name, trace, attributes) if is_traced() else _NO_SPAN


def is_traced() -> bool:
    """Whether the program uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


@contextmanager
def _recorded(name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]) -> Generator[Span]:
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import set_span_in_context

    begun = _begin(name, trace, attributes)
    if begun is None:
        yield _NO_SPAN
        return
    span, context = begun
    token = attach(set_span_in_context(span, context))
    try:
        yield _Recording(span)
    finally:
        detach(token)
        span.end()


def _begin(
    name: str, trace: Mapping[str, str] | None, attributes: Mapping[str, Attribute]
) -> "tuple[OtelSpan, Context] | None":
    try:
        from opentelemetry import propagate
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, get_tracer

        # Start from an empty context, because a span that is open around the worker's loop is not the job's parent.
        context = propagate.extract(trace, Context()) if trace else Context()
        return get_tracer("interlock").start_span(name, context, SpanKind.CONSUMER, dict(attributes)), context
    except Exception as error:  # noqa: BLE001 - tracing must not stop a job
        warn_once("The span could not be started; handlers run without it", redact.error(error))
        return None


class _Recording:
    """An OpenTelemetry span. Its attributes and errors leave the process, so secrets are hidden first."""

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


class _NoSpan:
    """A span that does nothing, for a process without OpenTelemetry."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set(self, name: str, value: Attribute) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass


_NO_SPAN = _NoSpan()
