"""What a handler can return or raise, and how its job ends."""

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
    """An error as HTTP libraries raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type(
            "Response",
            (),
            {"status_code": status, "headers": {name.replace("_", "-"): value for name, value in headers.items()}},
        )()


def raising(bench: Bench, error: BaseException, **options: Any) -> Any:
    """Declare a kind whose handler raises this error."""

    @bench.app.job(**{"backoff": STEADY, **options})
    async def work(run: Run) -> None:
        raise error

    return work


# ---------------------------------------------------------------- results
def test_return_value_of_an_async_handler_is_the_result_of_the_job(bench: Bench) -> None:
    """Arguments and result have the types of the signature."""

    @bench.app.job()
    async def pack(run: Run, parcel: Parcel) -> Parcel:
        return Parcel(to=parcel.to.upper(), grams=parcel.grams + 1)

    job = bench.run_one(pack, Parcel(to="ann", grams=4))
    assert (job.state, job.result) == ("SUCCEEDED", {"to": "ANN", "grams": 5})
    assert pack.result(job.id) == Parcel(to="ANN", grams=5)


def test_sync_handler_runs_in_a_thread_and_returns_the_result(bench: Bench) -> None:
    """Its run has the job id, the attempt and the payload."""

    @bench.app.job()
    def pack(run: SyncRun, grams: int) -> str:
        return f"{run.exec_id == f'{run.job_id}:1'} {run.attempt} {dict(run.payload)} {threading.current_thread() is threading.main_thread()}"

    assert bench.run_one(pack, 5).result == "True 1 {'grams': 5} False"


def test_result_and_aresult_return_the_value(bench: Bench) -> None:
    """The value is the same."""

    @bench.app.job()
    async def add(run: Run, a: int, b: int) -> int:
        return a + b

    job = bench.run_one(add, 2, 3)
    assert add.result(job.id) == asyncio.run(add.aresult(job.id)) == 5


def test_result_of_a_failed_job_raises_job_failed(bench: Bench) -> None:
    """The error contains the job and the reason."""
    work = raising(bench, Fail("no such user"))
    job = bench.run_one(work)
    for ask in (lambda: work.result(job.id), lambda: asyncio.run(work.aresult(job.id))):
        with pytest.raises(JobFailed, match="ended as FAILED at attempt 1: no such user") as caught:
            ask()
        assert caught.value.job.id == job.id


def test_result_that_takes_too_long_raises_a_timeout(bench: Bench) -> None:
    """The job continues. The result of a job of another kind is not found."""
    work, other = raising(bench, Fail("never run")), bench.app.job(kind="other")(_none)
    id = bench.add(work)
    for ask in (lambda: work.result(id, timeout=0), lambda: asyncio.run(work.aresult(id, timeout=0))):
        with pytest.raises(TimeoutError, match=r"has not ended within 0 s\. It continues"):
            ask()
    assert bench.app.get(id).phase == "pending"
    with pytest.raises(NotFound, match="is of kind work, not other"):
        other.result(id, timeout=0)


async def _none(run: Run) -> None: ...


# ---------------------------------------------------------------- Retry, Fail, Reject, Snooze
def test_retry_costs_a_try_and_waits_for_its_delay(bench: Bench) -> None:
    """`after` takes precedence over the kind's backoff."""
    job = bench.run_one(raising(bench, Retry("busy", after=timedelta(minutes=7))))
    assert (job.state, job.phase, job.tries_left, bench.wait_of(job)) == ("PENDING", "pending", 2, 420)
    assert job.last_error == "busy"


def test_retry_without_a_delay_waits_for_the_backoff(bench: Bench) -> None:
    """The waits are 10 and 20 seconds. After its last try the job fails."""
    job = bench.run_one(raising(bench, Retry("busy")))
    assert bench.wait_of(job) == 10
    job = bench.again(job, 9)
    assert job.attempt == 1
    job = bench.again(job, 1)
    assert (job.attempt, bench.wait_of(job)) == (2, 20)
    job = bench.again(job, 20)
    assert (job.state, job.attempt, job.tries_left) == ("FAILED", 3, 0)


