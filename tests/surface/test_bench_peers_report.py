"""The comparison with other job systems prints a ratio only if the machine was quiet, and publishes page and charts."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import measures as measuring
from benchmarks.peers.charts import Bar, bar_chart, line_chart
from benchmarks.peers.publish import publish
from benchmarks.peers.quiet import Noise
from benchmarks.peers.report import Results, ratio_table, replace_between_markers, sections, value_table
from benchmarks.peers.sizes import Sizes

QUIET = Noise(0.01, 0, 0.02, 0.03, 0.1)
BUSY = replace(QUIET, others=0.38)
DRAIN = next(measure for measure in measuring.measures(Sizes()) if measure.name == "drain-1")


# ---------------------------------------------------------------- tables


def records(noises: dict[str, list[Noise]], measure: str = "drain-1") -> list[dict[str, Any]]:
    """Records of rounds in which Interlock drains 100, 200, 300 … jobs/s and each other system 1,000."""
    return [
        {
            "measure": measure,
            "system": system,
            "round": number,
            "values": {"rate": 100.0 * (number + 1) if system == "Interlock" else 1000.0, "cpu": 200.0},
            "series": [],
            "noise": noise.as_json(),
            "reasons": noise.reasons(),
        }
        for system, rounds in noises.items()
        for number, noise in enumerate(rounds)
    ]


def cells(table: str | None, row: str) -> list[str]:
    assert table is not None
    found = [line for line in table.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in found[0].strip("|").split("|")][1:]


def test_quiet_rounds_give_a_median_and_a_ratio() -> None:
    results = Results(records({"Interlock": [QUIET] * 3, "PgQueuer": [QUIET] * 3}))
    assert cells(value_table(DRAIN, results), "Interlock")[0] == "200"
    assert cells(ratio_table(DRAIN, results), "Interlock: jobs/s")[0] == "0.20"


def test_ratio_is_refused_if_most_rounds_were_noisy() -> None:
    results = Results(records({"Interlock": [QUIET, BUSY, QUIET], "PgQueuer": [QUIET, QUIET, BUSY]}))
    reason = "not quiet: 38 % of the CPU went to other processes"
    assert cells(ratio_table(DRAIN, results), "Interlock: jobs/s")[0] == reason
    assert cells(ratio_table(DRAIN, results), "Interlock: both, µs per job")[0] == reason


def test_one_noisy_round_of_three_is_left_out() -> None:
    results = Results(records({"Interlock": [QUIET, QUIET, BUSY], "PgQueuer": [QUIET] * 3}))
    assert cells(ratio_table(DRAIN, results), "Interlock: jobs/s")[0] == "0.15"


def test_cpu_per_job_of_noisy_rounds_is_printed_and_marked() -> None:
    results = Results(records({"Interlock": [BUSY] * 3}))
    assert cells(value_table(DRAIN, results), "Interlock") == ["~200", "–", "–", "~200"]


def test_ignored_noise_marks_the_ratio() -> None:
    results = Results(records({"Interlock": [BUSY], "PgQueuer": [BUSY]}), ignore_noise=True)
    assert cells(ratio_table(DRAIN, results), "Interlock: jobs/s")[0] == "~0.10 (noisy)"


def test_value_that_is_itself_a_ratio_is_refused_if_noisy() -> None:
    backlog = next(measure for measure in measuring.measures(Sizes()) if measure.name == "backlog")
    [record] = records({"Interlock": [BUSY]}, "backlog")
    record["values"]["evenness"] = 0.5
    shown = cells(value_table(backlog, Results([record])), "Interlock")
    assert shown == ["~100", "not quiet: 38 % of the CPU went to other processes", "~200"]


def test_failed_system_is_named_below_the_table() -> None:
    failed = {"measure": "drain-1", "system": "PgQueuer", "round": 0, "failure": "The worker exited with 1."}
    text = sections([DRAIN], Results([*records({"Interlock": [QUIET]}), failed]), images=False)
    assert "| PgQueuer | failed | failed | failed | failed |" in text
    assert "- PgQueuer failed: The worker exited with 1." in text
    assert cells(text, "Interlock: jobs/s")[0] == "–"


def test_text_is_replaced_between_the_markers_only() -> None:
    page = "a\n<!-- bench-peers: begin -->\nold\n<!-- bench-peers: end -->\nb\n"
    new = replace_between_markers(page, "new")
    assert new == "a\n<!-- bench-peers: begin -->\n\nnew\n\n<!-- bench-peers: end -->\nb\n"
    with pytest.raises(ValueError, match="begin"):
        replace_between_markers("a\n", "new")


def test_published_run_has_a_page_charts_and_its_records(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Title\n\n<!-- bench-peers: begin --><!-- bench-peers: end -->\n")
    facts = {
        "date": "2026-11-18", "commit": "abc", "cores": 2, "python": "3.11", "postgresql": "18.4", "quick": True,
        "versions": {"pgqueuer": "1.6.0"},
    }  # fmt: skip
    backlog = records({"Interlock": [QUIET]}, "backlog")
    backlog[0]["series"] = [1.0] * 10
    run = {"facts": facts, "records": [*records({"Interlock": [QUIET], "PgQueuer": [QUIET]}), *backlog]}
    publish(run, measuring.measures(Sizes()), page)
    text = page.read_text()
    assert "| Interlock | 100 |" in text
    assert "`--quick`" in text
    for chart in re.findall(r"\]\((benchmarks/[^)]+)\)", text):
        assert (tmp_path / chart).exists()
    assert json.loads((tmp_path / "benchmarks" / "run.json").read_text()) == run


# ---------------------------------------------------------------- charts
def test_bar_chart_is_an_svg_with_a_bar_for_each_system() -> None:
    bars = [Bar("a <b>", 90, 100, 110, True, "100"), Bar("c", 50, 50, 50, False, "50")]
    root = ET.fromstring(bar_chart("Drain & more", bars))
    widths = [float(each.get("width", "")) for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Drain & more"
    assert {"a <b>", "c", "100", "50"} <= set(texts)


def test_noisy_bar_is_pale() -> None:
    bars = [Bar("a", 1, 1, 1, True, "1"), Bar("b", 1, 1, 1, False, "~1", noisy=True)]
    pale = [line for line in bar_chart("Drain", bars).splitlines() if "fill-opacity" in line]
    assert len(pale) == 1
    assert "pale: the machine was not quiet" in bar_chart("Drain", bars)
    assert "pale" not in bar_chart("Drain", bars[:1])


def test_line_chart_has_a_point_for_each_tenth() -> None:
    root = ET.fromstring(line_chart("Backlog", {"a": [1.0] * 10, "b": [2.0] * 10}, "jobs/s"))
    lines = [each.get("points", "") for each in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points.split()) for points in lines] == [10, 10]


def test_charts_without_values_are_valid() -> None:
    ET.fromstring(bar_chart("Nothing", []))
    ET.fromstring(line_chart("Nothing", {}, "jobs/s"))
