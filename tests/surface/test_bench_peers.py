"""The comparison with other job systems measures, judges and repeats as it says. No peer runs here."""

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks.peers import measures as measuring
from benchmarks.peers import systems
from benchmarks.peers.__main__ import choose
from benchmarks.peers.cpu import Process, Snapshot, parse_machine, parse_process, snapshot
from benchmarks.peers.measures import Sample
from benchmarks.peers.process import Client, ProgramFailedError, Worker, running
from benchmarks.peers.quiet import Calibration, Noise, Used, noise_of
from benchmarks.peers.ratios import percentile, rate_by_tenth, ratio_of_rounds
from benchmarks.peers.rounds import take_all, take_quiet
from benchmarks.peers.server import STATEMENT, for_poller
from benchmarks.peers.sizes import QUICK, Sizes
from benchmarks.peers.systems import System

if TYPE_CHECKING:
    from benchmarks.peers.bench import Bench

PACKAGE = Path(systems.__file__).parent
QUIET = Noise(0.01, 0, 0.02, 0.03, 0.1)
BUSY = replace(QUIET, others=0.38)
STILL = Calibration(loop=0.01, write=0.0001)
FULL = next(measure for measure in measuring.measures(Sizes()) if measure.name == "history")


# ---------------------------------------------------------------- figures
def test_percentile_is_a_measured_value_that_the_share_does_not_exceed() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


def test_ratio_compares_samples_of_the_same_round() -> None:
    """A machine that becomes slower from round to round changes no ratio."""
    assert ratio_of_rounds({0: 10, 1: 5, 2: 1}, {0: 20, 1: 10, 2: 2}) == 0.5
    assert ratio_of_rounds({0: 10, 2: 9}, {1: 20, 2: 3}) == 3
    assert ratio_of_rounds({0: 10}, {1: 20}) is None


def test_tenths_of_a_steady_drain_are_equally_fast() -> None:
    assert rate_by_tenth([(0.7, 70), (1.0, 100)], 100) == pytest.approx([100] * 10)


def test_a_drain_that_slows_down_has_slower_tenths() -> None:
    tenths = rate_by_tenth([(0.5, 50), (1.5, 100)], 100)
    assert tenths == pytest.approx([100] * 5 + [50] * 5)


# ---------------------------------------------------------------- quietness
def judged(busy: float = 10.0, ours: float = 9.8, steal: float = 0.0, **after: float) -> Noise:
    """Return the noise of a sample of ten seconds on two cores."""
    return noise_of(Used(20.0, busy, ours, steal), STILL, replace(STILL, **after), STILL)


def test_machine_that_works_for_the_benchmark_alone_is_quiet() -> None:
    assert judged().reasons() == []
    assert judged().quiet


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (judged(busy=17.4), "38 % of the CPU went to other processes"),
        (judged(steal=1.0), "5 % of the CPU went to other machines on this host"),
        (judged(loop=0.0112), "12 % change of CPU speed during the sample"),
        (judged(write=0.0003), "200 % slower synced writes than at their fastest in this run"),
    ],
)
def test_each_kind_of_noise_names_itself(noise: Noise, reason: str) -> None:
    assert noise.reasons() == [reason]
    assert not noise.quiet


def test_machine_that_is_slower_than_earlier_in_the_run_is_not_quiet() -> None:
    slow = Calibration(0.012, 0.0001)
    assert noise_of(Used(20, 10, 10, 0), slow, slow, STILL).reasons() == [
        "20 % slower CPU than at its fastest in this run"
    ]


def test_counts_of_a_short_sample_never_exceed_what_is_possible() -> None:
    assert noise_of(Used(0.02, 0.03, 0.0, 0), STILL, STILL, STILL).others == 1
    assert noise_of(Used(0.02, 0.03, 0.04, 0), STILL, STILL, STILL).others == 0


def samples(*noises: Noise) -> Any:
    taken = iter([Sample({"rate": number}, noise) for number, noise in enumerate(noises, 1)])
    return lambda: next(taken)


def test_noisy_sample_is_repeated_until_one_is_quiet() -> None:
    sample = take_quiet(samples(BUSY, QUIET, QUIET), 2, "drain", print)
    assert isinstance(sample, Sample)
    assert sample.values == {"rate": 2}


def test_repeats_are_bounded_and_the_quietest_sample_is_kept() -> None:
    sample = take_quiet(samples(BUSY, replace(BUSY, others=0.1), BUSY, QUIET), 2, "drain", print)
    assert isinstance(sample, Sample)
    assert (sample.values, sample.noise.quiet) == ({"rate": 2}, False)


def test_program_that_fails_every_time_is_reported() -> None:
    def fail() -> Sample:
        raise ProgramFailedError("The worker of Huey exited with 1.")

    assert take_quiet(fail, 1, "drain", print) == "The worker of Huey exited with 1."


class Scripts(System):
    """A system whose client ends after its first line, and whose workers run until they are stopped."""

    def command(self, role: str) -> list[str]:
        return [sys.executable, "-c", "print('{}')" if role == "client" else "import time; time.sleep(600)"]


