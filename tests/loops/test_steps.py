"""Steps: a completed step returns its stored value and does not run again."""

from datetime import date
from typing import Any

import pydantic
import pytest

from interlock import Retry, Run, SyncRun
from tests.loops.handler_bench import AT_ONCE, Bench
from tests.loops.test_effects import ExternalWork, outside

__all__ = ["outside"]


class Link(pydantic.BaseModel):
    url: str
    until: date


def called(outside: ExternalWork, *args: Any) -> str:
    return outside(*args)


# ---------------------------------------------------------------- steps
@pytest.mark.parametrize("is_async", [True, False])
def test_step_is_stored_across_attempts(bench: Bench, outside: ExternalWork, is_async: bool) -> None:
    """The second attempt gets the value of the first."""

    @bench.app.job()
    async def work(run: Run) -> str:
        value = await run.step("link", called, outside, 7)
        if run.attempt == 1:
            raise Retry("later", after=0)
        return value

    @bench.app.job()
    def work_sync(run: SyncRun) -> str:
        value = run.step("link", called, outside, 7)
        if run.attempt == 1:
            raise Retry("later", after=0)
        return value

    job = bench.run_one(work if is_async else work_sync)
    assert (job.attempt, job.result, outside.calls) == (2, "receipt-1", [(7,)])


def test_step_that_raised_is_not_stored(bench: Bench, outside: ExternalWork) -> None:
    """The next attempt runs it again."""
    outside.errors = [TimeoutError("slow")]

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> str:
        return await run.step("link", outside)

    assert bench.run_one(work).result == "receipt-2"


def test_step_runs_again_after_its_max_age(bench: Bench, outside: ExternalWork) -> None:
    """The clock of the store counts. At 300 s the stored value is still used, after that it is not."""

    @bench.app.job(tries=5)
    async def work(run: Run) -> str:
        value = await run.step("link", max_age=300)(outside)
        if run.attempt < 4:
            raise Retry("later", after=200)
        return value

    job = bench.run_one(work)
    assert len(outside.calls) == 1
    bench.again(job, 200)
    assert len(outside.calls) == 1
    bench.again(job, 200)
    assert len(outside.calls) == 2
    assert bench.again(job, 200).result == "receipt-2"


def test_expired_step_may_have_other_arguments(bench: Bench, outside: ExternalWork) -> None:
    """Its stored value is not used, so its arguments are not compared."""

    @bench.app.job()
    async def work(run: Run) -> str:
        value = await run.step("link", max_age=10)(outside, run.attempt)
        if run.attempt == 1:
            raise Retry("later", after=20)
        return value

    assert bench.again(bench.run_one(work), 20).result == "receipt-2"


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_name_used_twice_in_one_attempt_fails_the_job(bench: Bench, outside: ExternalWork, verb: str) -> None:
    """The error contains the name, and the second call is not made."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.step("link", outside)
        await (run.step("link", outside) if verb == "step" else run.effect("link", on_doubt="retry")(outside))

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("FAILED", 1, 1)
    assert "'link' is used twice in one attempt" in (job.last_error or "")


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_step_or_effect_with_other_arguments_fails_the_job(bench: Bench, outside: ExternalWork, verb: str) -> None:
    """The stored receipt is for another call."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await (
            run.step("it", outside, run.attempt)
            if verb == "step"
            else run.effect("it", on_doubt="retry")(outside, run.attempt)
        )
        raise Retry("later", after=0)

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("FAILED", 2, 1)
    assert f"The {verb} 'it' is called with other arguments than in an earlier attempt" in (job.last_error or "")


def test_name_of_a_step_cannot_become_an_effect(bench: Bench, outside: ExternalWork) -> None:
    """The receipt of a step does not count for an effect."""

    @bench.app.job()
    async def work(run: Run) -> None:
        if run.attempt == 1:
            await run.step("it", outside)
            raise Retry("later", after=0)
        await run.effect("it", on_doubt="retry")(outside)

    job = bench.run_one(work)
    assert "'it' was used as step in an earlier attempt and is used as effect now" in (job.last_error or "")


def test_value_of_a_step_has_the_annotated_type_in_every_attempt(bench: Bench) -> None:
    """The value is encoded and decoded in the first attempt too, so all attempts get the same."""
    made: list[Link] = []

    def link() -> Link:
        made.append(Link(url="https://x", until=date(2026, 5, 1)))
        return made[-1]

    async def pair() -> tuple[int, date]:
        return 1, date(2026, 5, 1)

    def loose() -> Any:
        return (1, date(2026, 5, 1))

    seen: list[Any] = []

    @bench.app.job()
    async def work(run: Run) -> None:
        seen.append((await run.step("link", link), await run.step("pair", pair), await run.step("loose", loose)))
        if run.attempt == 1:
            raise Retry("later", after=0)

    assert bench.run_one(work).state == "SUCCEEDED"
    assert seen == [(Link(url="https://x", until=date(2026, 5, 1)), (1, date(2026, 5, 1)), [1, "2026-05-01"])] * 2
    assert seen[0][0] is not made[0]


def test_step_that_cannot_be_stored_fails_the_job(bench: Bench) -> None:
    """A retry would not help, so the job is not retried."""

    def thing() -> Any:
        return object()

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.step("thing", thing)

    job = bench.run_one(work)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "cannot be saved" in (job.last_error or "")


def test_async_step_of_a_sync_handler_is_refused(bench: Bench) -> None:
    """The job fails with a clear error, and no coroutine is left unawaited."""

    async def later() -> int:
        return 1

    @bench.app.job()
    def work(run: SyncRun) -> None:
        run.step("later", later)

    assert "later is async and its handler is not" in (bench.run_one(work).last_error or "")
