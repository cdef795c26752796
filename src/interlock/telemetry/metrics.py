"""Prometheus metrics: what this process did, counted as it happens, and what stands in the database, read at every scrape.

Every label comes from the code (a kind, a queue, a state, a verb): never a job's id, nor a worker's name. It needs the extra `metrics`.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import UsageError
from ..events import (
    AttemptEnded,
    Batch,
    Checked,
    Claimed,
    Events,
    FinishFailed,
    HookFailed,
    LeaseLost,
    Measured,
    MoveRefused,
    OutsideFailed,
    Recovered,
    Renewed,
    Transition,
    Trouble,
    WorkerMoved,
)
from ..records import Depth

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, Summary, start_http_server
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise UsageError("Metrics need prometheus_client, which is not installed: run pip install 'interlock[metrics]'.") from None

log = logging.getLogger("interlock")

Depths = Callable[[], Iterable[Depth]]
States = Callable[[], Mapping[str, Mapping[str, int]]]
"""How many jobs are in each state, by kind."""

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TRIPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""Bounds for a round trip to the database, in seconds."""
TIMES = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21_600)
"""Bounds for jobs, in seconds: some take milliseconds, some hours."""
NAMES = 200
"""How many names of `run.measure` get a series of their own: a program may make them up without end."""


