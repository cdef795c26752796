"""Medians, percentiles, and ratios of samples from interleaved rounds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    if not values:
        raise ValueError("A percentile needs at least one value.")
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def ratio_of_rounds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """Return the median of the ratios of rounds in which both were measured; None if there is no such round.

    Two samples of one round were taken within minutes of each other, so slow changes of the machine cancel out.
    """
    ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number]]
    return median(ratios) if ratios else None


def rate_by_tenth(progress: Sequence[tuple[float, int]], jobs: int) -> list[float]:
    """Return the jobs per second in each tenth of a drain, from (seconds, jobs that ran so far)."""
    points = [(0.0, 0), *progress]
    marks = [_time_of(points, jobs * tenth / 10) for tenth in range(11)]
    return [jobs / 10 / (end - begin) for begin, end in pairwise(marks)]


def _time_of(points: Sequence[tuple[float, int]], count: float) -> float:
    """Interpolate when this many jobs had run."""
    for (begin, before), (end, after) in pairwise(points):
        if after >= count:
            return begin + (end - begin) * (count - before) / (after - before) if after > before else begin
    raise ValueError(f"The reports end before job {count:.0f}.")
