"""What a handler may answer, and what becomes of its job."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from interlock import (
    Fail,
    JobFailed,
    Lifecycle,
    NotFound,
    Reject,
    Retry,
    Run,
    Snooze,
    SyncRun,
    TransitionRefused,
)
from interlock.core.error_policy import RetryDecision
from tests.loops.handler_bench import DELIVERY, STEADY, Bench


class Parcel(pydantic.BaseModel):
    to: str
    grams: int = 0


class HttpError(Exception):
    """As HTTP libraries raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type(
            "Response",
            (),
            {"status_code": status, "headers": {name.replace("_", "-"): value for name, value in headers.items()}},
        )()


def raising(bench: Bench, error: BaseException, **options: Any) -> Any:
    """A kind whose handler raises this."""

    @bench.app.job(**{"backoff": STEADY, **options})
    async def work(run: Run) -> None:
        raise error

    return work


# ---------------------------------------------------------------- what it returns
def test_what_an_async_handler_returns_is_the_jobs_result(bench: Bench) -> None:
    """Typed by its signature, both ways."""

    @bench.app.job()
    async def pack(run: Run, parcel: Parcel) -> Parcel:
        return Parcel(to=parcel.to.upper(), grams=parcel.grams + 1)

    job = bench.run_one(pack, Parcel(to="ann", grams=4))
    assert (job.state, job.result) == ("SUCCEEDED", {"to": "ANN", "grams": 5})
    assert pack.result(job.id) == Parcel(to="ANN", grams=5)


def test_a_sync_handler_runs_beside_the_loop_and_returns_the_same_way(bench: Bench) -> None:
    """In a thread of its own, with the facts of its attempt."""

    @bench.app.job()
    def pack(run: SyncRun, grams: int) -> str:
        return f"{run.exec_id == f'{run.job_id}:1'} {run.attempt} {dict(run.payload)} {threading.current_thread() is threading.main_thread()}"

    assert bench.run_one(pack, 5).result == "True 1 {'grams': 5} False"


def test_the_result_is_waited_for_in_both_colours(bench: Bench) -> None:
    """`result` and `aresult` give the value."""

    @bench.app.job()
    async def add(run: Run, a: int, b: int) -> int:
        return a + b

    job = bench.run_one(add, 2, 3)
    assert add.result(job.id) == asyncio.run(add.aresult(job.id)) == 5


def test_the_result_of_a_failed_job_raises_it(bench: Bench) -> None:
    """With the job, and the reason in its sentence."""
    work = raising(bench, Fail("no such user"))
    job = bench.run_one(work)
    for ask in (lambda: work.result(job.id), lambda: asyncio.run(work.aresult(job.id))):
        with pytest.raises(JobFailed, match="ended as FAILED at attempt 1: no such user") as caught:
            ask()
        assert caught.value.job.id == job.id


def test_a_result_that_does_not_come_in_time_is_a_timeout(bench: Bench) -> None:
    """The job goes on; another kind's job is not found."""
    work, other = raising(bench, Fail("never run")), bench.app.job(kind="other")(_none)
    id = bench.add(work)
    for ask in (lambda: work.result(id, timeout=0), lambda: asyncio.run(work.aresult(id, timeout=0))):
        with pytest.raises(TimeoutError, match=r"has not ended within 0 s\. It continues"):
            ask()
    assert bench.app.get(id).phase == "pending"
    with pytest.raises(NotFound, match="is of kind work, not other"):
        other.result(id, timeout=0)


async def _none(run: Run) -> None: ...


# ---------------------------------------------------------------- answers
def test_retry_spends_a_try_and_waits_as_long_as_it_says(bench: Bench) -> None:
    """`after` goes before the kind's backoff."""
    job = bench.run_one(raising(bench, Retry("busy", after=timedelta(minutes=7))))
    assert (job.state, job.phase, job.tries_left, bench.wait_of(job)) == ("PENDING", "pending", 2, 420)
    assert job.last_error == "busy"


def test_retry_without_a_delay_waits_for_the_backoff(bench: Bench) -> None:
    """10, then 20 seconds; with the last try the job fails."""
    job = bench.run_one(raising(bench, Retry("busy")))
    assert bench.wait_of(job) == 10
    job = bench.again(job, 9)
    assert job.attempt == 1
    job = bench.again(job, 1)
    assert (job.attempt, bench.wait_of(job)) == (2, 20)
    job = bench.again(job, 20)
    assert (job.state, job.attempt, job.tries_left) == ("FAILED", 3, 0)


def test_full_jitter_spreads_the_delay_below_the_ceiling(bench: Bench) -> None:
    """Never above it, and not all the same."""
    from interlock import Backoff

    work = raising(bench, Retry("busy"), backoff=Backoff(first=1000, cap=1000))
    jobs = [bench.add(work) for _ in range(8)]
    bench.run()
    sleeper = {bench.wait_of(bench.app.get(id)) for id in jobs}
    assert all(0 <= wait <= 1000 for wait in sleeper)
    assert len(sleeper) > 1


