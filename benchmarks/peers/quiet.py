"""Decides whether a sample may be compared: the machine must have worked for the benchmark alone, at one speed."""

from dataclasses import asdict, dataclass

OTHERS = 0.05
"""The largest share of the CPU that other processes may use during a sample."""
STEAL = 0.02
"""The largest share of the CPU that the hypervisor may give to other machines."""
DRIFT = 0.10
"""How far the calibrations before and after a sample may differ."""
SLOWER = 0.15
"""How far a calibration may exceed the fastest one of the run."""
DISK = 1.0
"""How far the time of a synced write may exceed the fastest one of the run."""


@dataclass(frozen=True)
class Noise:
    """What disturbed one sample. Each field is a share: 0.05 means 5 %."""

    others: float
    """CPU time of processes outside the benchmark, of all CPU time of the machine."""
    steal: float
    """CPU time that the hypervisor took, of all CPU time of the machine."""
    drift: float
    """Difference of the calibrations before and after the sample."""
    slower: float
    """How much slower the slower calibration is than the fastest one of the run."""
    disk: float
    """How much slower a synced write is, before or after the sample, than the fastest one of the run."""

    def reasons(self) -> list[str]:
        """Return why the sample is not quiet. An empty list means that it is."""
        return [
            f"{share:.0%} {what}".replace("%", " %")
            for share, limit, what in (
                (self.others, OTHERS, "of the CPU went to other processes"),
                (self.steal, STEAL, "of the CPU went to other machines on this host"),
                (self.drift, DRIFT, "change of CPU speed during the sample"),
                (self.slower, SLOWER, "slower CPU than at its fastest in this run"),
                (self.disk, DISK, "slower synced writes than at their fastest in this run"),
            )
            if share > limit
        ]

    @property
    def quiet(self) -> bool:
        return not self.reasons()

    def as_json(self) -> dict[str, float]:
        return {name: round(share, 4) for name, share in asdict(self).items()}


@dataclass(frozen=True)
class Calibration:
    """The seconds that a fixed loop takes, and those of one synced write."""

    loop: float
    write: float

    def fastest(self, other: "Calibration") -> "Calibration":
        return Calibration(min(self.loop, other.loop), min(self.write, other.write))


@dataclass(frozen=True)
class Used:
    """The CPU seconds of one sample."""

    capacity: float
    """The time of the sample times the number of cores."""
    busy: float
    ours: float
    """Those of the benchmark, the server and the kernel's own threads."""
    steal: float


def noise_of(used: Used, before: Calibration, after: Calibration, fastest: Calibration) -> Noise:
    """Judge one sample by its CPU time, and by the calibrations before it, after it, and of the whole run.

    The kernel counts in hundredths of a second, so a difference of two counts in a short sample may exceed what is
    possible.
    """
    return Noise(
        others=min(1.0, max(0.0, used.busy - used.ours) / used.capacity),
        steal=used.steal / used.capacity,
        drift=max(before.loop, after.loop) / min(before.loop, after.loop) - 1,
        slower=max(before.loop, after.loop) / fastest.loop - 1,
        disk=max(before.write, after.write) / fastest.write - 1,
    )
