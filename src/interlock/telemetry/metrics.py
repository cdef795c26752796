"""Prometheus metrics: counts of this process's events, and numbers of jobs that each scrape reads from the database.

Every label comes from the code (a kind, a queue, a state, a verb), never from a job or a worker. This module needs the
extra `metrics`.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import cast
from wsgiref.types import WSGIApplication

from ..errors import UsageError
from ..store.report_types import Depth
from .events import (
    AttemptEnded,
    Claimed,
    DatabaseCall,
    Events,
    ExecutionLost,
    ExternalCheckFailed,
    ExternalCheckSucceeded,
    FinishFailed,
    HookFailed,
    Measured,
    MoveRefused,
    Recovered,
    Renewed,
    Transition,
    WorkerError,
    WorkerStateChanged,
)

try:
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        ProcessCollector,
        Summary,
        make_wsgi_app,  # pyright: ignore[reportUnknownVariableType] - it is typed as any callable
    )
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise UsageError(
        "Metrics need prometheus_client, which is not installed. Run pip install 'interlock[metrics]'."
    ) from None

log = logging.getLogger("interlock")

Depths = Callable[[], Iterable[Depth]]
States = Callable[[], Mapping[str, Mapping[str, int]]]
"""How many jobs are in each state, by lifecycle."""

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TRIPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""Histogram buckets for a call to the database, in seconds."""
TIMES = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21_600)
"""Histogram buckets for jobs, in seconds. Some jobs take milliseconds, others hours."""
DATABASE_UP = ("interlock_database_up", "Whether the database answered this scrape.")
NAMES = 200
"""The most names of `run.measure` that get their own series. All further names share the series `other`."""


