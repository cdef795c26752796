"""User code that cancels tasks, stops the event loop or breaks the standard streams affects no other job."""

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

from interlock import Answer, External, Kind, Run, SyncRun
from tests.loops.good_jobs import beside, neighbour
from tests.loops.handler_bench import Bench

__all__ = ["neighbour"]


def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


@pytest.mark.parametrize("pauses", [True, False], ids=["and waits", "and returns"])
def test_handler_that_cancels_all_tasks_ends_only_its_own_attempt(
    bench: Bench, neighbour: Kind[..., Any, Any], pauses: bool
) -> None:
    """The worker and other jobs are not affected."""
    others: list[str] = []
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @bench.app.job(kind="other")
    async def other(run: Run) -> str:
        begun.set()
        await cancelled.wait()
        others.append(run.job_id)
        return "fine"

    @bench.app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        await begun.wait()
        cancel_all()
        cancelled.set()
        if pauses:
            await asyncio.sleep(0)

    id = bench.add(other)
    job = beside(bench, bad, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "CancelledError" in (job.last_error or "")
    assert (bench.app.get(id).result, bench.app.get(id).attempt, others) == ("fine", 1, [id])


def test_handler_that_other_code_cancels_is_retried_at_once(bench: Bench) -> None:
    """The code belongs to no job: a task of the app's lifespan, for example. The lease need not end first."""

    @bench.app.job(kind="victim")
    async def victim(run: Run) -> str:
        if run.attempt == 1:
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            asyncio.get_running_loop().call_soon(task.cancel, context=contextvars.Context())
            await asyncio.sleep(3600)
        return "fine"

    job = bench.run_one(victim)
    assert (job.state, job.attempt, job.lease_losses) == ("PENDING", 1, 0)
    assert "CancelledError" in (job.last_error or "")


def test_thread_that_cancels_all_tasks_affects_no_job(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    cancelled = asyncio.Event()

    @bench.app.job(kind="first")
    async def first(run: Run) -> str:
        loops.append(asyncio.get_running_loop())
        await cancelled.wait()
        return "fine"

    @bench.app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None:
        while not loops:
            pass
        loops[0].call_soon_threadsafe(cancel_all)
        loops[0].call_soon_threadsafe(cancelled.set)

    id = bench.add(first)
    assert beside(bench, bad, neighbour).state == "SUCCEEDED"
    assert (bench.app.get(id).result, bench.app.get(id).attempt) == ("fine", 1)


def test_reconcile_function_that_cancels_all_tasks_is_called_again(
    bench: Bench, neighbour: Kind[..., Any, Any]
) -> None:
    asked: list[int] = []

    @bench.app.job(kind="bad", lease=60)
    async def bad(run: Run) -> External[int]:
        return External("x-1")

    @bad.reconcile(every=10)
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        asked.append(len(ids))
        if len(asked) == 1:
            cancel_all()
            await asyncio.sleep(0)
        return {}

    job = beside(bench, bad, neighbour)
    bench.again(job, after=21)
    assert asked == [1, 1]


def test_timeouts_and_task_groups_work_in_a_handler(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    """They cancel the handler's own task and the tasks that it started."""

    @bench.app.job(kind="good")
    async def good(run: Run) -> list[str]:
        seen: list[str] = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timeout")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                group.create_task(_raise(ValueError("no")))
        except* ValueError:
            seen.append("group")
        made = asyncio.ensure_future(asyncio.Event().wait())
        made.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await made
        return [*seen, "cancelled" if made.cancelled() else "not"]

    assert beside(bench, good, neighbour).result == ["timeout", "group", "cancelled"]


async def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "ends",
    [lambda: asyncio.get_running_loop().stop(), lambda: asyncio.ensure_future(_raise(SystemExit(5)))],
    ids=["stop", "task"],
)
def test_handler_that_stops_the_event_loop_does_not_stop_the_worker(
    bench: Bench, neighbour: Kind[..., Any, Any], ends: Callable[[], Any]
) -> None:
    kept: list[Any] = []

    @bench.app.job(kind="bad", tries=1)
    async def bad(run: Run) -> str:
        kept.append(ends())
        await asyncio.sleep(0.01)
        return "done"

    assert beside(bench, bad, neighbour).result == "done"
    for task in filter(None, kept):
        with pytest.raises(SystemExit):
            task.result()


@pytest.fixture
def streams() -> Iterator[None]:
    """Restore the standard streams after the test."""
    before = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = before


class Broken:
    """A stream that raises on every write."""

    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file.")

    def writelines(self, lines: Iterable[str]) -> None:
        raise ValueError("I/O operation on closed file.")

    def flush(self) -> None:
        raise ValueError("I/O operation on closed file.")


@pytest.mark.usefixtures("streams")
def test_handler_that_breaks_the_standard_streams_can_succeed(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    @bench.app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> str:
        sys.stdout = sys.stderr = Broken()  # type: ignore[assignment]
        return "done"

    assert beside(bench, bad, neighbour).result == "done"
