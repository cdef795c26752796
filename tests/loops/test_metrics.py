"""Metrics for Prometheus: counters of this process, and gauges that are read from the database at each scrape."""

import logging
import math
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from interlock.errors import Unavailable
from interlock.store.report_types import Depth
from interlock.telemetry.events import AttemptEnded, Claimed, Events, Measured, WorkerStateChanged
from interlock.telemetry.metrics import NAMES, DatabaseCollector, Metrics
from tests.loops.event_examples import ID, ONE_OF_EACH, WORKER


def lines(registry: CollectorRegistry) -> dict[str, float]:
    """Return the series of a scrape, without the `_created` times."""
    text = generate_latest(registry).decode()
    said = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in said if "_created" not in series}


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def metrics(events: Events) -> Metrics:
    metrics = Metrics()
    metrics.attach(events)
    return metrics


# ---------------------------------------------------------------- counters of this process
def test_every_event_is_counted(events: Events, metrics: Metrics) -> None:
    for one in ONE_OF_EACH:
        events.emit(one)
    assert (
        lines(metrics.registry).items()
        >= {
            'interlock_transitions_total{event="claim",kind="paint",source="PENDING",target="RUNNING"}': 1,
            'interlock_attempts_total{kind="paint",outcome="succeed",queue="default"}': 1,
            'interlock_queue_wait_seconds_sum{kind="paint",queue="default"}': 0.5,
            'interlock_run_seconds_sum{kind="paint",queue="default"}': 2.0,
            'interlock_lease_losses_total{kind="paint"}': 1,
            'interlock_refused_moves_total{kind="paint"}': 1,
            'interlock_batch_size_sum{verb="settle"}': 7,
            'interlock_batch_seconds_sum{verb="settle"}': 0.004,
            "interlock_claimed_jobs_total": 4,
            'interlock_claim_seconds_sum{found="some"}': 0.002,
            'interlock_renewals_total{result="renewed"}': 5,
            'interlock_renewals_total{result="lost"}': 1,
            'interlock_renewals_total{result="busy"}': 2,
            "interlock_renew_seconds_sum": 0.001,
            'interlock_measured_sum{kind="paint",name="pixels"}': 640,
            'interlock_measured_count{kind="paint",name="pixels"}': 1,
            'interlock_recovered_jobs_total{how="adopted",kind="paint"}': 1,
            'interlock_finish_failures_total{kind="paint"}': 1,
            'interlock_hook_failures_total{kind="paint",state="FAILED"}': 1,
            'interlock_errors_total{where="job"}': 1,
            'interlock_check_seconds_sum{kind="paint"}': 0.3,
            'interlock_external_check_failures_total{kind="paint"}': 1,
            'interlock_workers{state="Connecting"}': 1,
        }.items()
    )


def test_attempt_of_an_external_system_is_counted_without_times(events: Events, metrics: Metrics) -> None:
    """No wait and run times are recorded for it."""
    events.emit(AttemptEnded(ID, "paint", "default", 1, "succeed", None, None))
    found = lines(metrics.registry)
    assert found['interlock_attempts_total{kind="paint",outcome="succeed",queue="default"}'] == 1
    assert not [name for name in found if name.startswith(("interlock_queue_wait_seconds", "interlock_run_seconds"))]


def test_labels_contain_no_job_ids_or_worker_names(events: Events, metrics: Metrics) -> None:
    """One series per job would overload Prometheus."""
    for one in ONE_OF_EACH:
        events.emit(one)
    text = generate_latest(metrics.registry).decode()
    assert ID not in text
    assert WORKER not in text


def test_empty_claim_has_its_own_label(events: Events, metrics: Metrics) -> None:
    events.emit(Claimed(WORKER, 0, 0.001))
    said = lines(metrics.registry)
    assert said['interlock_claim_seconds_count{found="none"}'] == 1
    assert said["interlock_claimed_jobs_total"] == 0


