"""Handlers that misbehave: each affects at most its own job, never the worker and never another job."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest

from interlock import Answer, External, Fail, Job, PayloadError, Run, SyncRun
from interlock.telemetry.events import HookFailed, WorkerError
from tests.loops.handler_bench import AT_ONCE, Bench


@pytest.fixture
def neighbour(bench: Bench) -> Any:
    """A kind that does no harm."""

    @bench.app.job()
    async def neighbour(run: Run) -> str:
        return "fine"

    return neighbour


def both(bench: Bench, kind: Any, neighbour: Any) -> Any:
    """Run a bad job and a good one; check that the good one succeeds and that the worker reports no error."""
    id, good = bench.add(kind), bench.add(neighbour)
    bench.run()
    assert bench.app.get(good).result == "fine"
    assert bench.heard(WorkerError) == []
    return bench.app.get(id)


IDS = {
    "none": ("", "empty"),
    "long": ("x" * 8000, "the limit is 500"),
    "NUL": ("\0", "NUL"),
    "surrogate": ("\ud800", "surrogate"),
}


@pytest.mark.parametrize(("id", "says"), IDS.values(), ids=IDS.keys())
def test_external_id_that_cannot_be_stored_fails_the_job(bench: Bench, neighbour: Any, id: str, says: str) -> None:
    """Other jobs are not affected, because the id is checked before it is stored."""

    @bench.app.job(kind="bad")
    async def bad(run: Run) -> External[int]:
        return External(id)

    @bad.reconcile()
    async def ask(ids: Sequence[str]) -> dict[str, Answer[int]]:
        return {}

    job = both(bench, bad, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert says in (job.last_error or "")
    with pytest.raises(PayloadError, match=says):
        bad.complete(id, 1)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("value", "says"),
    [(object(), "cannot be stored"), ("\0", "NUL"), ("\ud800", "surrogate")],
    ids=["object", "NUL", "surrogate"],
)
def test_value_that_json_cannot_represent_fails_the_job(
    bench: Bench, neighbour: Any, value: Any, says: str, is_async: bool
) -> None:
    """The reason is stored. The job is not retried, because a retry would not help."""

    @bench.app.job(kind="bad")
    async def bad(run: Run) -> Any:
        return value

    @bench.app.job(kind="bad_sync")
    def bad_sync(run: SyncRun) -> Any:
        return value

    job = both(bench, bad if is_async else bad_sync, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert says in (job.last_error or "")


def test_nan_result_fails_the_job(bench: Bench, neighbour: Any) -> None:
    """JSON has no NaN, and PostgreSQL would refuse it."""

    @bench.app.job()
    async def bad(run: Run) -> float:
        return float("nan")

    job = both(bench, bad, neighbour)
    assert job.state == "FAILED"
    assert "nan is not a JSON number" in (job.last_error or "")


def test_value_that_its_annotation_does_not_allow_fails_the_job(bench: Bench, neighbour: Any) -> None:
    """The handler is annotated with `int` and returns a string."""

    @bench.app.job()
    async def bad(run: Run) -> int:
        return "seven"  # type: ignore[return-value]

    job = both(bench, bad, neighbour)
    assert job.state == "FAILED"
    assert "bad returned a value that its annotation does not allow" in (job.last_error or "")


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_system_exit_in_a_handler_ends_only_the_attempt(
    bench: Bench, neighbour: Any, error: BaseException, is_async: bool
) -> None:
    """The worker continues; the job is retried."""

    @bench.app.job(kind="bad", backoff=AT_ONCE, tries=2)
    async def bad(run: Run) -> None:
        raise error

    @bench.app.job(kind="bad_sync", backoff=AT_ONCE, tries=2)
    def bad_sync(run: SyncRun) -> None:
        raise error

    job = both(bench, bad if is_async else bad_sync, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 2)
    assert type(error).__name__ in (job.last_error or "")


ENDING = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("error", ENDING, ids=repr)
def test_system_exit_in_a_commit_function_ends_only_the_attempt(
    bench: Bench, neighbour: Any, error: BaseException
) -> None:
    """It costs a try, like any other error of a commit function."""

    @bench.app.job(kind="bad", backoff=AT_ONCE, tries=2)
    async def bad(run: Run) -> int:
        return 7

    @bad.commit
    def write(tx: Any, job: Job, value: int) -> None:
        raise error

    job = both(bench, bad, neighbour)
    assert (job.state, job.attempt) == ("FAILED", 2)
    assert f"raised {type(error).__name__}" in (job.last_error or "")


@pytest.mark.parametrize("error", ENDING, ids=repr)
def test_system_exit_in_a_hook_is_reported_as_a_hook_error(bench: Bench, neighbour: Any, error: BaseException) -> None:
    """The transition is stored as soon as the hook succeeds."""
    errors = [error]

    @bench.app.job(kind="bad", backoff=AT_ONCE)
    async def bad(run: Run) -> None:
        raise Fail("sold out")

    @bad.on_enter("FAILED")
    def enter(tx: Any, job: Job) -> None:
        if errors:
            raise errors.pop()

    job = both(bench, bad, neighbour)
    assert (job.state, job.last_error, errors) == ("FAILED", "sold out", [])
    assert [type(event.error) for event in bench.heard(HookFailed)] == [RuntimeError]


@pytest.mark.parametrize("error", ENDING, ids=repr)
def test_system_exit_in_a_hook_does_not_end_maintenance(bench: Bench, neighbour: Any, error: BaseException) -> None:
    errors = [error]

    @bench.app.job(kind="bad")
    async def bad(run: Run) -> None:
        """Never called."""

    @bad.on_enter("EXPIRED")
    def enter(tx: Any, job: Job) -> None:
        if errors:
            raise errors.pop()

    bench.migrate()
    id = bad.using(delay=100_000, ttl=5).enqueue().id
    bench.clock.advance(6)
    bench.run()
    assert (bench.app.get(id).state, [type(event.error) for event in bench.heard(HookFailed)]) == (
        "PENDING",
        [RuntimeError],
    )
    bench.clock.advance(3600)
    bench.run()
    assert (bench.app.get(id).state, errors) == ("EXPIRED", [])


@pytest.mark.parametrize("error", ENDING, ids=repr)
def test_system_exit_in_a_validator_ends_only_the_attempt(bench: Bench, neighbour: Any, error: BaseException) -> None:
    """The validator accepted the payload when the job was stored."""
    armed: list[BaseException] = []

    class Strict(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def judged(cls, n: int) -> int:
            if armed:
                raise armed[0]
            return n

    @bench.app.job(kind="bad", backoff=AT_ONCE, tries=2)
    async def bad(run: Run, given: Strict) -> None:
        """Never called."""

    id, good = bench.add(bad, Strict(n=1)), bench.add(neighbour)
    armed.append(error)
    bench.run()
    assert (bench.app.get(id).state, bench.app.get(id).attempt, bench.app.get(good).result) == ("FAILED", 2, "fine")
    assert bench.heard(WorkerError) == []


@pytest.mark.parametrize("is_async", [True, False])
def test_endless_recursion_ends_the_attempt(bench: Bench, neighbour: Any, is_async: bool) -> None:
    """The stored traceback is truncated."""

    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    @bench.app.job(kind="bad", tries=1)
    async def bad(run: Run) -> None:
        deeper(0)

    @bench.app.job(kind="bad_sync", tries=1)
    def bad_sync(run: SyncRun) -> None:
        deeper(0)

    job = both(bench, bad if is_async else bad_sync, neighbour)
    assert job.state == "FAILED"
    assert "RecursionError" in (job.last_error or "")
    assert len(job.last_error or "") <= 10_000


class Sly(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Nul(Exception):
    def __str__(self) -> str:
        return "a\0b\ud800"


@pytest.mark.parametrize("error", [Sly(), Nul()], ids=lambda error: type(error).__name__)
def test_error_with_unusable_text_is_stored_with_its_type(bench: Bench, neighbour: Any, error: Exception) -> None:
    """Its type is stored."""

    @bench.app.job(tries=1)
    async def bad(run: Run) -> None:
        raise error

    job = both(bench, bad, neighbour)
    assert job.state == "FAILED"
    assert type(error).__name__ in (job.last_error or "")


def test_handler_may_print(bench: Bench, neighbour: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The output appears on stdout, and the job succeeds."""

    @bench.app.job()
    def chatty(run: SyncRun) -> None:
        sys.stdout.write("hello\n")
        sys.stderr.write("oh\n")

    assert both(bench, chatty, neighbour).state == "SUCCEEDED"
    assert "hello\n" in capsys.readouterr().out


def test_nan_measure_fails_the_job(bench: Bench) -> None:
    @bench.app.job()
    async def work(run: Run) -> None:
        run.measure("bytes", float("nan"))

    job = bench.run_one(work)
    assert job.state == "FAILED"
    assert "'bytes' adds up to nan" in (job.last_error or "")


def test_result_that_raises_while_encoded_costs_a_try(bench: Bench) -> None:
    class Strange(pydantic.BaseModel):
        n: int

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def twice(self) -> int:
            raise ZeroDivisionError

    @bench.app.job(tries=1)
    async def gives(run: Run) -> Strange:
        return Strange(n=1)

    job = bench.run_one(gives)
    assert job.state == "FAILED"
    assert not bench.heard(WorkerError)
