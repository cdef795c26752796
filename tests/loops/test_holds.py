"""Held jobs: no worker runs them until an operator decides."""

from typing import Any

import pytest

from interlock import Run, TransitionRefused, UsageError
from interlock.core.job import Job
from interlock.testing import Failpoint
from tests.loops.handler_bench import AT_ONCE, Bench


class Till:
    """An external payment system whose first answer is lost."""

    def __init__(self, bench: Bench) -> None:
        self.charged = 0
        self.results: list[Any] = []

        @bench.app.job(backoff=AT_ONCE)
        async def pay(run: Run) -> str | None:
            value = await run.effect("charge", on_doubt="hold")(self.charge)
            return f"got {value}"

        self.kind = pay

    def charge(self) -> str | None:
        self.charged += 1
        if self.charged == 1:
            raise TimeoutError("no answer")
        return f"receipt-{self.charged}"


@pytest.fixture
def till(bench: Bench) -> Till:
    return Till(bench)


@pytest.fixture
def held(bench: Bench, till: Till) -> Job:
    """A job that is held because of a doubt."""
    job = bench.run_one(till.kind)
    assert job.held_at is not None
    return job


def test_held_job_is_never_claimed(bench: Bench, till: Till, held: Job) -> None:
    """It waits indefinitely, and its hold reason says what to do."""
    assert (held.phase, held.state) == ("pending", "PENDING")
    assert 'release the job with effect="happened" or effect="did_not"' in (held.held_reason or "")
    later = bench.again(held, 86_400)
    assert (later.attempt, till.charged) == (held.attempt, 1)


def test_job_released_as_happened_uses_the_operators_receipt(bench: Bench, till: Till, held: Job) -> None:
    """The call is not repeated."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="happened", receipt="slip-9")
    job = bench.again(held)
    assert (job.state, job.result, till.charged, job.held_at) == ("SUCCEEDED", "got slip-9", 1, None)
    receipt = bench.receipt(job, "charge")
    assert receipt is not None
    assert receipt.decided_by == "operator:ann"


def test_effect_released_as_happened_without_a_receipt_returns_none(bench: Bench, till: Till, held: Job) -> None:
    """The call is not repeated."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="happened")
    job = bench.again(held)
    assert (job.result, till.charged) == ("got None", 1)


def test_job_released_as_not_happened_makes_the_call(bench: Bench, till: Till, held: Job) -> None:
    """The call is made as if it had never been tried."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="did_not")
    job = bench.again(held)
    assert (job.result, till.charged) == ("got receipt-2", 2)


def test_job_released_without_a_decision_is_held_again(bench: Bench, till: Till, held: Job) -> None:
    """The doubt remains."""
    bench.app.release(held.id, by="ann", reason="hm")
    job = bench.again(held)
    assert (job.held_at is not None, till.charged) == (True, 1)


def test_release_is_recorded_and_needs_a_held_job(bench: Bench, held: Job) -> None:
    """The audit has the reason. A receipt is accepted only for an effect that happened."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="did_not")
    assert ("release", "asked the bank") in bench.remarks(held)
    assert "hold" in [event for event, _ in bench.remarks(held)]
    with pytest.raises(TransitionRefused, match="is not held"):
        bench.app.release(held.id, by="ann", reason="again")
    with pytest.raises(UsageError, match="A receipt is only for an effect that happened"):
        bench.app.release(held.id, by="ann", reason="x", effect="did_not", receipt=1)


def test_held_job_can_be_cancelled(bench: Bench, held: Job) -> None:
    """The cancellation takes effect at once, because the job is waiting."""
    assert bench.app.cancel(held.id, by="ann").state == "CANCELLED"


def test_lost_lease_holds_the_job_if_configured(bench: Bench) -> None:
    """With `on_lost_lease="hold"`, an operator releases the job before it runs again."""
    runs: list[int] = []

    @bench.app.job(on_lost_lease="hold")
    async def work(run: Run) -> None:
        runs.append(run.attempt)

    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    job = bench.run_one(work)
    assert (job.phase, job.held_reason, runs) == ("pending", "lease lost", [1])
    bench.app.release(job.id, by="ann", reason="looked")
    assert (bench.again(job).state, runs) == ("SUCCEEDED", [1, 2])


def test_lost_lease_fails_the_job_if_configured(bench: Bench) -> None:
    """With `on_lost_lease="fail"`, the job is not retried."""

    @bench.app.job(on_lost_lease="fail")
    async def work(run: Run) -> None: ...

    bench.worker.lose_lease()
    job = bench.run_one(work)
    assert (job.state, job.last_error) == ("FAILED", "lease lost")
