"""Steps: a value is remembered, and not made again."""

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
def test_a_step_is_remembered_across_attempts(bench: Bench, outside: ExternalWork, is_async: bool) -> None:
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


def test_a_step_that_raised_is_not_remembered(bench: Bench, outside: ExternalWork) -> None:
    """It is made again."""
    outside.errors = [TimeoutError("slow")]

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> str:
        return await run.step("link", outside)

    assert bench.run_one(work).result == "receipt-2"


def test_an_old_step_is_taken_afresh_once_it_is_too_old(bench: Bench, outside: ExternalWork) -> None:
    """By the store's clock: at 300 s it still holds, after that it does not."""

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


def test_an_old_step_may_be_taken_afresh_with_other_arguments(bench: Bench, outside: ExternalWork) -> None:
    """What is too old to be used is too old to complain about."""

    @bench.app.job()
    async def work(run: Run) -> str:
        value = await run.step("link", max_age=10)(outside, run.attempt)
        if run.attempt == 1:
            raise Retry("later", after=20)
        return value

    assert bench.again(bench.run_one(work), 20).result == "receipt-2"


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_a_name_used_twice_in_one_attempt_fails_the_job(bench: Bench, outside: ExternalWork, verb: str) -> None:
    """With a sentence that names it; the second call is not made."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.step("link", outside)
        await (run.step("link", outside) if verb == "step" else run.effect("link", on_doubt="retry")(outside))

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("FAILED", 1, 1)
    assert "'link' is used twice in one attempt" in (job.last_error or "")


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_other_arguments_than_before_fail_the_job(bench: Bench, outside: ExternalWork, verb: str) -> None:
    """Its receipt does not speak of this call."""

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


def test_a_name_kept_as_a_step_cannot_become_an_effect(bench: Bench, outside: ExternalWork) -> None:
    """Neither can speak for the other."""

    @bench.app.job()
    async def work(run: Run) -> None:
        if run.attempt == 1:
            await run.step("it", outside)
            raise Retry("later", after=0)
        await run.effect("it", on_doubt="retry")(outside)

    job = bench.run_one(work)
    assert "'it' was used as step in an earlier attempt and is used as effect now" in (job.last_error or "")


def test_a_steps_value_comes_back_as_its_annotation_says_also_at_first(bench: Bench) -> None:
    """It goes through encode and decode in every attempt, so what works once works again."""
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


def test_a_step_that_cannot_be_remembered_fails_the_job_with_its_reason(bench: Bench) -> None:
    """Trying again would not help."""

    def thing() -> Any:
        return object()

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.step("thing", thing)

    job = bench.run_one(work)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "cannot be saved" in (job.last_error or "")


def test_an_async_step_of_a_sync_handler_is_refused(bench: Bench) -> None:
    """With a sentence, not with a coroutine that nobody awaited."""

    async def later() -> int:
        return 1

    @bench.app.job()
    def work(run: SyncRun) -> None:
        run.step("later", later)

    assert "later is async and its handler is not" in (bench.run_one(work).last_error or "")