class Metrics:
    """Counts the events of the `Events` that it is attached to. It has its own registry unless you pass one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}
        self._names: set[tuple[str, str]] = set()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        trips, times = partial(histogram, buckets=TRIPS), partial(histogram, buckets=TIMES)
        kind, kind_queue = ("kind",), ("kind", "queue")
        stored = "Transitions that the database stored."
        self.transitions = counter("interlock_transitions", stored, ("kind", "event", "source", "target"))
        self.attempts = counter("interlock_attempts", "Attempts that ended.", ("kind", "queue", "outcome"))
        self.queue_wait = times("interlock_queue_wait_seconds", "Seconds from due to claimed.", kind_queue)
        self.run = times("interlock_run_seconds", "How long handlers ran.", kind_queue)
        self.losses = counter("interlock_lease_losses", "Executions that this process lost.", kind)
        self.refused = counter("interlock_refused_moves", "Moves that the database refused.", kind)
        self.sizes = histogram("interlock_batch_size", "Jobs in one round trip.", ("verb",), buckets=SIZES)
        self.trips = trips("interlock_batch_seconds", "Round trips to the database.", ("verb",))
        self.claims = trips("interlock_claim_seconds", "Round trips that ask for work.", ("found",))
        self.claimed = counter("interlock_claimed_jobs", "Jobs that this process claimed.")
        self.renewals = counter("interlock_renewals", "Leases by the result of a heartbeat.", ("result",))
        self.heartbeats = trips("interlock_renew_seconds", "Round trips that renew leases.")
        usage = "Usage that handlers recorded with run.measure."
        self.measured = Summary("interlock_measured", usage, ("kind", "name"), registry=self.registry)
        recovered = "Jobs recovered from another worker."
        self.recovered = counter("interlock_recovered_jobs", recovered, ("kind", "how"))
        self.finishes = counter("interlock_finish_failures", "Errors of finish functions after a commit.", kind)
        self.hooks = counter("interlock_hook_failures", "Errors of state hooks.", ("kind", "state"))
        unexpected = "Unexpected errors, and failed calls to an unreachable database."
        self.errors = counter("interlock_errors", unexpected, ("where",))
        checks = "Checks of an external system, each for a batch of jobs."
        self.checks = times("interlock_check_seconds", checks, kind)
        unanswered = "Checks that an external system did not answer."
        self.external_failures = counter("interlock_external_check_failures", unanswered, kind)
        states = "Workers of this process, by the state they are in."
        self.workers = Gauge("interlock_workers", states, ("state",), registry=self.registry)

    def attach(self, events: Events) -> Callable[[], None]:
        """Start counting. Call the result to stop."""
        ends = (
            events.subscribe(self._moved, WorkerStateChanged),
            events.subscribe(lambda e: self.transitions.labels(e.kind, e.event, e.source, e.target).inc(), Transition),
            events.subscribe(self._ended, AttemptEnded),
            events.subscribe(lambda e: self.losses.labels(e.kind).inc(), ExecutionLost),
            events.subscribe(lambda e: self.refused.labels(e.kind).inc(), MoveRefused),
            events.subscribe(self._batch, DatabaseCall),
            events.subscribe(self._claimed, Claimed),
            events.subscribe(self._renewed, Renewed),
            events.subscribe(self._measured, Measured),
            events.subscribe(lambda e: self.recovered.labels(e.kind, e.how).inc(), Recovered),
            events.subscribe(lambda e: self.finishes.labels(e.kind).inc(), FinishFailed),
            events.subscribe(lambda e: self.hooks.labels(e.kind, e.state).inc(), HookFailed),
            events.subscribe(lambda e: self.checks.labels(e.kind).observe(e.seconds), ExternalCheckSucceeded),
            events.subscribe(lambda e: self.external_failures.labels(e.kind).inc(), ExternalCheckFailed),
            # Only the first word is the label, because the rest may contain an id.
            events.subscribe(lambda e: self.errors.labels(e.where.partition(" ")[0]).inc(), WorkerError),
        )

        def end() -> None:
            for one in ends:
                one()

        return end

    def _moved(self, event: WorkerStateChanged) -> None:
        with self._lock:
            before = self._states.get(event.worker)
            self._states[event.worker] = event.target
            if before is not None:
                self.workers.labels(before).dec()
            self.workers.labels(event.target).inc()

    def _ended(self, event: AttemptEnded) -> None:
        self.attempts.labels(event.kind, event.queue, event.outcome).inc()
        if event.waited is not None and event.ran is not None:
            self.queue_wait.labels(event.kind, event.queue).observe(max(event.waited, 0.0))
            self.run.labels(event.kind, event.queue).observe(max(event.ran, 0.0))

    def _batch(self, event: DatabaseCall) -> None:
        self.sizes.labels(event.verb).observe(event.size)
        self.trips.labels(event.verb).observe(event.seconds)

    def _claimed(self, event: Claimed) -> None:
        self.claimed.inc(event.count)
        self.claims.labels("some" if event.count else "none").observe(event.seconds)

    def _renewed(self, event: Renewed) -> None:
        for result, count in (("renewed", event.renewed), ("lost", event.lost), ("busy", event.busy)):
            self.renewals.labels(result).inc(count)
        self.heartbeats.observe(event.seconds)

    def _measured(self, event: Measured) -> None:
        # A single NaN or infinity would make the sum useless.
        if math.isfinite(event.value):
            self.measured.labels(event.kind, self._name(event)).observe(event.value)

    def _name(self, event: Measured) -> str:
        key = (event.kind, event.name)
        with self._lock:
            if key not in self._names and len(self._names) >= NAMES:
                return "other"
            self._names.add(key)
        return event.name


class DatabaseCollector(Collector):
    """Reads the numbers of jobs from the database at every scrape, in the thread that serves the scrape.

    If the database is unreachable, `interlock_database_up` is 0, and the other metrics are still served.
    """

    def __init__(self, *, depths: Depths | None = None, states: States | None = None) -> None:
        self._depths, self._states = depths, states

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(*DATABASE_UP)
        try:
            found = [*self._by_queue(), *self._by_state()]
        except Exception:
            log.exception(
                "The metrics could not read the database. This scrape has no numbers of jobs; the next one tries again."
            )
            found = []
            up.add_metric((), 0)
        else:
            up.add_metric((), 1)
        yield up
        yield from found

    def _by_queue(self) -> Iterator[Metric]:
        if self._depths is None:
            return
        depth = GaugeMetricFamily(
            "interlock_queue_jobs",
            "Jobs in a queue: due, later (not due yet), held, running.",
            labels=("kind", "queue", "state"),
        )
        oldest = GaugeMetricFamily(
            "interlock_queue_oldest_seconds", "Seconds since the oldest due job became due.", labels=("kind", "queue")
        )
        for one in self._depths():
            for state, count in (
                ("due", one.due),
                ("later", one.later),
                ("held", one.held),
                ("running", one.running),
            ):
                depth.add_metric((one.kind, one.queue, state), count)
            oldest.add_metric((one.kind, one.queue), one.oldest)
        yield from (depth, oldest)

    def _by_state(self) -> Iterator[Metric]:
        if self._states is None:
            return
        jobs = GaugeMetricFamily("interlock_jobs", "Jobs by the state that they are in.", labels=("lifecycle", "state"))
        for lifecycle, states in self._states().items():
            for state, count in states.items():
                jobs.add_metric((lifecycle, state), count)
        yield jobs


# ---------------------------------------------------------------- for the command line
def metrics_page(
    events: Events, *, depths: Depths | None = None, states: States | None = None
) -> tuple[WSGIApplication, Callable[[], None]]:
    """Count events from now on. Returns a page with the metrics, and a function that stops counting.

    `depths` and `states` are called at every scrape, in the thread that serves it.
    """
    metrics = Metrics()
    metrics.registry.register(DatabaseCollector(depths=depths, states=states))
    ProcessCollector(registry=metrics.registry)
    return registry_page(metrics.registry), metrics.attach(events)


def registry_page(registry: CollectorRegistry) -> WSGIApplication:
    """Return a page with the metrics of a registry."""
    return cast("WSGIApplication", make_wsgi_app(registry))