class Metrics:
    """Counts what `attach`ed events tell. The registry is one of its own, unless another is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = own = registry or CollectorRegistry()
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}
        self._names: set[tuple[str, str]] = set()
        self.transitions = Counter("interlock_transitions", "Arrows that the database stored.", ("kind", "event", "source", "target"), registry=own)
        self.attempts = Counter("interlock_attempts", "Attempts that ended.", ("kind", "queue", "outcome"), registry=own)
        self.dwell = Histogram("interlock_dwell_seconds", "From due to claimed.", ("kind", "queue"), buckets=TIMES, registry=own)
        self.run = Histogram("interlock_run_seconds", "How long handlers ran.", ("kind", "queue"), buckets=TIMES, registry=own)
        self.losses = Counter("interlock_lease_losses", "Executions that this process lost.", ("kind",), registry=own)
        self.refused = Counter("interlock_refused_moves", "Moves that the database refused.", ("kind",), registry=own)
        self.sizes = Histogram("interlock_batch_size", "Jobs in one round trip.", ("verb",), buckets=SIZES, registry=own)
        self.trips = Histogram("interlock_batch_seconds", "Round trips to the database.", ("verb",), buckets=TRIPS, registry=own)
        self.claims = Histogram("interlock_claim_seconds", "Round trips that ask for work.", ("found",), buckets=TRIPS, registry=own)
        self.claimed = Counter("interlock_claimed_jobs", "Jobs that this process claimed.", registry=own)
        self.renewals = Counter("interlock_renewals", "Leases, by what became of a beat.", ("result",), registry=own)
        self.beats = Histogram("interlock_renew_seconds", "Round trips that renew leases.", buckets=TRIPS, registry=own)
        self.measured = Summary("interlock_measured", "Usage that handlers recorded with run.measure.", ("kind", "name"), registry=own)
        self.recovered = Counter("interlock_recovered_jobs", "Jobs taken up that another left behind.", ("kind", "how"), registry=own)
        self.finishes = Counter("interlock_finish_failures", "Times that finish raised after a commit.", ("kind",), registry=own)
        self.hooks = Counter("interlock_hook_failures", "Times that the hook of a state raised.", ("kind", "state"), registry=own)
        self.troubles = Counter("interlock_troubles", "Unexpected errors, and a database out of reach.", ("where",), registry=own)
        self.checks = Histogram("interlock_check_seconds", "Questions to the outside, each about a batch.", ("kind",), buckets=TIMES, registry=own)
        self.outside = Counter("interlock_outside_failures", "Times that the outside could not be asked.", ("kind",), registry=own)
        self.workers = Gauge("interlock_workers", "Workers of this process, by the state they are in.", ("state",), registry=own)

    def attach(self, events: Events) -> Callable[[], None]:
        """Counts from now on; answers what ends that."""
        ends = (
            events.subscribe(self._moved, WorkerMoved),
            events.subscribe(lambda e: self.transitions.labels(e.kind, e.event, e.source or "", e.target).inc(), Transition),
            events.subscribe(self._ended, AttemptEnded),
            events.subscribe(lambda e: self.losses.labels(e.kind).inc(), LeaseLost),
            events.subscribe(lambda e: self.refused.labels(e.kind).inc(), MoveRefused),
            events.subscribe(self._batch, Batch),
            events.subscribe(self._claimed, Claimed),
            events.subscribe(self._renewed, Renewed),
            events.subscribe(self._measured, Measured),
            events.subscribe(lambda e: self.recovered.labels(e.kind, e.how).inc(), Recovered),
            events.subscribe(lambda e: self.finishes.labels(e.kind).inc(), FinishFailed),
            events.subscribe(lambda e: self.hooks.labels(e.kind, e.state).inc(), HookFailed),
            events.subscribe(lambda e: self.checks.labels(e.kind).observe(e.seconds), Checked),
            events.subscribe(lambda e: self.outside.labels(e.kind).inc(), OutsideFailed),
            # Its first word: what follows may be an id.
            events.subscribe(lambda e: self.troubles.labels(e.where.partition(" ")[0]).inc(), Trouble),
        )

        def end() -> None:
            for one in ends:
                one()

        return end

    def _moved(self, event: WorkerMoved) -> None:
        with self._lock:
            before = self._states.get(event.worker)
            self._states[event.worker] = event.target
            if before is not None:
                self.workers.labels(before).dec()
            self.workers.labels(event.target).inc()

    def _ended(self, event: AttemptEnded) -> None:
        self.attempts.labels(event.kind, event.queue, event.outcome).inc()
        if event.waited is not None and event.ran is not None:
            self.dwell.labels(event.kind, event.queue).observe(max(event.waited, 0.0))
            self.run.labels(event.kind, event.queue).observe(max(event.ran, 0.0))

    def _batch(self, event: Batch) -> None:
        self.sizes.labels(event.verb).observe(event.size)
        self.trips.labels(event.verb).observe(event.seconds)

    def _claimed(self, event: Claimed) -> None:
        self.claimed.inc(event.count)
        self.claims.labels("some" if event.count else "none").observe(event.seconds)

    def _renewed(self, event: Renewed) -> None:
        for result, count in (("renewed", event.renewed), ("lost", event.lost), ("busy", event.busy)):
            self.renewals.labels(result).inc(count)
        self.beats.observe(event.seconds)

    def _measured(self, event: Measured) -> None:
        # One value that is no number would spoil the sum for good.
        if math.isfinite(event.value):
            self.measured.labels(event.kind, self._name(event)).observe(event.value)

    def _name(self, event: Measured) -> str:
        key = (event.kind, event.name)
        with self._lock:
            if key not in self._names and len(self._names) >= NAMES:
                return "other"
            self._names.add(key)
        return event.name


class Standing(Collector):
    """What stands in the database, read at every scrape, in the thread that serves it. Where it cannot be read, `interlock_database_up` is 0 and the rest of
    the scrape is answered all the same."""

    def __init__(self, *, depths: Depths | None = None, states: States | None = None) -> None:
        self._depths, self._states = depths, states

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry that asks for names in advance must not read the database for it."""
        return ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("interlock_database_up", "Whether the database answered this scrape.")
        try:
            found = [*self._by_queue(), *self._by_state()]
        except Exception:
            log.exception("The metrics could not read the database: this scrape goes without its depths and states.")
            found = []
            up.add_metric((), 0)
        else:
            up.add_metric((), 1)
        yield up
        yield from found

    def _by_queue(self) -> Iterator[Metric]:
        if self._depths is None:
            return
        depth = GaugeMetricFamily("interlock_queue_jobs", "Jobs in a queue: due, later (not due yet), held, running.", labels=("kind", "queue", "standing"))
        oldest = GaugeMetricFamily("interlock_queue_oldest_seconds", "For how long the longest due job has been due.", labels=("kind", "queue"))
        for one in self._depths():
            for standing, count in (("due", one.due), ("later", one.later), ("held", one.held), ("running", one.running)):
                depth.add_metric((one.kind, one.queue, standing), count)
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
@dataclass(frozen=True, slots=True)
class Served:
    """A running endpoint."""

    url: str
    port: int
    close: Callable[[], None]


def serve(events: Events, port: int, *, host: str = "127.0.0.1", depths: Depths | None = None, states: States | None = None) -> Served:
    """Counts events and answers scrapes, until it is closed. Port 0 takes a free one. Only this machine can reach it, unless another `host` is named.

    The two callables are called at every scrape, from a thread of the endpoint. `UsageError` if the port cannot be had."""
    metrics = Metrics()
    metrics.registry.register(Standing(depths=depths, states=states))
    ProcessCollector(registry=metrics.registry)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except (OSError, OverflowError) as error:
        raise UsageError(f"The metrics cannot be served at {host}, port {port}: {error}. Name another port, or stop what has it.") from None
    end = metrics.attach(events)

    def close() -> None:
        end()
        server.shutdown()
        server.server_close()
        thread.join()

    shown = f"[{host}]" if ":" in host else host
    return Served(f"http://{shown}:{server.server_port}/metrics", server.server_port, close)
