"""The model in benchmarks/scaling.py gives the rates that were measured, and its page shows the published run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.scaling import Cost, batches_at_once, ceiling, fit, throughput, wait_per_transaction

TOLERANCE = 0.25
"""The largest accepted error of a predicted rate."""
SAMPLE = Path(__file__).with_name("scaling_run.json")
"""Records of quick runs, which the page shows until a run is published."""
PLAIN = Cost(programs=60, database=40, transactions=0.02)


def load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def shown_run() -> dict[str, Any]:
    return load(scaling.RUN if scaling.RUN.exists() else SAMPLE)


# ---------------------------------------------------------------- the model
def test_one_batch_at_a_time_uses_one_core() -> None:
    for cores in (1, 2, 32):
        assert throughput(PLAIN, 0, cores=cores) == pytest.approx(10_000)


def test_wait_of_a_transaction_is_shared_by_the_jobs_of_its_batch() -> None:
    assert throughput(Cost(60, 40, 1), 100, cores=2) == pytest.approx(5_000)
    assert throughput(Cost(60, 40, 1 / 100), 100, cores=2) == pytest.approx(1e6 / 101)


def test_one_process_runs_python_on_one_core_at_most() -> None:
    for processes in (1, 3):
        rate, most = throughput(PLAIN, 0, cores=32, processes=processes, at_once=100), processes * 1e6 / 60
        assert rate == pytest.approx(most, rel=0.01)
        assert rate <= most * 1.000001


def test_all_processes_together_use_no_more_than_all_cores() -> None:
    for cores in (1, 2, 8):
        most = ceiling(PLAIN, cores=cores, workers_elsewhere=False)
        assert throughput(PLAIN, 100, cores=cores, processes=cores * 20) == pytest.approx(most, rel=0.05)
        assert throughput(PLAIN, 100, cores=cores, processes=cores * 20) <= most


def test_more_processes_are_never_slower() -> None:
    rates = [throughput(PLAIN, 100, cores=8, processes=n) for n in range(1, 40)]
    assert rates == sorted(rates)


def test_server_without_workers_is_busy_with_the_database_alone() -> None:
    assert ceiling(PLAIN, cores=2, workers_elsewhere=True) == pytest.approx(50_000)
    assert ceiling(PLAIN, cores=2, workers_elsewhere=False) == pytest.approx(20_000)


def test_wait_and_overlap_are_found_from_the_rates_that_they_cause() -> None:
    single, batched = Cost(100, 150, 1), Cost(10, 90, 0.02)
    assert wait_per_transaction(single, throughput(single, 80, cores=2)) == pytest.approx(80)
    for at_once in (1, 2, 3):
        rate = throughput(batched, 80, cores=8, at_once=at_once)
        assert batches_at_once(batched, 80, rate, cores=8) == at_once


# ---------------------------------------------------------------- measured points
@pytest.mark.parametrize("file", [SAMPLE, scaling.RUN], ids=["sample", "published"])
def test_model_predicts_the_measured_rates(file: Path) -> None:
    if not file.exists():
        pytest.skip("No run is published yet: make bench-peers ARGS=--publish")
    fitted = fit(load(file))
    assert fitted is not None
    quiet = [each for each in fitted.comparisons if each.quiet]
    if not scaling.CALIBRATION.keys() <= {each.point for each in quiet}:
        pytest.skip("The machine was not quiet while the run measured enqueue-one and drain-1, which the model needs.")
    errors = {(each.point.measure, each.point.system): round(each.error, 2) for each in quiet}
    assert all(abs(error) <= TOLERANCE for error in errors.values()), errors


def test_run_without_the_fitted_measures_is_not_shown() -> None:
    run = load(SAMPLE)
    run["records"] = [each for each in run["records"] if each["measure"] != "enqueue-one"]
    assert fit(run) is None
    assert "lacks `enqueue-one`" in scaling.report(run)


def test_noisy_rate_is_not_compared() -> None:
    run = load(SAMPLE)
    for each in run["records"]:
        if each["measure"] == "drain-2":
            each["reasons"] = ["38 % of the CPU went to other processes"]
    lines = [line for line in scaling.report(run).splitlines() if "`drain-2`" in line]
    assert len(lines) == 2
    assert all("~" in line and "not quiet" in line for line in lines)


def test_missing_run_ends_the_command_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "run.json"
    monkeypatch.setattr(scaling, "RUN", missing)
    monkeypatch.setattr(sys, "argv", ["scaling"])
    with pytest.raises(SystemExit, match="1"):
        scaling.main()
    wrong = f"There is no saved run {missing}: name one, or run make bench-peers ARGS=--publish first.\n"
    assert capsys.readouterr().err == wrong


def test_page_shows_the_published_run() -> None:
    """Run `python -m benchmarks.scaling --write` after a run was published in another way than by `--publish`."""
    page = scaling.PAGE.read_text()
    shown = page.partition(scaling.BEGIN)[2].partition(scaling.END)[0].strip()
    assert shown == scaling.report(shown_run())
