"""Good jobs that run beside bad ones, to check that a bad job harms no other."""

import asyncio
from typing import Any

import pytest

from interlock import Job, Kind, Run
from interlock.telemetry.events import WorkerError
from tests.loops.handler_bench import Bench


@pytest.fixture
def neighbour(bench: Bench) -> Kind[..., Any, Any]:
    """A kind that does no harm."""

    @bench.app.job()
    async def neighbour(run: Run) -> str:
        await asyncio.sleep(0)
        return "fine"

    return neighbour


def beside(bench: Bench, kind: Kind[..., Any, Any], neighbour: Kind[..., Any, Any]) -> Job:
    """Run a bad job between two good ones; check that the good ones succeed and that the worker reports no error."""
    first, id, second = bench.add(neighbour), bench.add(kind), bench.add(neighbour)
    bench.run()
    assert [(bench.app.get(good).result, bench.app.get(good).attempt) for good in (first, second)] == [
        ("fine", 1),
        ("fine", 1),
    ]
    assert bench.heard(WorkerError) == []
    return bench.app.get(id)


def beside_each(bench: Bench, kinds: dict[str, Kind[..., Any, Any]], neighbour: Kind[..., Any, Any]) -> dict[str, Job]:
    """Do the same with one bad job of each of these kinds, all in one worker."""
    first, ids, second = (
        bench.add(neighbour),
        {name: bench.add(kind) for name, kind in kinds.items()},
        bench.add(neighbour),
    )
    bench.run()
    assert [(bench.app.get(good).result, bench.app.get(good).attempt) for good in (first, second)] == [
        ("fine", 1),
        ("fine", 1),
    ]
    assert bench.heard(WorkerError) == []
    return {name: bench.app.get(id) for name, id in ids.items()}
