"""Errors of user code: the error policy ends the attempt, and the worker continues."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from interlock import Answer, App, External, Job, Kind, RetryDecision, Run, SyncRun
from interlock.telemetry.events import ExternalCheckFailed
from tests.loops.good_jobs import beside_each, neighbour
from tests.loops.handler_bench import AT_ONCE, Bench

__all__ = ["neighbour"]


class Sly(Exception):
    """An error whose text raises an error."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Slyer(Exception):
    """An error whose text raises SystemExit."""

    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class Unmakeable(Exception):
    """An error that cannot be created again from its arguments."""

    def __init__(self, *, needed: int) -> None:
        super().__init__()


class Stranger(BaseException):
    """An error that is not an `Exception`."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "StopIteration": StopIteration, "StopAsyncIteration": StopAsyncIteration, "GeneratorExit": GeneratorExit, "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt, "CancelledError": asyncio.CancelledError, "Stranger": Stranger, "Sly": Sly, "Slyer": Slyer,
    "Unmakeable": lambda: Unmakeable(needed=1), "group": lambda: BaseExceptionGroup("many", [StopIteration(), KeyboardInterrupt()]),
}  # fmt: skip
Declare = Callable[[App[Any], BaseException, str], Kind[..., Any, Any]]


def _handler(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    @app.job(kind=kind, tries=1)
    async def bad(run: Run) -> None:
        raise error

    return bad


def _sync_handler(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    @app.job(kind=kind, tries=1)
    def bad(run: SyncRun) -> None:
        raise error

    return bad


def _step(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind=kind, tries=1)
    async def bad(run: Run) -> None:
        await run.step("one", fn)

    return bad


def _async_step(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    async def fn() -> None:
        raise error

    @app.job(kind=kind, tries=1)
    async def bad(run: Run) -> None:
        await run.step("one", fn)

    return bad


def _sync_step(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind=kind, tries=1)
    def bad(run: SyncRun) -> None:
        run.step("one", fn)

    return bad


def _effect(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind=kind, tries=1)
    async def bad(run: Run) -> None:
        await run.effect("one", on_doubt="retry")(fn)

    return bad


def _sync_effect(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    def fn() -> None:
        raise error

    @app.job(kind=kind, tries=1)
    def bad(run: SyncRun) -> None:
        run.effect("one", on_doubt="retry")(fn)

    return bad


def _commit(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    @app.job(kind=kind, tries=1)
    def bad(run: SyncRun) -> None: ...

    @bad.commit
    def write(tx: Any, job: Job, value: None) -> None:
        raise error

    return bad


def _policy(app: App[Any], error: BaseException, kind: str) -> Kind[..., Any, Any]:
    def judge(raised: Exception) -> RetryDecision | None:
        raise error

    @app.job(kind=kind, tries=1, error_policy=judge)
    def bad(run: SyncRun) -> None:
        raise ValueError("judge me")

    return bad


FAILING: dict[str, Declare] = {
    "handler": _handler, "def handler": _sync_handler, "step": _step, "async step": _async_step, "def step": _sync_step, "effect": _effect,
    "def effect": _sync_effect, "commit": _commit, "error policy": _policy,
}  # fmt: skip


def errors() -> dict[str, BaseException]:
    """Return one new error of each type."""
    return {name: make() for name, make in ERRORS.items()}


@pytest.mark.parametrize("role", FAILING)
def test_any_error_of_a_user_function_ends_only_its_attempt(
    bench: Bench, neighbour: Kind[..., Any, Any], role: str
) -> None:
    """The job fails, and its stored error names the type."""
    raised = errors()
    kinds = {name: FAILING[role](bench.app, error, name) for name, error in raised.items()}
    for name, job in beside_each(bench, kinds, neighbour).items():
        assert (job.state, job.attempt) == ("FAILED", 1), name
        assert type(raised[name]).__name__ in (job.last_error or "")


def _guarded(app: App[Any], error: BaseException, name: str, is_async: bool) -> Kind[..., Any, Any]:
    @app.job(kind=name, tries=1)
    def bad(run: SyncRun) -> None: ...

    async def guard(job: Job) -> None:
        raise error

    def sync_guard(job: Job) -> None:
        raise error

    bad.guard(guard if is_async else sync_guard)
    return bad


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
def test_any_error_of_a_guard_delays_the_job(bench: Bench, neighbour: Kind[..., Any, Any], is_async: bool) -> None:
    """The job keeps its tries."""
    raised = errors()
    kinds = {name: _guarded(bench.app, error, name, is_async) for name, error in raised.items()}
    for name, job in beside_each(bench, kinds, neighbour).items():
        assert (job.phase, job.tries_left) == ("pending", 1), name
        assert any(type(raised[name]).__name__ in (entry.reason or "") for entry in bench.app.history(job.id)), name


def _finishing(app: App[Any], raised: list[BaseException], name: str, is_async: bool) -> Kind[..., Any, Any]:
    @app.job(kind=name, tries=2, backoff=AT_ONCE)
    def bad(run: SyncRun) -> int:
        return 7

    async def finish(run: Run, value: int) -> None:
        if raised:
            raise raised.pop()

    def sync_finish(run: SyncRun, value: int) -> None:
        if raised:
            raise raised.pop()

    bad.finish(finish if is_async else sync_finish)
    return bad


def once_each() -> dict[str, list[BaseException]]:
    """Return one new error of each type, in a list from which it is raised once."""
    return {name: [error] for name, error in errors().items()}


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
def test_finish_is_retried_after_any_error_and_the_job_succeeds(
    bench: Bench, neighbour: Kind[..., Any, Any], is_async: bool
) -> None:
    raised = once_each()
    kinds = {name: _finishing(bench.app, once, name, is_async) for name, once in raised.items()}
    for name, job in beside_each(bench, kinds, neighbour).items():
        assert (job.state, job.result, raised[name]) == ("SUCCEEDED", 7, []), name


def _hooked(app: App[Any], raised: list[BaseException], name: str) -> Kind[..., Any, Any]:
    @app.job(kind=name, tries=1, backoff=AT_ONCE)
    def bad(run: SyncRun) -> None:
        raise ValueError("no")

    @bad.on_enter("FAILED")
    def enter(tx: Any, job: Job) -> None:
        if raised:
            raise raised.pop()

    return bad


def test_hook_is_retried_after_any_error(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    raised = once_each()
    kinds = {name: _hooked(bench.app, once, name) for name, once in raised.items()}
    for name, job in beside_each(bench, kinds, neighbour).items():
        assert (job.state, raised[name]) == ("FAILED", []), name


def _reconciled(app: App[Any], raised: list[BaseException], name: str) -> Kind[..., Any, Any]:
    @app.job(kind=name, lease=60)
    async def bad(run: Run) -> External[int]:
        return External("x-1")

    @bad.reconcile(every=10)
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        if raised:
            raise raised.pop()
        return {}

    return bad


def test_any_error_of_reconcile_changes_no_job(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    raised = once_each()
    kinds = {name: _reconciled(bench.app, once, name) for name, once in raised.items()}
    for name, job in beside_each(bench, kinds, neighbour).items():
        assert (job.phase, raised[name]) == ("running", []), name
    assert sorted(event.kind for event in bench.heard(ExternalCheckFailed)) == sorted(ERRORS)


def _cancelled(app: App[Any], raised: list[BaseException], name: str) -> Kind[..., Any, Any]:
    bad = _reconciled(app, [], name)

    @bad.on_cancel
    async def cancel(external_id: str) -> None:
        if raised:
            raise raised.pop()

    return bad


def test_on_cancel_is_retried_after_any_error(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    raised = once_each()
    kinds = {name: _cancelled(bench.app, once, name) for name, once in raised.items()}
    jobs = beside_each(bench, kinds, neighbour)
    for job in jobs.values():
        bench.app.cancel(job.id, by="ann")
    bench.run()
    assert not any(raised.values())
    bench.clock.advance(11)
    bench.run()
    for name, job in jobs.items():
        assert bench.app.get(job.id).state == "CANCELLED", name


def _admitting(app: App[Any], error: BaseException, name: str) -> Kind[..., Any, Any]:
    @app.job(kind=name)
    def bad(run: SyncRun) -> None: ...

    @bad.admit
    def admit(tx: Any) -> None:
        raise error

    return bad


def test_any_error_of_admit_stops_no_other_schedule(bench: Bench, neighbour: Kind[..., Any, Any]) -> None:
    for name, error in errors().items():
        bench.app.schedule(f"a {name}", "* * * * *", _admitting(bench.app, error, name).request())
    bench.app.schedule("b", "* * * * *", neighbour.request())
    bench.migrate()
    bench.run()
    bench.clock.advance(timedelta(minutes=2).total_seconds())
    bench.run()
    assert {(job.kind, job.result) for job in bench.app.jobs()} == {("neighbour", "fine")}
