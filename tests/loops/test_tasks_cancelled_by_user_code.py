"""Whatever a function of the user's raises, cancels or closes: its own attempt ends by the error policy, and the worker goes on."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from interlock import Answer, App, External, Job, Kind, Run, SyncRun, Verdict
from interlock.events import OutsideFailed, Trouble
from tests.loops.bench import AT_ONCE, Bench


class Sly(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise ValueError("not telling")

    __repr__ = __str__


class Slyer(Exception):
    """An error whose text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class Unmakeable(Exception):
    """An error that nobody can make again from its arguments."""

    def __init__(self, *, needed: int) -> None:
        super().__init__()


class Stranger(BaseException):
    """An error that is no `Exception`."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "StopIteration": StopIteration, "StopAsyncIteration": StopAsyncIteration, "GeneratorExit": GeneratorExit, "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt, "CancelledError": asyncio.CancelledError, "Stranger": Stranger, "Sly": Sly, "Slyer": Slyer,
    "Unmakeable": lambda: Unmakeable(needed=1), "group": lambda: BaseExceptionGroup("many", [StopIteration(), KeyboardInterrupt()]),
}  # fmt: skip
Declare = Callable[[App[Any], BaseException], Kind[..., Any, Any]]


def _handler(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    @app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        raise error

    return bad


def _sync_handler(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    @app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None:
        raise error

    return bad


def _step(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        await run.step("one", fn)

    return bad


def _async_step(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    async def fn() -> None:
        raise error

    @app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        await run.step("one", fn)

    return bad


def _sync_step(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None:
        run.step("one", fn)

    return bad


def _effect(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        await run.effect("one", on_doubt="retry")(fn)

    return bad


def _sync_effect(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None:
        run.effect("one", on_doubt="retry")(fn)

    return bad


def _commit(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    @app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None: ...

    @bad.commit
    def write(tx: Any, job: Job, value: None) -> None:
        raise error

    return bad


def _policy(app: App[Any], error: BaseException) -> Kind[..., Any, Any]:
    def judge(raised: Exception) -> Verdict | None:
        raise error

    @app.job(kind="bad", tries=1, taxonomy=judge)
    def bad(run: SyncRun) -> None:
        raise ValueError("judge me")

    return bad


FAILING: dict[str, Declare] = {
    "handler": _handler, "def handler": _sync_handler, "step": _step, "async step": _async_step, "def step": _sync_step, "effect": _effect,
    "def effect": _sync_effect, "commit": _commit, "error policy": _policy,
}  # fmt: skip


@pytest.fixture
def neighbour(bench: Bench) -> Kind[..., Any, Any]:
    """A kind that does no harm."""

    @bench.app.job()
    async def neighbour(run: Run) -> str:
        await asyncio.sleep(0)
        return "fine"

    return neighbour


def beside(bench: Bench, kind: Kind[..., Any, Any], neighbour: Kind[..., Any, Any]) -> Job:
    """A bad job between two good ones: the good ones succeed, and the worker had no trouble of its own."""
    first, id, second = bench.add(neighbour), bench.add(kind), bench.add(neighbour)
    bench.run()
    assert [(bench.app.get(good).result, bench.app.get(good).attempt) for good in (first, second)] == [("fine", 1), ("fine", 1)]
    assert bench.heard(Trouble) == []
    return bench.app.get(id)


# ---------------------------------------------------------------- raised
@pytest.mark.parametrize("role", FAILING)
@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_a_job_s_function_ends_its_attempt(bench: Bench, neighbour: Kind[..., Any, Any], role: str, error: str) -> None:
    """The job fails, and its error names what was raised."""
    raised = ERRORS[error]()
    job = beside(bench, FAILING[role](bench.app, raised), neighbour)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert type(raised).__name__ in (job.last_error or "")


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_a_guard_puts_the_job_off(bench: Bench, neighbour: Kind[..., Any, Any], error: str, is_async: bool) -> None:
    """No try is spent for it."""
    raised = ERRORS[error]()

    @bench.app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None: ...

    async def guard(job: Job) -> None:
        raise raised

    def sync_guard(job: Job) -> None:
        raise raised

    bad.guard(guard if is_async else sync_guard)
    job = beside(bench, bad, neighbour)
    assert (job.phase, job.tries_left) == ("pending", 1)
    assert any(type(raised).__name__ in (entry.reason or "") for entry in bench.app.history(job.id))


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_finish_is_tried_again_and_the_job_succeeds(bench: Bench, neighbour: Kind[..., Any, Any], error: str, is_async: bool) -> None:
    raised = [ERRORS[error]()]

    @bench.app.job(kind="bad", tries=2, backoff=AT_ONCE)
    def bad(run: SyncRun) -> int:
        return 7

    async def finish(run: Run, value: int) -> None:
        if raised:
            raise raised.pop()

    def sync_finish(run: SyncRun, value: int) -> None:
        if raised:
            raise raised.pop()

    bad.finish(finish if is_async else sync_finish)
    job = beside(bench, bad, neighbour)
    assert (job.state, job.result, raised) == ("SUCCEEDED", 7, [])


@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_a_hook_is_tried_again(bench: Bench, neighbour: Kind[..., Any, Any], error: str) -> None:
    raised = [ERRORS[error]()]

    @bench.app.job(kind="bad", tries=1, backoff=AT_ONCE)
    def bad(run: SyncRun) -> None:
        raise ValueError("no")

    @bad.on_enter("FAILED")
    def enter(tx: Any, job: Job) -> None:
        if raised:
            raise raised.pop()

    job = beside(bench, bad, neighbour)
    assert (job.state, raised) == ("FAILED", [])


@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_reconcile_changes_no_job_and_it_is_asked_again(bench: Bench, neighbour: Kind[..., Any, Any], error: str) -> None:
    raised = [ERRORS[error]()]

    @bench.app.job(kind="bad", lease=60)
    async def bad(run: Run) -> External[int]:
        return External("x-1")

    @bad.reconcile(every=10)
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        if raised:
            raise raised.pop()
        return {}

    job = beside(bench, bad, neighbour)
    assert (job.phase, raised, len(bench.heard(OutsideFailed))) == ("running", [], 1)


@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_on_cancel_is_tried_again(bench: Bench, neighbour: Kind[..., Any, Any], error: str) -> None:
    raised = [ERRORS[error]()]

    @bench.app.job(kind="bad", lease=60)
    async def bad(run: Run) -> External[int]:
        return External("x-1")

    @bad.reconcile(every=10)
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        return {}

    @bad.on_cancel
    async def cancel(external_id: str) -> None:
        if raised:
            raise raised.pop()

    job = beside(bench, bad, neighbour)
    bench.app.cancel(job.id, by="ann")
    bench.run()
    assert (bench.again(job, after=11).state, raised) == ("CANCELLED", [])


@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_admit_stops_no_other_schedule(bench: Bench, neighbour: Kind[..., Any, Any], error: str) -> None:
    raised = ERRORS[error]()

    @bench.app.job(kind="bad")
    def bad(run: SyncRun) -> None: ...

    @bad.admit
    def admit(tx: Any) -> None:
        raise raised

    bench.app.schedule("a", "* * * * *", bad.call())
    bench.app.schedule("b", "* * * * *", neighbour.call())
    bench.migrate()
    bench.run()
    bench.clock.advance(timedelta(minutes=2).total_seconds())
    bench.run()
    assert {(job.kind, job.result) for job in bench.app.jobs()} == {("neighbour", "fine")}


# ---------------------------------------------------------------- cancelled, stopped, closed
def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


@pytest.mark.parametrize("waits", [True, False], ids=["and waits", "and returns"])
def test_a_handler_that_cancels_every_task_ends_its_own_attempt(bench: Bench, neighbour: Kind[..., Any, Any], waits: bool) -> None:
    """Neither the worker nor another job hears of it."""
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
        if waits:
            await asyncio.sleep(0)

    id = bench.add(other)
    job = beside(bench, bad, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "CancelledError" in (job.last_error or "")
    assert (bench.app.get(id).result, bench.app.get(id).attempt, others) == ("fine", 1, [id])


def test_a_thread_that_cancels_every_task_hurts_no_job(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
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


def test_a_reconciler_whose_function_cancels_every_task_asks_again(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
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


def test_timeouts_and_task_groups_of_a_handler_work_as_ever(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    """They cancel the handler's own task, and those that it made."""

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


@pytest.mark.parametrize("ends", [lambda: asyncio.get_running_loop().stop(), lambda: asyncio.ensure_future(_raise(SystemExit(5)))], ids=["stop", "task"])
def test_a_handler_that_stops_the_event_loop_does_not_stop_the_worker(bench: Bench, neighbour: Kind[..., Any, Any], ends: Callable[[], Any]) -> None:
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
    """Whatever becomes of the standard streams, they are back at the end."""
    before = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = before


class Broken:
    """A stream that takes nothing."""

    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file.")

    def writelines(self, lines: Iterable[str]) -> None:
        raise ValueError("I/O operation on closed file.")

    def flush(self) -> None:
        raise ValueError("I/O operation on closed file.")


@pytest.mark.usefixtures("streams")
def test_a_handler_that_breaks_the_standard_streams_ends_like_any_other(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    @bench.app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> str:
        sys.stdout = sys.stderr = Broken()  # type: ignore[assignment]
        return "done"

    assert beside(bench, bad, neighbour).result == "done"