def test_worker_is_in_one_state_at_a_time(events: Events, metrics: Metrics) -> None:
    """Each worker of a process counts once, whatever its state was when counting began."""
    for worker, source, target in (
        ("a", "Polling", "Backoff"),
        ("a", "Backoff", "Idle"),
        ("b", "Startup", "Connecting"),
        ("b", "Connecting", "Idle"),
    ):
        events.emit(WorkerStateChanged(worker, source, target, ""))
    said = lines(metrics.registry)
    assert {series: count for series, count in said.items() if series.startswith("interlock_workers") and count} == {
        'interlock_workers{state="Idle"}': 2
    }


def test_number_of_measure_names_is_limited(events: Events, metrics: Metrics) -> None:
    for number in range(NAMES + 10):
        events.emit(Measured(ID, "paint", f"n{number}", 1))
    events.emit(Measured(ID, "paint", "n0", 1))
    said = {
        series: value
        for series, value in lines(metrics.registry).items()
        if series.startswith("interlock_measured_count")
    }
    assert len(said) == NAMES + 1
    assert said['interlock_measured_count{kind="paint",name="other"}'] == 10
    assert said['interlock_measured_count{kind="paint",name="n0"}'] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinite_measures_are_not_added_to_the_sum(value: float, events: Events, metrics: Metrics) -> None:
    for one in (value, -2.0, 5.0):
        events.emit(Measured(ID, "paint", "pixels", one))
    assert lines(metrics.registry)['interlock_measured_sum{kind="paint",name="pixels"}'] == 3


def test_counting_ends_when_metrics_are_detached() -> None:
    events, metrics = Events(), Metrics()
    metrics.attach(events)()
    assert not events.active


def test_metrics_use_the_callers_registry() -> None:
    registry, events = CollectorRegistry(auto_describe=True), Events()
    Metrics(registry).attach(events)
    events.emit(AttemptEnded(ID, "paint", "default", 1, "fail", 0, 0))
    assert lines(registry)['interlock_attempts_total{kind="paint",outcome="fail",queue="default"}'] == 1


# ---------------------------------------------------------------- gauges of the database
def test_queue_depths_and_states_are_read_at_every_scrape() -> None:
    """Registering the collector does not query the database."""
    due = iter((3, 4))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(
        DatabaseCollector(
            depths=lambda: [Depth("paint", "slow", next(due), 2, 1, 5, 12.5)],
            states=lambda: {"paint": {"PENDING": 6, "RUNNING": 5}},
        )
    )
    assert lines(registry) == {
        "interlock_database_up": 1,
        'interlock_queue_jobs{kind="paint",queue="slow",state="due"}': 3,
        'interlock_queue_jobs{kind="paint",queue="slow",state="later"}': 2,
        'interlock_queue_jobs{kind="paint",queue="slow",state="held"}': 1,
        'interlock_queue_jobs{kind="paint",queue="slow",state="running"}': 5,
        'interlock_queue_oldest_seconds{kind="paint",queue="slow"}': 12.5,
        'interlock_jobs{lifecycle="paint",state="PENDING"}': 6,
        'interlock_jobs{lifecycle="paint",state="RUNNING"}': 5,
    }
    assert lines(registry)['interlock_queue_jobs{kind="paint",queue="slow",state="due"}'] == 4


def test_scrape_is_answered_while_the_database_is_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    """It has the counters of the process, and `interlock_database_up` is 0."""
    metrics = Metrics()

    def away() -> list[Depth]:
        raise Unavailable("The database cannot be reached.")

    metrics.registry.register(DatabaseCollector(depths=away, states=lambda: {"paint": {"PENDING": 6}}))
    said = lines(metrics.registry)
    assert said["interlock_database_up"] == 0
    assert said["interlock_claimed_jobs_total"] == 0
    assert not any(series.startswith(("interlock_queue", "interlock_jobs")) for series in said)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# ---------------------------------------------------------------- without the extra
BLOCKED = """
import sys
sys.modules["prometheus_client"] = None
from interlock.errors import UsageError
try:
    import interlock.telemetry.metrics
except UsageError as error:
    print(error)
"""


def test_missing_extra_is_reported_with_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    assert (
        done.stdout == "Metrics need prometheus_client, which is not installed. Run pip install 'interlock[metrics]'.\n"
    )
