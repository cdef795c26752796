"""Cancel requests for running jobs, and handlers that run too long."""

import asyncio
from typing import Any

import pytest

from interlock import (
    Cancelled,
    Fail,
    InterlockError,
    LeaseLost,
    Lifecycle,
    Retry,
    Run,
    Snooze,
    SyncRun,
    TransitionRefused,
    Tx,
)
from interlock.core.job import Job
from interlock.core.outcome import Lost
from interlock.telemetry.events import Event, WorkerStateChanged
from interlock.testing import Failpoint
from tests.contract.kit import decided
from tests.loops.handler_bench import AT_ONCE, DELIVERY, IMAGE, Bench


def ask(bench: Bench, id: str, *, hears: bool = True) -> None:
    """Request the cancellation of a running job; its worker learns of it with its next heartbeat."""
    assert bench.app.cancel(id, by="ann", reason="enough").phase == "running"
    if hears:
        bench.worker.heartbeat()


async def for_ever() -> None:
    await asyncio.Event().wait()


# ---------------------------------------------------------------- async handlers
def test_cancel_request_cancels_a_running_async_handler(bench: Bench) -> None:
    """Its `finally` block runs, and the audit names the operator who requested the cancellation."""
    cleaned: list[bool] = []

    @bench.app.job()
    async def work(run: Run) -> None:
        ask(bench, run.job_id)
        try:
            await for_ever()
        finally:
            cleaned.append(run.cancelled)

    job = bench.run_one(work)
    assert (job.state, job.cancel_reason, cleaned) == ("CANCELLED", "enough", [True])
    assert bench.app.history(job.id)[-1].actor == "operator:ann"


def test_run_methods_raise_after_a_cancel_request(bench: Bench) -> None:
    """They raise `Cancelled`, so a handler that does not await anything learns of the request."""
    called, raised = list[int](), list[str]()

    @bench.app.job(lifecycle=DELIVERY)
    async def work(run: Run) -> None:
        ask(bench, run.job_id)
        with pytest.raises(Cancelled):
            await run.step("a", called.append, 1)

    @bench.app.job(lifecycle=DELIVERY)
    def work_sync(run: SyncRun) -> None:
        assert not run.cancelled
        ask(bench, run.job_id)
        assert run.cancelled
        for verb in (
            lambda: run.step("a", called.append, 1),
            lambda: run.advance("STREAMING"),
            lambda: run.effect("b", on_doubt="skip")(called.append, 2),
        ):
            # Record the type here: after a cancel request, any error in the handler cancels the job.
            with pytest.raises(InterlockError) as error:
                verb()
            raised.append(type(error.value).__name__)
        run.step("c", called.append, 3)

    # The async handler awaits its step, so the cancellation reaches it there.
    for kind in (work, work_sync):
        job = bench.run_one(kind)
        assert (job.state, called) == ("CANCELLED", [])
        assert bench.walk(job)[-2:] == ["retry QUEUED", "cancel CANCELLED"]
    assert raised == ["Cancelled"] * 3


def test_job_with_a_cancel_request_may_still_succeed(bench: Bench) -> None:
    """The handler returns a value despite the request."""

    @bench.app.job()
    async def work(run: Run) -> str:
        ask(bench, run.job_id)
        try:
            await for_ever()
        except asyncio.CancelledError:
            return "saved"
        return "?"

    @bench.app.job()
    def work_sync(run: SyncRun) -> str:
        ask(bench, run.job_id)
        return "saved"

    for kind in (work, work_sync):
        job = bench.run_one(kind)
        assert (job.state, job.result) == ("SUCCEEDED", "saved")


def test_committed_job_cannot_be_cancelled(bench: Bench) -> None:
    """The request is refused, and the job is finished."""
    refused: list[str] = []

    @bench.app.job()
    async def work(run: Run) -> None: ...

    @work.finish
    async def tell(run: Run, value: None) -> None:
        with pytest.raises(TransitionRefused) as caught:
            bench.app.cancel(run.job_id, by="ann")
        refused.append(str(caught.value))

    job = bench.run_one(work)
    assert job.state == "SUCCEEDED"
    assert "it has passed its commit" in refused[0]


def test_cancel_request_is_refused_if_the_lifecycle_has_no_cancel(bench: Bench) -> None:
    """The refusal names the missing transition."""

    @bench.app.job(lifecycle=IMAGE)
    async def paint(run: Run) -> None:
        with pytest.raises(TransitionRefused, match="has no `cancel` transition"):
            bench.app.cancel(run.job_id, by="ann")

    assert bench.run_one(paint).state == "completed"


# ---------------------------------------------------------------- jobs with a cancel request
@pytest.mark.parametrize("error", [Retry("busy"), ValueError("odd"), Snooze("later", after=60)], ids=repr)
def test_job_with_a_cancel_request_is_cancelled_instead_of_retried(bench: Bench, error: Exception) -> None:
    """This also holds if its worker has not yet learned of the request."""

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> None:
        ask(bench, run.job_id, hears=False)
        raise error

    job = bench.run_one(work)
    assert (job.state, job.attempt, job.cancel_reason) == ("CANCELLED", 1, "enough")
    assert bench.app.history(job.id)[-1].actor == "operator:ann"


