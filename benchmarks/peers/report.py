"""Turns the records of a run into the tables of the documentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from .measures import Column, Measure
from .ratios import ratio_of_rounds

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"


@dataclass(frozen=True)
class Results:
    """The records of one run. `ignore_noise` prints every ratio, and marks those that were not quiet."""

    records: Sequence[dict[str, Any]]
    ignore_noise: bool = False

    def of(self, measure: str, system: str) -> list[dict[str, Any]]:
        return [each for each in self.records if each["measure"] == measure and each["system"] == system]

    def measured(self, measure: Measure) -> bool:
        return any(each["measure"] == measure.name for each in self.records)

    def values(self, measure: str, system: str, key: str, *, quiet: bool) -> dict[int, float]:
        """Return the values of a column by round, of quiet samples only or of all."""
        return {
            each["round"]: each["values"][key]
            for each in self.of(measure, system)
            if "values" in each and key in each["values"] and not (quiet and each["reasons"])
        }

    # ------------------------------------------------------------ cells
    def value(self, measure: str, system: str, column: Column) -> str:
        """Return the median of the quiet rounds, or that of all rounds, marked with ~."""
        quiet = self.values(measure, system, column.key, quiet=True)
        every = self.values(measure, system, column.key, quiet=False)
        if not every:
            return "failed" if any("failure" in each for each in self.of(measure, system)) else "–"
        if quiet:
            return f"{median(quiet.values()):,.{column.digits}f}"
        if column.is_ratio and not self.ignore_noise:
            return self.why_not_quiet(measure, system)
        return f"~{median(every.values()):,.{column.digits}f}"

    def ratio(self, measure: str, ours: str, other: str, key: str) -> str:
        """Return the median ratio of the rounds in which both samples were quiet, or why there is none."""
        rounds = len({each["round"] for each in self.of(measure, ours)})
        first, second = (self.values(measure, system, key, quiet=True) for system in (ours, other))
        if len(first.keys() & second.keys()) >= ceil(rounds / 2):
            ratio = ratio_of_rounds(first, second)
            return "–" if ratio is None else f"{ratio:.2f}"
        first, second = (self.values(measure, system, key, quiet=False) for system in (ours, other))
        ratio = ratio_of_rounds(first, second)
        if ratio is None:
            return "–"
        return f"~{ratio:.2f} (noisy)" if self.ignore_noise else self.why_not_quiet(measure, ours, other)

    def why_not_quiet(self, measure: str, *systems: str) -> str:
        """Return the reason of the first sample that was not quiet."""
        for system in systems:
            for each in self.of(measure, system):
                if each.get("reasons"):
                    return f"not quiet: {each['reasons'][0]}"
        return "not quiet"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def value_table(measure: Measure, results: Results) -> str:
    rows = [
        [system.name, *(results.value(measure.name, system.name, column) for column in measure.columns)]
        for system in measure.systems
        if results.of(measure.name, system.name)
    ]
    return table(["", *(column.title for column in measure.columns)], rows)


def failures(measure: Measure, results: Results) -> str | None:
    found = [
        (each["system"], each["failure"])
        for each in results.records
        if each["measure"] == measure.name and "failure" in each
    ]
    return "\n".join(f"- {system} failed: {why}" for system, why in dict.fromkeys(found)) or None


def ratio_table(measure: Measure, results: Results) -> str | None:
    """Return a row for each compared column of each of our systems, and a column for each other system."""
    pairs = measure.compared()
    ours = list(dict.fromkeys(first.name for first, _ in pairs))
    others = list(dict.fromkeys(second.name for _, second in pairs))
    compared = {(first.name, second.name) for first, second in pairs}
    rows = [
        [
            f"{name}: {column.title}",
            *(
                results.ratio(measure.name, name, other, column.key) if (name, other) in compared else ""
                for other in others
            ),
        ]
        for name in ours
        for column in measure.columns
        if column.compared
    ]
    return table(["ratio", *(f"÷ {other}" for other in others)], rows) if rows else None


def sections(chosen: Sequence[Measure], results: Results, *, images: bool) -> str:
    """Return the Markdown of all measures: a heading, the values, the ratios and the chart of each."""
    parts: list[str] = []
    for measure in chosen:
        if results.measured(measure):
            below = [failures(measure, results), ratio_table(measure, results)]
            parts += [f"### {measure.title}", value_table(measure, results), *(part for part in below if part)]
            if images:
                parts.append(f"![{measure.title}: {measure.columns[0].title}](benchmarks/{measure.name}.svg)")
    return "\n\n".join(parts)


def settings(chosen: Sequence[Measure]) -> str:
    """Return the settings of each system once, as a table."""
    found = {system.name: system.settings for measure in chosen for system in measure.systems}
    return table(["system", "settings"], list(found.items()))


def replace_between_markers(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with the text between the two markers replaced."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"The page has no {begin} followed by {end}.")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
