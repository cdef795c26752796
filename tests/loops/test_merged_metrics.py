"""The metrics of several worker processes as one: sums of what they counted, and the database read once."""

import json
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from interlock.errors import Unavailable
from interlock.store.report_types import Depth
from interlock.telemetry.events import AttemptEnded, Events, WorkerStateChanged
from interlock.telemetry.merged_metrics import MergedCollector, MergedMetrics, MetricsSource
from tests.loops.event_examples import ID


class Worker:
    """One worker process: its events, and its answers as they arrive at the supervisor."""

    def __init__(self, *, reachable: bool = True) -> None:
        self.events = Events()
        self._reachable = reachable
        self._source = MetricsSource(self.events, depths=self._depths, states=lambda: {"standard": {"PENDING": 4}})

    def _depths(self) -> Iterable[Depth]:
        if not self._reachable:
            raise Unavailable("The server is stopped.")
        return [Depth("paint", "default", due=4, later=0, held=0, running=1, oldest=2.0)]

    def ran(self, kind: str, *seconds: float) -> "Worker":
        for each in seconds:
            self.events.emit(AttemptEnded(ID, kind, "default", 1, "succeed", 0.0, each))
        return self

    def counts(self) -> list[object]:
        return json.loads(json.dumps(self._source.counts()))  # type: ignore[no-any-return]

    def database(self) -> list[object]:
        return json.loads(json.dumps(self._source.database()))  # type: ignore[no-any-return]


def series(merged: MergedMetrics, database: list[object] | None = None, restarts: int = 0) -> dict[str, float]:
    """Return the series that a scrape sees; the parser checks the format."""
    registry = CollectorRegistry()
    registry.register(MergedCollector(lambda: list(merged.metrics(database, restarts))))
    text = generate_latest(registry).decode()
    assert list(text_string_to_metric_families(text))
    said = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in said}


ATTEMPTS = 'interlock_attempts_total{{kind="{}",outcome="succeed",queue="default"}}'
PAINT, FLY = ATTEMPTS.format("paint"), ATTEMPTS.format("fly")


@pytest.fixture
def merged() -> MergedMetrics:
    return MergedMetrics()


def test_counters_and_histograms_are_sums(merged: MergedMetrics) -> None:
    """Series that only one process has are there, too; the buckets of a histogram stay in order."""
    merged.update("w-1", "w-1", Worker().ran("paint", 0.01, 2.0).counts())
    merged.update("w-2", "w-2", Worker().ran("paint", 2.0).ran("fly", 9.0).counts())
    found = series(merged)
    assert (found[PAINT], found[FLY]) == (3, 1)
    run = 'interlock_run_seconds_{}{{kind="paint",{}queue="default"}}'
    assert found[run.format("sum", "")] == 4.01
    assert [found[run.format("bucket", f'le="{limit}",')] for limit in ("0.005", "0.025", "2.5", "+Inf")] == [
        0,
        1,
        3,
        3,
    ]
    limits = [name for name in found if name.startswith('interlock_run_seconds_bucket{kind="paint"')]
    assert limits[0].count('le="0.005"') == limits[-1].count('le="+Inf"') == 1
    assert not [name for name in found if "_created" in name]


def test_counter_never_falls_when_a_process_ends(merged: MergedMetrics) -> None:
    """Its successor counts from zero; Prometheus would take a fall for a restart of the whole, and count twice."""
    merged.update("w-1", "w-1", Worker().ran("paint", 1.0, 1.0).counts())
    merged.update("w-2", "w-2", Worker().ran("paint", 1.0).counts())
    merged.end("w-1")
    assert series(merged)[PAINT] == 3
    successor = Worker().ran("paint", 1.0)
    merged.update("w-1", "w-1", successor.counts())
    merged.update("w-1", "w-1", successor.counts())
    assert series(merged)[PAINT] == 4
    merged.end("w-1")
    merged.end("w-1")
    assert series(merged)[PAINT] == 4


def test_states_and_memory_of_an_ended_process_are_forgotten(merged: MergedMetrics) -> None:
    """Only counts outlive a process."""
    for name in ("w-1", "w-2"):
        worker = Worker()
        worker.events.emit(WorkerStateChanged(name, "Polling", "Idle", ""))
        merged.update(name, name, worker.counts())
    assert series(merged)['interlock_workers{state="Idle"}'] == 2
    merged.end("w-1")
    found = series(merged)
    assert found['interlock_workers{state="Idle"}'] == 1
    assert [name for name in found if 'worker="w-1"' in name] == []


def test_metrics_of_a_process_are_labelled_with_its_worker(merged: MergedMetrics) -> None:
    """The sum of two memory sizes or start times would mean nothing."""
    for name in ("w-1", "w-2"):
        merged.update(name, name, Worker().counts())
    found = series(merged)
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"):
        assert {each for each in found if each.startswith(name)} == {f'{name}{{worker="w-{n}"}}' for n in (1, 2)}


def test_counts_of_a_worker_and_its_replacement_add_up(merged: MergedMetrics) -> None:
    """Both have the same name while the old process ends. The memory and times are those of the newer one."""
    old, new = Worker().ran("paint", 1.0), Worker().ran("paint", 1.0)
    merged.update("old", "w-1", old.counts())
    once = series(merged)['process_start_time_seconds{worker="w-1"}']
    merged.update("new", "w-1", new.counts())
    assert series(merged)[PAINT] == 2
    assert series(merged)['process_start_time_seconds{worker="w-1"}'] == once
    merged.end("old")
    assert series(merged)[PAINT] == 2


def test_numbers_of_jobs_are_read_once(merged: MergedMetrics) -> None:
    """Every process reads the same database, so one of them answers for all."""
    workers = [Worker(), Worker()]
    for number, worker in enumerate(workers):
        merged.update(number, f"w-{number}", worker.counts())
    found = series(merged, workers[0].database(), restarts=5)
    assert found['interlock_queue_jobs{kind="paint",queue="default",state="due"}'] == 4
    assert found['interlock_jobs{lifecycle="standard",state="PENDING"}'] == 4
    assert (found["interlock_database_up"], found["interlock_worker_restarts_total"]) == (1, 5)


def test_unreachable_database_and_a_silent_process_look_alike(merged: MergedMetrics) -> None:
    """In both cases, the database did not answer this scrape; the counts are served."""
    merged.update("w-1", "w-1", Worker().ran("paint", 1.0).counts())
    for answer in (Worker(reachable=False).database(), None):
        found = series(merged, answer)
        assert (found["interlock_database_up"], found[PAINT]) == (0, 1)
        assert not [name for name in found if name.startswith("interlock_queue_jobs")]
