"""Reads CPU time from /proc: of the machine, of process trees, and of a calibration loop."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from statistics import median

from .quiet import Calibration

TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat."""
LOOPS = 9
TURNS = 100_000
WRITES = 15


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    kernel: bool
    seconds: float
    """User and system time of the process and of its children that ended and were reaped."""


@dataclass(frozen=True)
class Snapshot:
    """The CPU time that everything has used so far, in seconds."""

    at: float
    busy: float
    steal: float
    processes: dict[int, Process]

    def of_trees(self, roots: Iterable[int]) -> float:
        """Return the time of these processes and their descendants, each counted once."""
        return sum(self.processes[pid].seconds for pid in self._members(roots))

    def of_kernel(self) -> float:
        """Return the time of kernel threads, which write our pages and journal to disk."""
        return sum(process.seconds for process in self.processes.values() if process.kernel)

    def _members(self, roots: Iterable[int]) -> set[int]:
        children: dict[int, list[int]] = {}
        for process in self.processes.values():
            children.setdefault(process.parent, []).append(process.pid)
        members: set[int] = set()
        waiting = [pid for pid in roots if pid in self.processes]
        while waiting:
            pid = waiting.pop()
            members.add(pid)
            waiting += children.get(pid, [])
        return members


def parse_process(text: str) -> Process:
    """Parse /proc/PID/stat. The command in parentheses may contain spaces and parentheses."""
    fields = text.rsplit(")", 1)[1].split()
    return Process(
        pid=int(text.split(" ", 1)[0]),
        parent=int(fields[1]),
        kernel=bool(int(fields[6]) & KERNEL_THREAD),
        seconds=sum(int(field) for field in fields[11:15]) / TICKS,
    )


def parse_machine(text: str) -> tuple[float, float]:
    """Parse the first line of /proc/stat. Return busy and stolen seconds of all cores together."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = (int(field) for field in text.split()[1:9])
    return (user + nice + system) / TICKS, steal / TICKS


def snapshot() -> Snapshot:
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                process = parse_process((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended; its parent has its time
            processes[process.pid] = process
    busy, steal = parse_machine(Path("/proc/stat").read_text().splitlines()[0])
    return Snapshot(time.monotonic(), busy, steal, processes)


def calibrate(directory: Path) -> Calibration:
    """Measure the speed of the machine now: of a loop, and of a synced write in this directory."""
    with (directory / "calibration").open("wb", buffering=0) as file:
        writes = [_synced_write(file) for _ in range(WRITES)]
    return Calibration(median(_loop() for _ in range(LOOPS)), median(writes))


def _loop() -> float:
    began, value = time.perf_counter(), 0
    for turn in range(TURNS):
        value = (value * 31 + turn) & 0xFFFFFFFF
    return time.perf_counter() - began


def _synced_write(file: FileIO) -> float:
    began = time.perf_counter()
    file.write(bytes(8192))
    os.fsync(file.fileno())
    return time.perf_counter() - began
