"""A child process ends with its worker, however the worker ends."""

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
def test_a_child_dies_with_its_worker(tmp_path: Path, kind: str) -> None:
    """Also while its handler awaits, sleeps in a thread, or keeps the processor to itself; and the worker was killed,
    so that it could tell nobody.
    """
    code = WORKER.format(kind=kind, file=tmp_path / "jobs.db")
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        worker.kill()
        # Standard output is the child's too: it ends when both have.
        assert worker.communicate(timeout=20) == ("", None)