def test_job_with_a_cancel_request_is_cancelled_if_its_guard_fails(bench: Bench) -> None:
    """A guard error would return the job to its waiting state."""

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> None: ...

    @work.guard
    def judge(job: Job) -> None:
        ask(bench, job.id, hears=False)
        raise ConnectionError("down")

    assert bench.run_one(work).state == "CANCELLED"


def test_job_with_a_cancel_request_is_cancelled_if_its_lease_is_lost(bench: Bench) -> None:
    """The worker that adopts the execution cancels it."""

    @bench.app.job()
    async def work(run: Run) -> None:
        ask(bench, run.job_id, hears=False)

    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    job = bench.run_one(work)
    assert (job.state, job.lease_losses, bench.statuses(job)) == ("CANCELLED", 1, ["ABORTED"])


def test_job_with_a_cancel_request_may_still_fail(bench: Bench) -> None:
    """It does not return to a waiting state, so it is not cancelled."""

    @bench.app.job()
    async def work(run: Run) -> None:
        ask(bench, run.job_id, hears=False)
        raise Fail("broken")

    assert bench.run_one(work).state == "FAILED"


def test_worker_with_a_cancel_request_never_moves_an_attempt_of_another_worker(bench: Bench) -> None:
    """Its own attempt has ended. The next attempt has the same holder number, but belongs to another worker."""
    late = Lifecycle(
        "late",
        transitions=[
            ("new", "claim", "busy"),
            ("busy", "advance", "packing"),
            ("busy", "lose", "new"),
            ("packing", "lose", "new"),
            ("packing", "cancel", "gone"),
            ("busy", "fail", "bad"),
            ("packing", "fail", "bad"),
            ("packing", "succeed", "good"),
        ],
    )

    # An idle worker claims nothing while the handler runs; one that still polls could claim the job before other#1.
    idle = asyncio.Event()

    def note_idle(event: Event) -> None:
        if isinstance(event, WorkerStateChanged) and event.target == "Idle":
            idle.set()

    bench.app.events.subscribe(note_idle)

    @bench.app.job(lifecycle=late)
    async def work(run: Run) -> None:
        await idle.wait()
        ask(bench, run.job_id)
        try:
            await for_ever()
        finally:
            bench.clock.advance(31)
            (lease,) = bench.store.leases.adopt("maintenance#1", ["work"], 30.0, 1)
            assert bench.store.transitions.move([decided(lease, Lost(), lifecycle=late)]) == []
            assert len(bench.store.queue.claim("other#1", work.spec.claim_rules(1), ["default"], 1)) == 1

    job = bench.run_one(work)
    last = bench.last(job)
    assert (last.attempt, last.holder, last.lease_owner, last.status) == (2, 1, "other#1", "IN_PROGRESS")


# ---------------------------------------------------------------- max_runtime and expired leases
def test_handler_that_exceeds_max_runtime_is_stopped_and_retried(bench: Bench) -> None:
    """The stored error names the limit."""

    @bench.app.job(max_runtime=5, backoff=AT_ONCE, tries=2)
    async def work(run: Run) -> str:
        if run.attempt == 1:
            bench.clock.advance(6)
            await for_ever()
        return "quick"

    job = bench.run_one(work)
    assert (job.state, job.attempt, job.tries_left) == ("SUCCEEDED", 2, 1)
    assert "it ran longer than its kind's max_runtime of 5 s" in (bench.app.executions(job.id)[0].error or "")


def test_run_methods_of_a_sync_handler_raise_after_max_runtime(bench: Bench) -> None:
    """A thread cannot be stopped, so every method of its run raises `LeaseLost`."""
    heard: list[str] = []

    @bench.app.job(max_runtime=5, tries=1)
    def work(run: SyncRun) -> None:
        bench.clock.advance(6)
        while not run.cancelled:
            pass
        try:
            run.step("a", dict)
        except LeaseLost as error:
            heard.append(str(error))
            raise

    job = bench.run_one(work)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "it ran longer than its kind's max_runtime" in heard[0]


def test_frozen_worker_stops_its_handlers_before_their_leases_expire(bench: Bench) -> None:
    """The worker stops trusting the lease by its own clock. No other worker took the job, so it returns it with all
    tries.
    """
    stopped: list[bool] = []

    @bench.app.job()
    async def work(run: Run) -> Any:
        if run.attempt == 1:
            bench.clock.advance(29.5)
            try:
                await for_ever()
            finally:
                stopped.append(run.cancelled)

    job = bench.run_one(work)
    assert (job.state, job.attempt, job.tries_left, stopped) == ("SUCCEEDED", 2, 3, [True])


def test_cancel_request_after_the_commit_is_ignored_and_finish_runs(bench: Bench) -> None:
    finished: list[int] = []

    @bench.app.job()
    async def work(run: Run) -> int:
        bench.app.cancel(run.job_id, by="anna")
        bench.worker.heartbeat()
        return 7

    @work.commit
    def commit(tx: Tx, job: Any, value: int) -> None:
        """Something to commit."""

    @work.finish
    async def finish(run: Run, value: int) -> None:
        bench.worker.heartbeat()
        await asyncio.sleep(0)
        assert not run.cancelled
        finished.append(value)

    job = bench.run_one(work)
    assert (job.state, finished) == ("SUCCEEDED", [7])
    assert bench.last(job).error is None
