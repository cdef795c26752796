"""Held jobs: nobody runs them until an operator has decided."""

from typing import Any

import pytest

from interlock import Run, TransitionRefused, UsageError
from interlock.core.job import Job
from interlock.testing import Failpoint
from tests.loops.handler_bench import AT_ONCE, Bench


class Till:
    """An outside that takes money, and whose first answer is lost."""

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
    """A job that is held for a doubt."""
    job = bench.run_one(till.kind)
    assert job.held_at is not None
    return job


def test_a_held_job_is_never_claimed(bench: Bench, till: Till, held: Job) -> None:
    """It waits, however long, and says why."""
    assert (held.phase, held.state) == ("pending", "PENDING")
    assert 'release the job with effect="happened" or effect="did_not"' in (held.held_reason or "")
    later = bench.again(held, 86_400)
    assert (later.attempt, till.charged) == (held.attempt, 1)


def test_released_as_happened_it_goes_on_with_the_operators_receipt(bench: Bench, till: Till, held: Job) -> None:
    """The call is not made again."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="happened", receipt="slip-9")
    job = bench.again(held)
    assert (job.state, job.result, till.charged, job.held_at) == ("SUCCEEDED", "got slip-9", 1, None)
    receipt = bench.receipt(job, "charge")
    assert receipt is not None
    assert receipt.decided_by == "operator:ann"


def test_released_as_happened_without_a_receipt_its_value_is_none(bench: Bench, till: Till, held: Job) -> None:
    """The operator knows that it happened, and nothing more."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="happened")
    job = bench.again(held)
    assert (job.result, till.charged) == ("got None", 1)


def test_released_as_not_happened_the_call_is_made(bench: Bench, till: Till, held: Job) -> None:
    """As if it had never been asked for."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="did_not")
    job = bench.again(held)
    assert (job.result, till.charged) == ("got receipt-2", 2)


def test_released_without_a_decision_the_doubt_holds_it_again(bench: Bench, till: Till, held: Job) -> None:
    """Nobody has said what happened."""
    bench.app.release(held.id, by="ann", reason="hm")
    job = bench.again(held)
    assert (job.held_at is not None, till.charged) == (True, 1)


def test_a_release_is_remarked_and_needs_a_hold(bench: Bench, held: Job) -> None:
    """Who, and why; what is not held is not released; a receipt belongs to what happened."""
    bench.app.release(held.id, by="ann", reason="asked the bank", effect="did_not")
    assert ("release", "asked the bank") in bench.remarks(held)
    assert "hold" in [event for event, _ in bench.remarks(held)]
    with pytest.raises(TransitionRefused, match="is not held"):
        bench.app.release(held.id, by="ann", reason="again")
    with pytest.raises(UsageError, match="A receipt is only for an effect that happened"):
        bench.app.release(held.id, by="ann", reason="x", effect="did_not", receipt=1)


def test_a_held_job_can_be_cancelled(bench: Bench, held: Job) -> None:
    """It waits, so it can be carried out."""
    assert bench.app.cancel(held.id, by="ann").state == "CANCELLED"


def test_a_lost_lease_holds_a_kind_that_wants_it(bench: Bench) -> None:
    """`on_lost_lease="hold"`: an operator looks before it runs again."""
    runs: list[int] = []

    @bench.app.job(on_lost_lease="hold")
    async def work(run: Run) -> None:
        runs.append(run.attempt)

    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    job = bench.run_one(work)
    assert (job.phase, job.held_reason, runs) == ("pending", "lease lost", [1])
    bench.app.release(job.id, by="ann", reason="looked")
    assert (bench.again(job).state, runs) == ("SUCCEEDED", [1, 2])


def test_a_lost_lease_fails_a_kind_that_wants_it(bench: Bench) -> None:
    """`on_lost_lease="fail"`."""

    @bench.app.job(on_lost_lease="fail")
    async def work(run: Run) -> None: ...

    bench.worker.lose_lease()
    job = bench.run_one(work)
    assert (job.state, job.last_error) == ("FAILED", "lease lost")