def test_fail_ends_the_job_at_once(bench: Bench) -> None:
    """Whatever tries are left."""
    job = bench.run_one(raising(bench, Fail("no such user")))
    assert (job.state, job.tries_left, job.last_error) == ("FAILED", 3, "no such user")


def test_reject_ends_the_job_where_that_is_drawn(bench: Bench) -> None:
    """As rejected, and never again."""
    job = bench.run_one(raising(bench, Reject("not allowed")))
    assert (job.state, job.phase, job.last_error) == ("REJECTED", "failed", "not allowed")


def test_reject_fails_the_job_where_it_is_not_drawn(bench: Bench) -> None:
    """A delivery knows no rejection."""
    job = bench.run_one(raising(bench, Reject("not allowed"), lifecycle=DELIVERY))
    assert (job.state, job.last_error) == ("FAILED", "not allowed")


def test_snooze_comes_back_after_a_while_and_spends_no_try(bench: Bench) -> None:
    """However often."""
    job = bench.run_one(raising(bench, Snooze("not yet", after=90)))
    for attempt in (1, 2, 3, 4, 5):
        assert (job.phase, job.attempt, job.tries_left, bench.wait_of(job)) == ("pending", attempt, 3, 90)
        job = bench.again(job, 90)
    assert job.last_error is None


def test_snooze_until_a_moment_comes_back_then(bench: Bench) -> None:
    """By the clock of the store; a moment that has passed is now, after the others."""
    naps = [timedelta(hours=3), timedelta(hours=-1)]

    @bench.app.job()
    async def work(run: Run) -> str:
        if naps:
            raise Snooze(until=bench.now() + naps.pop(0))
        return "done"

    job = bench.run_one(work)
    assert bench.wait_of(job) == 3 * 3600
    job = bench.again(job, 3 * 3600)
    assert (job.state, job.attempt, job.tries_left) == ("SUCCEEDED", 3, 3)


# ---------------------------------------------------------------- error policy
@pytest.mark.parametrize(
    "error",
    [TimeoutError("slow"), ConnectionResetError("gone"), HttpError(503), HttpError(429), ValueError("who knows")],
    ids=repr,
)
def test_errors_that_may_pass_are_tried_again(bench: Bench, error: Exception) -> None:
    """After the backoff, with the error told."""
    job = bench.run_one(raising(bench, error))
    assert (job.phase, job.tries_left, bench.wait_of(job)) == ("pending", 2, 10)
    assert type(error).__name__ in (job.last_error or "")


@pytest.mark.parametrize("error", [HttpError(403), HttpError(404), HttpError(413), TransitionRefused("no")], ids=repr)
def test_errors_that_will_not_pass_fail_the_job(bench: Bench, error: Exception) -> None:
    """At the first attempt."""
    job = bench.run_one(raising(bench, error))
    assert (job.state, job.attempt) == ("FAILED", 1)


@pytest.mark.parametrize(("asked", "sleeper"), [("77", 77), ("9", 10), ("0", 10)])
def test_retry_after_is_honoured_and_never_shortens_the_backoff(bench: Bench, asked: str, sleeper: float) -> None:
    """Else a server that says "at once" would have every try spent in a moment."""
    job = bench.run_one(raising(bench, HttpError(429, Retry_After=asked)))
    assert bench.wait_of(job) == sleeper


def test_what_the_handler_itself_says_holds_in_place_of_the_backoff(bench: Bench) -> None:
    job = bench.run_one(raising(bench, Retry("soon", after=7)))
    assert (job.phase, bench.wait_of(job)) == ("pending", 7)


def test_a_kinds_own_error_policy_has_the_first_word(bench: Bench) -> None:
    """And leaves what it does not know to the default."""

    def judge(error: Exception) -> RetryDecision | None:
        return {KeyError: RetryDecision(retryable=False), HttpError: RetryDecision(retryable=True, after=5)}.get(
            type(error)
        )

    known = bench.run_one(raising(bench, KeyError("x"), kind="known", error_policy=judge))
    turned = bench.run_one(raising(bench, HttpError(404), kind="turned", error_policy=judge))
    unknown = bench.run_one(raising(bench, ValueError("x"), kind="unknown", error_policy=judge))
    assert known.state == "FAILED"
    assert (turned.phase, bench.wait_of(turned)) == ("pending", 5)
    assert (unknown.phase, bench.wait_of(unknown)) == ("pending", 10)


def test_an_error_is_told_with_the_users_own_frames(bench: Bench) -> None:
    """And none of the engine's."""
    job = bench.run_one(raising(bench, ValueError("odd")))
    text = job.last_error or ""
    assert text.endswith("ValueError: odd")
    assert "test_handlers.py" in text
    assert "worker/attempt.py" not in text


def test_no_error_is_retried_where_no_retry_is_drawn(bench: Bench) -> None:
    """A lifecycle without a way back fails at once."""
    once = Lifecycle(
        "once",
        transitions=[
            ("new", "claim", "busy"),
            ("busy", "succeed", "done"),
            ("busy", "fail", "broken"),
            ("busy", "lose", "new"),
        ],
    )
    job = bench.run_one(raising(bench, TimeoutError("slow"), lifecycle=once))
    assert (job.state, job.attempt) == ("broken", 1)
