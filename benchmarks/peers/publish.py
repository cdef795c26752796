"""Writes a finished run into the documentation: the page between its markers, the charts, and the records."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .charts import Bar, bar_chart, line_chart
from .measures import Column, Measure
from .report import Results, replace_between_markers, sections, settings
from .systems import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"


def publish(run: dict[str, Any], known: Sequence[Measure], page: Path = PAGE) -> None:
    """Replace what the last published run wrote."""
    results = Results(run["records"])
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    for measure in known:
        if results.measured(measure):
            (folder / f"{measure.name}.svg").write_text(chart(measure, results))
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    text = "\n\n".join([heading(run["facts"]), sections(known, results, images=True), "### Settings", settings(known)])
    page.write_text(replace_between_markers(page.read_text(), text))


def heading(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"Run of {facts['date']} at commit `{facts['commit']}`: {facts['cores']} cores, PostgreSQL "
        f"{facts['postgresql']}, Python {facts['python']}, {versions}. [All records](benchmarks/run.json)"
        + (" (`--quick`: small sizes, one round)." if facts["quick"] else ".")
    )


def chart(measure: Measure, results: Results) -> str:
    """Return the bars of the first column, or the course of a backlog's drain."""
    column = measure.columns[0]
    if measure.name == "backlog":
        lines = {
            system.name: record["series"]
            for system in measure.systems
            for record in results.of(measure.name, system.name)[:1]
            if record.get("series")
        }
        return line_chart(measure.title, lines, column.title)
    bars = [bar for system in measure.systems if (bar := _bar(measure, system.name, system.ours, column, results))]
    return bar_chart(f"{measure.title}: {column.title}", bars)


def _bar(measure: Measure, system: str, ours: bool, column: Column, results: Results) -> Bar | None:
    quiet = results.values(measure.name, system, column.key, quiet=True)
    values = quiet or results.values(measure.name, system, column.key, quiet=False)
    if not values:
        return None
    low, high = min(values.values()), max(values.values())
    label = results.value(measure.name, system, column)
    return Bar(system, low, median(values.values()), high, ours, label, noisy=not quiet)
