"""Guards, which run before an attempt, and hooks, which run in the transaction of a transition."""

from typing import Any

import pytest

from interlock import Fail, Job, Reject, Retry, Run, Snooze, UsageError
from interlock.telemetry.events import HookFailed
from tests.loops.handler_bench import AT_ONCE, DELIVERY, IMAGE, STEADY, Bench
from tests.loops.test_commit_functions import Ledger, ordering


# ---------------------------------------------------------------- guard
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "state"), [(Reject("no credit"), "REJECTED"), (Fail("no credit"), "FAILED")], ids=repr
)
def test_guard_can_reject_or_fail_a_job_before_it_runs(
    bench: Bench, error: Exception, state: str, is_async: bool
) -> None:
    """The guard gets the job and its payload."""
    order, prepared, _ = ordering(bench)
    seen: list[Any] = []

    def judge(job: Job, number: int = 7) -> None:
        seen.append((job.kind, bench.last(job).status, number))
        raise error

    async def ajudge(job: Job, number: int = 7) -> None:
        judge(job, number)

    order.guard(ajudge if is_async else judge)
    job = bench.run_one(order, 9)
    assert (job.state, job.last_error, prepared, seen) == (state, "no credit", [], [("order", "LEASED", 9)])


def test_guard_that_raises_returns_the_job_with_all_its_tries(bench: Bench) -> None:
    """The job is due again after a growing backoff."""
    order, prepared, make = ordering(bench)
    make()
    errors: list[Exception] = [
        ConnectionError("billing is down"),
        KeyError("x"),
        Retry("busy", after=7),
        Snooze(after=3),
    ]

    @order.guard
    def judge(job: Job, number: int = 7) -> None:
        if errors:
            raise errors.pop(0)

    job = bench.run_one(order)
    for wait in (10, 20, 7, 3):
        assert (job.phase, job.tries_left, bench.wait_of(job), prepared) == ("pending", 3, wait, [])
        job = bench.again(job, wait)
    assert (job.state, job.tries_left) == ("SUCCEEDED", 3)
    assert any(
        "its guard raised ConnectionError: billing is down" in (entry.reason or "")
        for entry in bench.app.history(job.id)
    )


def test_guard_runs_in_the_state_after_the_claim(bench: Bench) -> None:
    """A delivery is CLAIMED there. Its lifecycle has no `reject`, so a rejection fails it."""

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> None:
        await run.advance("STREAMING")

    @deliver.guard
    def judge(job: Job) -> None:
        assert job.state == "CLAIMED"
        raise Reject("blocked user")

    job = bench.run_one(deliver)
    assert bench.walk(job) == ["claim CLAIMED", "fail FAILED"]


# ---------------------------------------------------------------- on_enter
def test_error_of_a_hook_on_success_fails_the_attempt(bench: Bench) -> None:
    """The commit is rolled back, and the error policy decides."""
    order, prepared, make = ordering(bench)
    errors = [ValueError("odd")]

    @order.on_enter("SUCCEEDED")
    def enter(tx: Any, job: Job) -> None:
        ledger.write(tx, job, job.state)
        if errors:
            raise errors.pop()

    ledger = make()
    job = bench.run_one(order)
    assert (job.phase, job.tries_left, ledger.rows) == ("pending", 2, [])
    job = bench.again(job, 10)
    assert (job.state, prepared, ledger.rows) == ("SUCCEEDED", [1, 2], ["7", "SUCCEEDED"])


def test_failing_hook_on_another_state_is_retried_and_recorded(bench: Bench) -> None:
    """The transition is not stored until the hook succeeds. Each failure is an event, and the first is recorded."""
    errors = [ValueError("odd"), ValueError("odd")]
    runs: list[int] = []

    @bench.app.job(backoff=AT_ONCE)
    async def order(run: Run) -> None:
        runs.append(run.attempt)
        raise Fail("sold out")

    @order.on_enter("FAILED")
    def enter(tx: Any, job: Job) -> None:
        ledger.write(tx, job, f"{job.state} {job.last_error}")
        if errors:
            raise errors.pop()

    ledger = Ledger(bench)
    job = bench.run_one(order)
    assert (job.state, job.last_error, runs, ledger.rows) == ("FAILED", "sold out", [1], ["FAILED sold out"])
    assert [(event.state, str(event.error)) for event in bench.heard(HookFailed)] == [("FAILED", "odd")] * 2
    assert bench.remarks(job) == [("hook_failed", "the hook for FAILED raised ValueError: odd; the worker retries it")]


def test_each_transition_of_a_path_runs_its_hook(bench: Bench) -> None:
    """The hooks run in order, each with the job in the state it enters."""

    @bench.app.job(lifecycle=IMAGE, tries=1)
    async def paint(run: Run) -> None:
        raise Fail("no gpu")

    @paint.on_enter("failed")
    def failed(tx: Any, job: Job) -> None:
        ledger.write(tx, job, job.state)

    @paint.on_enter("dead_letter")
    def buried(tx: Any, job: Job) -> None:
        ledger.write(tx, job, job.state)

    ledger = Ledger(bench)
    assert (bench.run_one(paint).state, ledger.rows) == ("dead_letter", ["failed", "dead_letter"])


def test_hook_on_a_state_that_a_claim_enters_is_refused(bench: Bench) -> None:
    """A claim runs no functions. This includes the waiting state that a claim of a resting job passes through."""

    @bench.app.job(lifecycle=IMAGE)
    async def paint(run: Run) -> None: ...

    for state in ("running", "queued"):
        with pytest.raises(UsageError, match=f"cannot have a hook on {state}: claims enter it"):
            paint.on_enter(state)


def test_hook_runs_when_a_retry_enters_the_waiting_state(bench: Bench) -> None:
    """Enqueueing a job does not run the hook."""
    entered: list[tuple[str, int]] = []

    @bench.app.job(backoff=STEADY)
    async def order(run: Run) -> None:
        if run.attempt == 1:
            raise ValueError("odd")

    @order.on_enter("PENDING")
    def enter(tx: Any, job: Job) -> None:
        entered.append((job.phase, job.tries_left))

    job = bench.run_one(order)
    assert (bench.again(job, 10).state, entered) == ("SUCCEEDED", [("pending", 2)])
