"""`python -m benchmarks.peers [--quick] [--only NAMES] [--ignore-noise] [--publish [FILE]]`: measures Interlock and
its peers, prints tables, and saves the records as JSON.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import scaling
from .bench import Bench
from .cpu import CORES
from .measures import Measure, measures
from .publish import publish
from .report import Results, sections, settings
from .rounds import take_all
from .server import Server
from .sizes import QUICK, Sizes
from .systems import PEERS_PYTHON, ROOT

RESULTS = ROOT / "benchmarks" / "results"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def choose(only: str | None, sizes: Sizes) -> list[Measure]:
    """Return the measures whose names begin with one of the given names; all without names."""
    known = measures(sizes)
    if only is None:
        return known
    wanted = tuple(name.strip() for name in only.split(","))
    for name in wanted:
        if not any(each.name.startswith(name) for each in known):
            sys.exit(f"No measure begins with {name!r}. There are: {', '.join(each.name for each in known)}.")
    return [each for each in known if each.name.startswith(wanted)]


def facts(server: Server, given: argparse.Namespace) -> dict[str, Any]:
    """Return what a reader needs to know about the run."""
    peers = subprocess.run([PEERS_PYTHON, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    packages = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    versions = dict(line.split("==") for line in peers.splitlines() if "==" in line)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "cores": CORES,
        "python": platform.python_version(),
        "postgresql": server.version.split(" ")[0],
        "versions": {name: versions[name] for name in ("huey", "pgqueuer", "procrastinate")} | packages,
        "quick": given.quick,
    }


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure, and save after each record, so that an interrupted run keeps what it has."""
    sizes = QUICK if given.quick else Sizes()
    if given.ignore_noise:
        sizes = Sizes(**(vars(sizes) | {"repeats": 0}))
    chosen = choose(given.only, sizes)
    directory = Path(tempfile.mkdtemp(prefix="interlock-bench-"))
    server = Server(directory / "pg")
    bench = Bench(server, directory)
    results: dict[str, Any] = {"facts": facts(server, given), "records": []}
    file = RESULTS / f"peers-{time.strftime('%Y%m%d-%H%M%S')}.json"
    RESULTS.mkdir(exist_ok=True)
    try:
        for record in take_all(bench, chosen, sizes, say):
            results["records"].append(record)
            file.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        bench.close()
        server.close()
        shutil.rmtree(directory)
    say(f"saved {file.relative_to(ROOT)}")
    print(sections(chosen, Results(results["records"], given.ignore_noise), images=False))
    print("\n" + settings(chosen))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and one round, for a few minutes")
    parser.add_argument("--only", metavar="NAMES", help="measures, or beginnings of their names, separated by commas")
    parser.add_argument(
        "--ignore-noise", action="store_true", help="repeat no sample, and print ratios of noisy ones, marked"
    )
    parser.add_argument(
        "--publish",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the page, its charts and the JSON, from this run or from a saved FILE",
    )
    given = parser.parse_args()
    if given.ignore_noise and given.publish is not None:
        parser.error("A run that ignores noise is not published: leave out one of the two options.")
    results = json.loads(Path(given.publish).read_text()) if given.publish else run(given)
    if given.publish is not None:
        publish(results, measures(QUICK if results["facts"]["quick"] else Sizes()))
        scaling.write(results)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the server and the paused workers, too
    main()