def test_client_that_has_ended_fails_the_sample_and_leaves_no_worker(tmp_path: Path) -> None:
    """The workers are paused while the client enqueues."""
    with (tmp_path / "log").open("w") as log:
        system = Scripts("Gone", "gone", "")
        client, workers = Client(system, "postgresql://", log), list[Worker]()
        client._process.wait()
        try:
            with pytest.raises(ProgramFailedError, match="The client of Gone ended"), running(client, workers):
                workers.append(Worker(system, "postgresql://", log))
                workers[0].pause()
                client.do("enqueue", jobs=1)
            assert workers[0]._process.returncode is not None
        finally:
            workers[0].stop()


def taken(measure: measuring.Measure, noise: Noise) -> list[str]:
    """Return the systems whose samples were taken, in order, if every sample has this noise."""
    order: list[str] = []

    def take(_bench: Any, system: systems.System, _sizes: Sizes) -> Sample:
        order.append(system.name)
        return Sample({"rate": 1}, noise)

    list(take_all(cast("Bench", None), [replace(measure, take=take)], replace(QUICK, rounds=2, repeats=1), print))
    return order


def test_rounds_are_interleaved_and_begin_with_another_system() -> None:
    full, empty = (system.name for system in reversed(FULL.systems))
    assert taken(FULL, QUIET) == [empty, full, full, empty]


def test_measure_that_compares_nothing_is_not_repeated() -> None:
    idle = next(measure for measure in measuring.measures(Sizes()) if measure.name == "idle")
    assert len(taken(idle, BUSY)) == len(idle.systems)
    assert len(taken(FULL, BUSY)) == 2 * 2 * len(FULL.systems)


# ---------------------------------------------------------------- /proc
STAT = "7 (a (b) c) S 3 7 7 0 -1 {flags} 5 5 0 0 100 50 20 10 20 0 1 0 9 0 0"


def test_process_time_includes_its_ended_children() -> None:
    process = parse_process(STAT.format(flags=4194304))
    assert (process.pid, process.parent, process.kernel) == (7, 3, False)
    assert process.seconds * os.sysconf("SC_CLK_TCK") == pytest.approx(180)


def test_kernel_threads_are_recognised_by_their_flag() -> None:
    assert parse_process(STAT.format(flags=0x00200040)).kernel


def test_machine_is_busy_with_user_nice_and_system_time() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    busy, steal = parse_machine("cpu  100 10 40 9000 500 3 2 7 0 0")
    assert (busy * ticks, steal * ticks) == pytest.approx((150, 7))


def test_overlapping_trees_are_counted_once() -> None:
    found = {pid: Process(pid, parent, False, 1.0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (9, 0))}
    taken = Snapshot(0, 0, 0, found)
    assert taken.of_trees([2]) == 2
    assert taken.of_trees([1, 3, 3, 77]) == 4


def test_snapshot_counts_a_child_that_has_ended() -> None:
    before = snapshot()
    subprocess.run([sys.executable, "-c", "for n in range(3_000_000): pass"], check=True)
    assert snapshot().of_trees([os.getpid()]) > before.of_trees([os.getpid()])


# ---------------------------------------------------------------- choices and programs
def test_full_tables_are_compared_with_empty_ones() -> None:
    names = [(first.name, second.name) for first, second in FULL.compared()]
    assert names == [("Interlock, 1,000,000 finished jobs", "Interlock, empty tables")]


def test_only_selects_measures_by_the_beginning_of_their_names() -> None:
    names = [measure.name for measure in choose("drain, enqueue-one", QUICK)]
    assert names == ["enqueue-one", "drain-1", "drain-2"]
    with pytest.raises(SystemExit, match="No measure begins with 'speed'"):
        choose("drain,speed", QUICK)


def test_every_system_has_a_program_and_says_its_settings() -> None:
    found = {system for measure in measuring.measures(Sizes()) for system in measure.systems}
    for system in found:
        for role in ("install", "client", "worker"):
            command = system.command(role)
            file = next((part for part in command if part.endswith(".mjs")), None)
            module = next((part.split(":")[0] for part in command if part.startswith("benchmarks.")), None)
            assert Path(file or f"{systems.ROOT / str(module).replace('.', '/')}.py").exists(), command
        assert system.settings


def test_harness_imports_only_the_public_api_of_the_engine() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in modules if name.startswith("interlock.")], path


def test_versions_of_the_peers_are_pinned_without_an_address() -> None:
    pinned = (PACKAGE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[\w-]+==[\w.]+|#.*|", line) for line in pinned)
    packages = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert all(re.fullmatch(r"[\d.]+", version) for version in packages.values())
    lock = json.loads((PACKAGE / "package-lock.json").read_text(encoding="utf-8"))
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]


def test_statements_of_the_sample_database_are_counted() -> None:
    log = (
        "bench_sample LOG:  statement: BEGIN\nbench_sample LOG:  execute <unnamed>: SELECT 1\n"
        "\t: SELECT\nbench_sample LOG:  execute s_1: SELECT 'a: b'\npostgres LOG:  statement: SELECT 2\n"
        "bench_sample DETAIL:  parameters: $1 = '1'\n"
    )
    assert len(STATEMENT.findall(log)) == 3


def test_connections_of_the_harness_name_themselves() -> None:
    assert for_poller("postgresql:///a?host=/tmp").endswith("/tmp&application_name=bench_poller")
    assert for_poller("postgresql:///a").endswith("/a?application_name=bench_poller")
