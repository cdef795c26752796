"""The trace context of an enqueue reaches the handler; without tracing nothing is imported or stored."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from interlock import App, SyncRun
from interlock.core.payload import encode
from interlock.jobs import trace_context
from interlock.jobs.trace_context import current_trace
from interlock.telemetry.tracing import span
from tests.kit import Place

PROVIDER = TracerProvider()
EXPORTED = InMemorySpanExporter()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTED))
TRACER = PROVIDER.get_tracer("caller")


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The ended spans of a program that has configured OpenTelemetry."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: PROVIDER)
    monkeypatch.setattr(trace_context, "_warned", set[str]())
    yield EXPORTED
    EXPORTED.clear()


def carried(text: str | None) -> dict[str, str]:
    assert text is not None
    taken: dict[str, str] = json.loads(text)
    assert text == encode(taken)
    return taken


# ---------------------------------------------------------------- the trace context
def test_trace_context_is_the_current_context_as_canonical_json() -> None:
    with TRACER.start_as_current_span("order") as order:
        taken = carried(current_trace())
    assert taken["traceparent"].split("-")[1:3] == [
        f"{order.get_span_context().trace_id:032x}",
        f"{order.get_span_context().span_id:016x}",
    ]


def test_no_trace_context_is_stored_without_a_recording_span() -> None:
    """This holds without a span and within a span that is not sampled."""
    assert current_trace() is None
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("caller").start_as_current_span("order"):
        assert current_trace() is None


def test_oversized_trace_context_is_reduced_to_its_trace_id() -> None:
    with TRACER.start_as_current_span("order"):
        token = context.attach(baggage.set_baggage("b", "x" * 3_000, baggage.set_baggage("a", "x" * 3_000)))
        taken = carried(current_trace())
        context.detach(token)
    assert set(taken) == {"traceparent"}


def test_error_of_a_propagator_does_not_prevent_an_enqueue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged once, without secrets."""

    def broken(_: dict[str, str]) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(propagate, "inject", broken)
    with TRACER.start_as_current_span("order"):
        assert (current_trace(), current_trace()) == (None, None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "hunter2" not in caplog.text


# ---------------------------------------------------------------- the span
def test_span_of_a_handler_is_a_child_of_the_enqueuing_span(spans: InMemorySpanExporter) -> None:
    """It is of kind CONSUMER, is current while the handler runs, has the stored baggage, and ends with the handler."""
    with TRACER.start_as_current_span("order") as order:
        token = context.attach(baggage.set_baggage("customer", "7"))
        taken = carried(current_trace())
        context.detach(token)
    spans.clear()
    with span("paint", taken, {"interlock.attempt": 2}) as handler:
        current = trace.get_current_span().get_span_context()
        seen = baggage.get_baggage("customer")
        handler.set("interlock.outcome", "succeed")
        assert not spans.get_finished_spans()
    (ended,) = spans.get_finished_spans()
    assert ended.parent is not None
    assert (ended.parent.trace_id, ended.parent.span_id) == (
        order.get_span_context().trace_id,
        order.get_span_context().span_id,
    )
    assert (ended.name, ended.kind, ended.context, seen) == ("paint", SpanKind.CONSUMER, current, "7")
    assert ended.attributes == {"interlock.attempt": 2, "interlock.outcome": "succeed"}
    assert ended.status.status_code is StatusCode.UNSET
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("taken", [None, {}, {"traceparent": "nonsense"}])
def test_span_without_a_stored_context_is_a_root_span(
    taken: dict[str, str] | None, spans: InMemorySpanExporter
) -> None:
    """This holds even if the worker itself runs within a span."""
    with TRACER.start_as_current_span("the worker's own"), span("paint", taken, {}):
        pass
    (paint, _) = spans.get_finished_spans()
    assert paint.parent is None


def test_span_is_marked_as_failed_only_by_its_caller(spans: InMemorySpanExporter) -> None:
    """The error is recorded without secrets.

    An exception that passes through the span, such as a retry, is not a failure.
    """
    with pytest.raises(RuntimeError), span("passes", None, {}):
        raise RuntimeError
    with span("failed", None, {}) as handler:
        try:
            raise ValueError("password=hunter2")  # noqa: TRY301 - it needs a traceback
        except ValueError as error:
            handler.fail(error)
    with span("said", None, {}) as handler:
        handler.fail("it ran too long")
    passes, failed, said = spans.get_finished_spans()
    assert (passes.status.status_code, list(passes.events)) == (StatusCode.UNSET, [])
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: password=***")
    assert failed.events[0].attributes is not None
    assert failed.events[0].attributes["exception.type"] == "ValueError"
    assert "hunter2" not in failed.to_json()
    assert (said.status.status_code, said.status.description) == (StatusCode.ERROR, "it ran too long")


def test_error_of_a_tracer_does_not_stop_a_handler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("no exporter")

    monkeypatch.setattr(trace, "get_tracer", broken)
    for _ in range(2):
        with span("paint", None, {}) as handler:
            handler.fail("it ran too long")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# ---------------------------------------------------------------- from enqueue to handler
def test_trace_context_is_stored_with_the_job(place: Place) -> None:
    """This holds for `enqueue`, `aenqueue` and `enqueue_many`. A job enqueued outside any span has no context."""
    app = App(place.url, schema=place.schema)

    @app.job()
    def paint(run: SyncRun, number: int) -> None: ...

    app.migrate()
    with TRACER.start_as_current_span("order") as order:
        ids = [
            paint.enqueue(1).id,
            asyncio.run(paint.aenqueue(2)).id,
            *(one.id for one in app.enqueue_many([paint.request(3)])),
        ]
    wanted = f"{order.get_span_context().trace_id:032x}"
    for id in ids:
        taken = app.get(id).trace
        assert taken is not None
        assert taken["traceparent"].split("-")[1] == wanted
    assert app.get(paint.enqueue(4).id).trace is None


# ---------------------------------------------------------------- without the extras
BLOCKED = """
import sys
for name in ("opentelemetry", "prometheus_client"):
    sys.modules[name] = None
import interlock
from interlock.jobs.trace_context import current_trace
from interlock.telemetry.tracing import span
assert current_trace() is None
with span("paint", {"traceparent": "00-1-1-01"}, {}) as handler:
    handler.set("a", 1)
    handler.fail(ValueError())
from interlock.cli import main
main(["--help"])
"""

UNASKED = """
import sys
import interlock, interlock.cli
from interlock.jobs.trace_context import current_trace
from interlock.telemetry.tracing import span
current_trace()
with span("paint", None, {}): pass
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "prometheus_client", "structlog")))
"""


def test_engine_and_command_line_work_without_the_extras() -> None:
    """`current_trace` returns None and a span does nothing."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "migrate" in done.stdout


def test_opentelemetry_is_imported_only_when_used() -> None:
    """This also holds if the packages are installed, so a program without tracing pays nothing for it."""
    done = subprocess.run([sys.executable, "-c", UNASKED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
