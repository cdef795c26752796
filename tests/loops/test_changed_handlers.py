"""Handlers that changed after a job was stored, or that leave tasks behind."""

import asyncio
from typing import Any

from interlock import Run
from tests.kit import Place
from tests.loops.handler_bench import Bench
from tests.loops.test_bad_handlers import both, neighbour

__all__ = ["neighbour"]


def test_stored_payload_that_no_longer_fits_fails_the_job(bench: Bench, neighbour: Any, place: Place) -> None:
    """The handler's signature has changed. The handler is not called, and the error names the missing field."""
    called: list[Any] = []

    @bench.app.job(kind="greet")
    async def greet(run: Run, name: str) -> None:
        called.append(name)

    id, good = bench.add(greet, "ann"), bench.add(neighbour)
    changed = Bench(place)

    @changed.app.job(kind="greet")
    async def greet_twice(run: Run, name: str, times: int) -> None:
        called.append(times)

    changed.app.job(kind="neighbour")(_fine)
    changed.run()
    job = bench.app.get(id)
    assert (job.state, called, bench.app.get(good).state) == ("FAILED", [], "SUCCEEDED")
    assert "the stored payload no longer fits" in (job.last_error or "")
    assert "times: Field required" in (job.last_error or "")
    changed.app.close()


async def _fine(run: Run) -> str:
    return "fine"


def test_new_parameter_with_a_default_fits_old_payloads(bench: Bench, place: Place) -> None:
    """A kind can get new parameters while jobs wait."""

    @bench.app.job(kind="greet")
    async def greet(run: Run, name: str) -> str:
        return name

    id = bench.add(greet, "ann")
    changed = Bench(place)

    @changed.app.job(kind="greet")
    async def greet_more(run: Run, name: str, times: int = 2) -> str:
        return name * times

    changed.run()
    assert bench.app.get(id).result == "annann"
    changed.app.close()


def test_worker_ignores_jobs_of_unknown_kinds(bench: Bench, neighbour: Any, place: Place) -> None:
    """It neither claims such a job nor recovers its expired lease."""
    other = Bench(place)

    @other.app.job(kind="strange")
    async def strange(run: Run) -> None: ...

    id = other.add(strange)
    assert bench.run_one(neighbour).state == "SUCCEEDED"
    assert bench.app.get(id).phase == "pending"
    assert len(other.store.queue.claim("other#1", strange.spec.claim_rules(1), ["default"], 1)) == 1
    bench.clock.advance(3600)
    bench.run()
    assert [each.status for each in bench.app.executions(id)] == ["IN_PROGRESS"]
    other.app.close()


def test_tasks_left_by_a_handler_do_not_block_the_worker(bench: Bench, neighbour: Any) -> None:
    """Such tasks end with the event loop."""
    left: list[asyncio.Task[None]] = []

    @bench.app.job()
    async def bad(run: Run) -> None:
        async def for_ever() -> None:
            await asyncio.Event().wait()

        left.append(asyncio.ensure_future(for_ever()))

    assert both(bench, bad, neighbour).state == "SUCCEEDED"


def test_run_cannot_write_after_its_attempt(bench: Bench, neighbour: Any) -> None:
    """A task that still uses the run gets `LeaseLost`."""
    kept: list[Run] = []

    @bench.app.job()
    async def bad(run: Run) -> None:
        kept.append(run)

    @bench.app.job(kind="later")
    async def later(run: Run) -> str:
        try:
            await kept[0].step("late", dict)
        except Exception as error:  # noqa: BLE001 - told
            return type(error).__name__
        return "written"

    job = both(bench, bad, neighbour)
    assert bench.run_one(later).result == "LeaseLost"
    assert bench.receipt(job, "late") is None
