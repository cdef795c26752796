"""The OpenTelemetry context of the code that enqueues a job, stored with the job.

This module does not import OpenTelemetry. If no other code has imported it, no span can be recording.
"""

import logging
import sys

from ..core.payload import encode

MAX_LENGTH = 4_096
"""The most characters of context that a job stores. If the context is longer, it stores only `traceparent`."""

_log = logging.getLogger("interlock")
_warned: set[str] = set()


def current_trace() -> str | None:
    """Return the current trace context as canonical JSON, or None if no span is recording."""
    module = sys.modules.get("opentelemetry.trace")
    if module is None:
        return None
    try:
        # Another thread may be importing the module at this moment.
        current = getattr(module, "get_current_span", None)
        return _inject() if current is not None and current().is_recording() else None
    except Exception as error:  # noqa: BLE001 - a broken tracer must not stop an enqueue
        warn_once("The trace context could not be read; jobs are enqueued without it", type(error).__name__)
        return None


def _inject() -> str | None:
    from opentelemetry import propagate

    context: dict[str, str] = {}
    propagate.inject(context)
    if sum(len(name) + len(value) for name, value in context.items()) > MAX_LENGTH:
        context = {name: value for name, value in context.items() if name == "traceparent"}
    return encode(context, what="trace") if context else None


def warn_once(sentence: str, error: str) -> None:
    """Log this sentence once per process."""
    if sentence not in _warned:
        _warned.add(sentence)
        _log.warning("%s (%s).", sentence, error)
