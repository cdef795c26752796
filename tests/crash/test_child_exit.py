"""A child process exits with its worker, however the worker ends."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = """
import asyncio
from tests.loops import child_app
from tests.loops.test_children import Bench

async def main():
    bench = Bench(None)
    execution = bench.hold(child_app.app.kinds["{kind}"].request())
    running = asyncio.ensure_future(bench.children.prepare(execution, bench.ledger(execution)))
    await bench.begun.wait()
    print("begun", flush=True)
    await running

with child_app.app.bound_to("sqlite:///{file}"):
    asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["waiting", "stubborn", "looking"])
def test_child_exits_when_its_worker_is_killed(tmp_path: Path, kind: str) -> None:
    """This holds while its handler awaits, sleeps in a thread or uses the CPU. A killed worker cannot notify the child."""
    code = WORKER.format(kind=kind, file=tmp_path / "jobs.db")
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        worker.kill()
        # The child shares standard output, which ends when both have exited.
        assert worker.communicate(timeout=20) == ("", None)
