"""`around_attempt`: the thread or task of each function enters it, and its errors count as the function's."""

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from interlock import Answer, App, External, Job, Retry, Run, SyncRun
from tests.kit import Place
from tests.loops.handler_bench import AT_ONCE, Bench


class Around:
    """A context manager that records the thread or task that entered and left it, and the error."""

    def __init__(self, app: App[Any]) -> None:
        self.entered: list[tuple[str, int]] = []
        self.left: list[tuple[str, int, str | None]] = []
        app.around_attempt(self.make)

    @staticmethod
    def here() -> tuple[str, int]:
        task = None
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return threading.current_thread().name.partition("_")[0], threading.get_ident()
        return "task", id(task)

    @contextmanager
    def make(self) -> Generator[None]:
        self.entered.append(self.here())
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.left.append((*self.here(), type(error).__name__ if error else None))


@pytest.fixture
def around(bench: Bench) -> Around:
    return Around(bench.app)


def test_each_function_of_a_job_runs_inside_around_attempt(bench: Bench, around: Around) -> None:
    """A handler enters it in its thread, a coroutine in its task, a step in its own thread, and a commit function
    outside its transaction.
    """
    seen: list[tuple[str, tuple[str, int]]] = []

    def note(name: str) -> None:
        assert len(around.entered) == len(around.left) + 1 + (name == "step")
        seen.append((name, around.here()))

    @bench.app.job(kind="plain")
    def plain(run: SyncRun) -> int:
        note("handler")
        return 1

    @plain.guard
    def guard(job: Job) -> None:
        note("guard")

    @plain.commit
    def commit(tx: Any, job: Job, value: int) -> None:
        note("commit")

    @plain.finish
    async def finish(run: Run, value: int) -> None:
        note("finish")

    @bench.app.job(kind="coroutine")
    async def coroutine(run: Run) -> None:
        note("coroutine")
        await run.step("one", note, "step")

    assert bench.run_one(plain).state == "SUCCEEDED"
    assert bench.run_one(coroutine).state == "SUCCEEDED"
    assert [name for name, _ in seen] == ["guard", "handler", "commit", "finish", "coroutine", "step"]
    assert [place for _, place in seen] == around.entered
    assert sorted(around.entered) == sorted((name, place) for name, place, _ in around.left)
    assert [kind for kind, _ in around.entered] == [
        "interlock-handler",
        "interlock-handler",
        "interlock-commit",
        "task",
        "task",
        "asyncio",
    ]


def test_reconcile_function_runs_inside_around_attempt(bench: Bench, around: Around) -> None:
    inside: list[int] = []

    @bench.app.job(kind="handed", lease=60)
    async def handed(run: Run) -> External[int]:
        return External("x-1")

    @handed.reconcile(every=10)
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        inside.append(len(around.entered) - len(around.left))
        return {}

    bench.run_one(handed)
    assert inside == [1]


def test_hooks_and_admit_in_maintenance_run_inside_around_attempt(bench: Bench, around: Around) -> None:
    inside: list[tuple[str, int]] = []

    @bench.app.job(kind="late")
    def late(run: SyncRun) -> None: ...

    @late.on_enter("EXPIRED")
    def expired(tx: Any, job: Job) -> None:
        inside.append(("hook", len(around.entered) - len(around.left)))

    @late.admit
    def admit(tx: Any) -> None:
        inside.append(("admit", len(around.entered) - len(around.left)))

    bench.app.schedule("every minute", "* * * * *", late.using(delay=100_000, ttl=5).request())
    bench.migrate()
    bench.run()
    bench.clock.advance(60)
    bench.run()
    bench.clock.advance(6)
    bench.run()
    assert inside == [("admit", 1), ("hook", 1)]


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration(), Retry("later", after=0)], ids=repr)
def test_error_of_a_handler_passes_through_around_attempt(
    bench: Bench, around: Around, error: BaseException, is_async: bool
) -> None:
    @bench.app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        raise error

    @bench.app.job(kind="bad_sync", tries=1)
    def bad_sync(run: SyncRun) -> None:
        raise error

    job = bench.run_one(bad if is_async else bad_sync)
    assert job.state == "FAILED"
    expected = "RuntimeError" if is_async and isinstance(error, StopIteration) else type(error).__name__
    assert [name for _, _, name in around.left] == [expected]


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
@pytest.mark.parametrize("when", ["made", "entered", "left"])
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=repr)
def test_error_of_around_attempt_fails_the_attempt(
    bench: Bench, when: str, error: BaseException, is_async: bool
) -> None:
    """The job is retried according to its error policy."""
    errors = [error]

    def breaks(at: str) -> None:
        if errors and at == when:
            raise errors.pop()

    @contextmanager
    def inner() -> Generator[None]:
        breaks("entered")
        yield
        breaks("left")

    @bench.app.around_attempt
    def make() -> Any:
        breaks("made")
        return inner()

    @bench.app.job(kind="good", tries=2, backoff=AT_ONCE)
    async def good(run: Run) -> str:
        return "done"

    @bench.app.job(kind="good_sync", tries=2, backoff=AT_ONCE)
    def good_sync(run: SyncRun) -> str:
        return "done"

    job = bench.run_one(good if is_async else good_sync)
    assert (job.state, job.attempt, job.result, errors) == ("SUCCEEDED", 2, "done", [])
    assert type(error).__name__ in (bench.app.executions(job.id)[0].error or "")


def test_error_around_a_commit_fails_the_attempt_only_before_the_commit(bench: Bench) -> None:
    """An error before the commit costs a try. After the commit the job has succeeded, and the error is only logged."""
    plot = ["enter", "exit"]

    @bench.app.around_attempt
    @contextmanager
    def broken() -> Generator[None]:
        commits = threading.current_thread().name.startswith("interlock-commit")
        if commits and plot[:1] == ["enter"]:
            plot.pop(0)
            raise SystemExit(3)
        yield
        if commits:
            plot.pop(0)
            raise ValueError("too late")

    written: list[int] = []

    @bench.app.job(kind="booked", tries=2, backoff=AT_ONCE)
    def booked(run: SyncRun) -> int:
        return 7

    @booked.commit
    def book(tx: Any, job: Job, value: int) -> None:
        written.append(value)

    job = bench.run_one(booked)
    assert (job.state, job.attempt, job.result, written, plot) == ("SUCCEEDED", 2, 7, [7], [])


def test_around_attempt_cannot_suppress_an_error(bench: Bench) -> None:
    @bench.app.around_attempt
    @contextmanager
    def hiding() -> Generator[None]:
        try:
            yield
        except ValueError:
            return

    @bench.app.job(kind="bad", tries=1)
    def bad(run: SyncRun) -> None:
        raise ValueError("no")

    assert bench.run_one(bad).state == "FAILED"


def test_several_context_managers_are_entered_in_order_and_left_in_reverse(bench: Bench, place: Place) -> None:
    said: list[str] = []

    def telling(name: str) -> Callable[[], Any]:
        @contextmanager
        def tell() -> Generator[None]:
            said.append(f"{name} in")
            yield
            said.append(f"{name} out")

        return tell

    bench.app.around_attempt(telling("a"))

    @bench.app.job(kind="good")
    def good(run: SyncRun) -> None:
        said.append("handler")

    bench.app.around_attempt(telling("b"))
    bench.run_one(good)
    assert said == ["a in", "b in", "handler", "b out", "a out"]