def test_jitter_spreads_the_delay_below_the_cap(bench: Bench) -> None:
    """The delays differ, and none exceeds the cap."""
    from interlock import Backoff

    work = raising(bench, Retry("busy"), backoff=Backoff(first=1000, cap=1000))
    jobs = [bench.add(work) for _ in range(8)]
    bench.run()
    waits = {bench.wait_of(bench.app.get(id)) for id in jobs}
    assert all(0 <= wait <= 1000 for wait in waits)
    assert len(waits) > 1


def test_fail_ends_the_job_at_once(bench: Bench) -> None:
    """The remaining tries are not used."""
    job = bench.run_one(raising(bench, Fail("no such user")))
    assert (job.state, job.tries_left, job.last_error) == ("FAILED", 3, "no such user")


def test_reject_ends_the_job_as_rejected(bench: Bench) -> None:
    """The job is not retried."""
    job = bench.run_one(raising(bench, Reject("not allowed")))
    assert (job.state, job.phase, job.last_error) == ("REJECTED", "failed", "not allowed")


def test_reject_fails_the_job_if_its_lifecycle_has_no_reject(bench: Bench) -> None:
    """The delivery lifecycle has no `reject` transition."""
    job = bench.run_one(raising(bench, Reject("not allowed"), lifecycle=DELIVERY))
    assert (job.state, job.last_error) == ("FAILED", "not allowed")


def test_snoozed_job_is_due_after_the_delay_and_keeps_its_tries(bench: Bench) -> None:
    """This holds for any number of snoozes."""
    job = bench.run_one(raising(bench, Snooze("not yet", after=90)))
    for attempt in (1, 2, 3, 4, 5):
        assert (job.phase, job.attempt, job.tries_left, bench.wait_of(job)) == ("pending", attempt, 3, 90)
        job = bench.again(job, 90)
    assert job.last_error is None


def test_job_snoozed_until_a_time_is_due_at_that_time(bench: Bench) -> None:
    """The clock of the store counts. If the time has passed, the job is due at once."""
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
def test_temporary_errors_are_retried(bench: Bench, error: Exception) -> None:
    """The retry waits for the backoff, and the error is stored."""
    job = bench.run_one(raising(bench, error))
    assert (job.phase, job.tries_left, bench.wait_of(job)) == ("pending", 2, 10)
    assert type(error).__name__ in (job.last_error or "")


@pytest.mark.parametrize("error", [HttpError(403), HttpError(404), HttpError(413), TransitionRefused("no")], ids=repr)
def test_permanent_errors_fail_the_job(bench: Bench, error: Exception) -> None:
    """The job fails at its first attempt."""
    job = bench.run_one(raising(bench, error))
    assert (job.state, job.attempt) == ("FAILED", 1)


@pytest.mark.parametrize(("asked", "wait"), [("77", 77), ("9", 10), ("0", 10)])
def test_retry_after_header_is_respected_but_never_shortens_the_backoff(bench: Bench, asked: str, wait: float) -> None:
    """Otherwise a server that asks for an immediate retry would use up all tries at once."""
    job = bench.run_one(raising(bench, HttpError(429, Retry_After=asked)))
    assert bench.wait_of(job) == wait


def test_delay_of_retry_replaces_the_backoff(bench: Bench) -> None:
    job = bench.run_one(raising(bench, Retry("soon", after=7)))
    assert (job.phase, bench.wait_of(job)) == ("pending", 7)


def test_error_policy_of_a_kind_precedes_the_default(bench: Bench) -> None:
    """The default decides about errors that the kind's policy does not know."""

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


def test_stored_error_contains_only_the_users_frames(bench: Bench) -> None:
    """The traceback contains no frames of the engine."""
    job = bench.run_one(raising(bench, ValueError("odd")))
    text = job.last_error or ""
    assert text.endswith("ValueError: odd")
    assert "test_handlers.py" in text
    assert "worker/attempt.py" not in text


def test_error_fails_the_job_if_its_lifecycle_has_no_retry(bench: Bench) -> None:
    """The job fails at its first attempt."""
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
