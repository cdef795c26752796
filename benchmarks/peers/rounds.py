"""Takes the samples of a run in interleaved rounds, and repeats those that were not quiet."""

from collections.abc import Callable, Iterator
from typing import Any

from .bench import Bench
from .measures import Measure, Sample
from .process import ProgramFailedError
from .sizes import Sizes
from .systems import System


def take_all(bench: Bench, chosen: list[Measure], sizes: Sizes, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield a record per measure, round and system. Each round starts with another system."""
    for measure in chosen:
        for number in range(measure.rounds or sizes.rounds):
            start = number % len(measure.systems)
            for system in measure.systems[start:] + measure.systems[:start]:
                where = f"{measure.name}, round {number + 1}, {system.name}"
                repeats = sizes.repeats if measure.needs_quiet else 0
                sample = take_quiet(lambda s=system, m=measure: m.take(bench, s, sizes), repeats, where, say)
                yield record(measure, system, number, sample)


def take_quiet(take: Callable[[], Sample], repeats: int, where: str, say: Callable[[str], None]) -> Sample | str:
    """Return the first quiet sample, or the quietest one after some repeats, or why there is none."""
    samples: list[Sample] = []
    failure = ""
    for _ in range(repeats + 1):
        try:
            samples.append(take())
        except (ProgramFailedError, TimeoutError) as error:
            failure = str(error)
            say(f"{where}: {failure}")
            continue
        reasons = samples[-1].noise.reasons()
        shown = " · ".join(f"{key} {value:,.4g}" for key, value in samples[-1].values.items())
        say(f"{where}: {shown}{' · not quiet: ' + ', '.join(reasons) if reasons else ''}")
        if not reasons:
            return samples[-1]
    return min(samples, key=lambda each: each.noise.others + each.noise.steal) if samples else failure


def record(measure: Measure, system: System, number: int, sample: Sample | str) -> dict[str, Any]:
    """Return the sample as JSON."""
    common = {"measure": measure.name, "system": system.name, "round": number}
    if isinstance(sample, str):
        return common | {"failure": sample}
    return common | {
        "values": {key: round(value, 3) for key, value in sample.values.items()},
        "series": [round(value, 1) for value in sample.series],
        "noise": sample.noise.as_json(),
        "reasons": sample.noise.reasons(),
    }
