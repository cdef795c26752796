"""The metrics of several worker processes as one: each process sends its values, and their supervisor adds them up.

This module needs the extra `metrics`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .events import Events
from .metrics import DATABASE_UP, DatabaseCollector, Depths, Metrics, States

COUNTS, DATABASE = "counts", "database"
"""The questions of the supervisor to a process."""
Labels = tuple[tuple[str, str], ...]
CUMULATIVE = ("counter", "histogram", "summary")
"""The types of metrics whose values only grow: a process that ended still counts."""
OF_A_PROCESS = "process_"
"""Metrics of the operating system about one process, such as its memory, are not added up but labelled."""


class MetricsSource:
    """The metrics of one worker process, in a form that JSON can carry."""

    def __init__(self, events: Events, *, depths: Depths, states: States) -> None:
        self._registry = CollectorRegistry()
        Metrics(self._registry).attach(events)
        ProcessCollector(registry=self._registry)
        self._database = DatabaseCollector(depths=depths, states=states)

    def counts(self) -> list[Any]:
        """Return what this process has counted."""
        return _encode(self._registry.collect())

    def database(self) -> list[Any]:
        """Return the numbers of jobs in the database, which are the same in every process."""
        return _encode(self._database.collect())


def _encode(metrics: Iterable[Metric]) -> list[Any]:
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            # The times at which series were created cannot be added.
            [[one.name, one.labels, one.value] for one in metric.samples if not one.name.endswith("_created")],
        ]
        for metric in metrics
    ]


@dataclass
class _Sum:
    """One metric with the sums of its samples."""

    documentation: str
    type: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict[tuple[str, Labels], float])


class _Sums:
    """Metrics by name, added up sample by sample."""

    def __init__(self, base: Mapping[str, _Sum] = MappingProxyType({})) -> None:
        self.by_name = {name: replace(metric, samples=dict(metric.samples)) for name, metric in base.items()}

    def add(self, worker: str, encoded: Iterable[Any]) -> None:
        for name, documentation, type_, samples in encoded:
            metric = self.by_name.setdefault(name, _Sum(documentation, type_))
            labelled = {"worker": worker} if name.startswith(OF_A_PROCESS) else {}
            for sample, labels, value in samples:
                key = (sample, tuple((labels | labelled).items()))
                # A worker and the one that replaces it have the same name: the values of the newer process count.
                metric.samples[key] = value if labelled else metric.samples.get(key, 0.0) + value

    def metrics(self) -> Iterator[Metric]:
        for name, metric in self.by_name.items():
            found = Metric(name, metric.documentation, metric.type)
            for (sample, labels), value in metric.samples.items():
                found.add_sample(sample, dict(labels), value)
            yield found


class MergedMetrics:
    """Adds up what worker processes have counted. A counter never falls, even when a process ends."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, tuple[str, list[Any]]] = {}
        self._ended = _Sums()

    def update(self, process: Hashable, worker: str, encoded: list[Any]) -> None:
        """Store the newest values of a process of this worker, until newer ones replace them."""
        self._latest[process] = worker, encoded

    def end(self, process: Hashable) -> None:
        """Keep the counts of a process that has ended, and forget its state and its memory."""
        worker, latest = self._latest.pop(process, ("", []))
        kept = [one for one in latest if one[2] in CUMULATIVE and not one[0].startswith(OF_A_PROCESS)]
        self._ended.add(worker, kept)

    def metrics(self, database: list[Any] | None, restarts: int) -> Iterator[Metric]:
        """Yield the sums, the numbers of jobs that one process read from the database, and the number of restarts."""
        sums = _Sums(self._ended.by_name)
        for worker, encoded in self._latest.values():
            sums.add(worker, encoded)
        sums.add("", database or ())
        yield from sums.metrics()
        if database is None:
            yield GaugeMetricFamily(*DATABASE_UP, value=0)
        yield CounterMetricFamily("interlock_worker_restarts", "Worker processes that were started again.", restarts)


class MergedCollector(Collector):
    """Calls a function at every scrape, and serves the metrics that it returns."""

    def __init__(self, scrape: Callable[[], list[Metric]]) -> None:
        self._scrape = scrape

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector asks no process."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._scrape()
