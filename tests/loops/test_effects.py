"""Effects: which calls are recorded, and what happens if it is unknown whether a call happened."""

import asyncio
from typing import Any

import pytest

from interlock import Fail, Job, NotApplied, Run, SyncRun
from interlock.core.outcome import Lost
from interlock.store.types import Lease
from interlock.testing import Failpoint
from tests.contract.kit import decided
from tests.loops.handler_bench import AT_ONCE, Bench


class ExternalWork:
    """A fake external system that records its calls and raises the errors that a test sets."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.errors: list[BaseException | None] = []

    def __call__(self, *args: Any) -> str:
        self.calls.append(args)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return f"receipt-{len(self.calls)}"


@pytest.fixture
def outside() -> ExternalWork:
    return ExternalWork()


def sending(
    bench: Bench,
    outside: ExternalWork,
    on_doubt: Any = "retry",
    *,
    then: BaseException | None = None,
    is_async: bool = True,
) -> Any:
    """Declare a kind that makes one external call; its first attempt then raises `then`."""
    keys: list[str] = []

    @bench.app.job(kind="send", backoff=AT_ONCE)
    async def send(run: Run) -> Any:
        effect = run.effect("send", on_doubt=on_doubt)
        keys.append(effect.key)
        value = await effect(outside)
        if then is not None and run.attempt == 1:
            raise then
        return [value, *sorted(set(keys))] if is_async else value

    @bench.app.job(kind="send_sync", backoff=AT_ONCE)
    def send_sync(run: SyncRun) -> Any:
        value = run.effect("send", on_doubt=on_doubt)(outside)
        if then is not None and run.attempt == 1:
            raise then
        return value

    return send if is_async else send_sync


# ---------------------------------------------------------------- recorded calls
@pytest.mark.parametrize("is_async", [True, False])
def test_applied_effect_is_never_called_again(bench: Bench, outside: ExternalWork, is_async: bool) -> None:
    """The next attempt returns the stored result."""
    job = bench.run_one(sending(bench, outside, then=ValueError("after it"), is_async=is_async))
    assert (job.state, job.attempt, len(outside.calls)) == ("SUCCEEDED", 2, 1)
    assert (job.result[0] if is_async else job.result) == "receipt-1"


def test_effect_has_the_same_key_in_every_attempt(bench: Bench, outside: ExternalWork) -> None:
    """The key consists of the job id and the effect's name, so that the external system can detect duplicates."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside))
    assert job.attempt == 2
    assert job.result == ["receipt-2", f"{job.id}:send"]


def test_effect_is_recorded_before_the_call(bench: Bench) -> None:
    """A crash during the call therefore leaves a doubt."""
    found: list[Any] = []

    @bench.app.job()
    async def work(run: Run) -> None:
        def look() -> None:
            found.extend(bench.store.receipts.for_job(run.job_id))

        await run.effect("look", on_doubt="retry")(look)

    job = bench.run_one(work)
    assert [(each.name, each.applied) for each in found] == [("look", False)]
    receipt = bench.receipt(job, "look")
    assert receipt is not None
    assert (receipt.applied, receipt.decided_by, receipt.kind) == (True, "worker", "effect")


# ---------------------------------------------------------------- doubt
def test_doubt_with_retry_calls_again(bench: Bench, outside: ExternalWork) -> None:
    """The call happens at least once."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "retry"))
    assert (job.state, len(outside.calls)) == ("SUCCEEDED", 2)


@pytest.mark.parametrize("is_async", [True, False])
def test_doubt_with_skip_never_calls_again_and_returns_none(
    bench: Bench, outside: ExternalWork, is_async: bool
) -> None:
    """The call happens at most once."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "skip", is_async=is_async))
    assert (job.state, len(outside.calls), job.result[0] if is_async else job.result) == ("SUCCEEDED", 1, None)
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert receipt.decided_by == "skip"


@pytest.mark.parametrize("is_async", [True, False])
def test_doubt_with_hold_holds_the_job_for_an_operator(bench: Bench, outside: ExternalWork, is_async: bool) -> None:
    """The job waits until an operator decides. The hold costs no try."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "hold", is_async=is_async))
    assert (job.phase, job.tries_left, len(outside.calls)) == ("pending", 2, 1)
    assert "It is unknown whether 'send' happened in attempt 1" in (job.held_reason or "")
    assert bench.again(job, 3600).attempt == job.attempt


@pytest.mark.parametrize("truth", ["found-it", None])
def test_doubt_with_a_lookup_function_is_resolved_by_its_key(
    bench: Bench, outside: ExternalWork, truth: str | None
) -> None:
    """If the lookup finds the call, its result is the receipt. If it finds nothing, the call is made."""
    asked: list[str] = []
    outside.errors = [TimeoutError("slow")]

    async def look_up(key: str) -> str | None:
        asked.append(key)
        return truth

    job = bench.run_one(sending(bench, outside, look_up))
    assert asked == [f"{job.id}:send"]
    assert (job.result[0], len(outside.calls)) == (("found-it", 1) if truth else ("receipt-2", 2))
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert receipt.decided_by == ("lookup" if truth else "worker")


def test_lookup_function_needs_an_async_handler(bench: Bench, outside: ExternalWork) -> None:
    """In a sync handler the job fails with a clear error."""

    async def look_up(key: str) -> None: ...

    job = bench.run_one(sending(bench, outside, look_up, is_async=False))
    assert "has a lookup function, which only an async handler can use" in (job.last_error or "")
    assert (job.state, outside.calls) == ("FAILED", [])


def test_invalid_on_doubt_fails_the_job(bench: Bench, outside: ExternalWork) -> None:
    """The external system is not called."""
    job = bench.run_one(sending(bench, outside, "maybe"))
    assert "on_doubt is 'maybe'. Set it to one of retry, hold, skip" in (job.last_error or "")
    assert outside.calls == []


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


@pytest.mark.parametrize(
    "error", [NotApplied("never sent"), ConnectionRefusedError("refused"), HttpError(429)], ids=repr
)
def test_error_that_proves_the_call_did_not_happen_removes_the_doubt(
    bench: Bench, outside: ExternalWork, error: Exception
) -> None:
    """Even with `skip`, the next attempt calls again."""
    outside.errors = [error]
    job = bench.run_one(sending(bench, outside, "skip"))
    assert (job.state, job.result[0], len(outside.calls)) == ("SUCCEEDED", "receipt-2", 2)


def test_refused_request_leaves_no_doubt(bench: Bench, outside: ExternalWork) -> None:
    """HTTP 403 fails the job, and no receipt is stored."""
    outside.errors = [HttpError(403)]
    job = bench.run_one(sending(bench, outside, "hold"))
    assert (job.state, bench.receipt(job, "send")) == ("FAILED", None)


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("reset"), HttpError(502)], ids=repr)
def test_ambiguous_error_leaves_the_doubt(bench: Bench, outside: ExternalWork, error: Exception) -> None:
    """The call was started, and it is unknown whether it happened."""
    outside.errors = [error]
    job = bench.run_one(sending(bench, outside, "hold"))
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert (receipt.applied, job.held_at is not None) == (False, True)


@pytest.mark.parametrize("point", [Failpoint.BEFORE_COMMIT, Failpoint.IN_PREPARE])
def test_crash_before_or_after_the_call_makes_it_once(bench: Bench, outside: ExternalWork, point: Failpoint) -> None:
    """After the call, the receipt is stored. Before it, no call was recorded."""
    from interlock.testing import Crashed

    id = bench.add(sending(bench, outside, "hold"))
    bench.worker.crash_at(point)
    with pytest.raises(Crashed):
        bench.run()
    bench.clock.advance(31)
    bench.run()
    assert (bench.app.get(id).state, len(outside.calls)) == ("SUCCEEDED", 1)


# ---------------------------------------------------------------- effects and lost leases
def stolen(bench: Bench, id: str) -> None:
    """Let the lease expire; another worker adopts the job and returns it to the queue."""
    bench.clock.advance(31)
    (lease,) = bench.store.leases.adopt("thief#1", [bench.app.get(id).kind], 30.0, 1)
    assert bench.store.transitions.move([decided(lease, Lost())]) == []


@pytest.mark.parametrize("is_async", [True, False])
def test_receipt_is_stored_even_if_the_lease_was_lost_during_the_call(bench: Bench, is_async: bool) -> None:
    """The next attempt does not call again."""
    calls, thefts = list[int](), list[Lease]()

    def pay(id: str) -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            bench.clock.advance(31)
            thefts.extend(bench.store.leases.adopt("thief#1", [bench.app.get(id).kind], 30.0, 1))
            if not is_async:
                # A thread continues although it was told to stop.
                bench.worker.heartbeat()
        return f"paid-{len(calls)}"

    async def pay_in_the_loop(id: str) -> str:
        # Blocks the event loop, so that no request to stop arrives before the call has returned.
        return pay(id)

    @bench.app.job()
    async def work(run: Run) -> str:
        return await run.effect("pay", on_doubt="hold")(pay_in_the_loop, run.job_id)

    @bench.app.job()
    def work_sync(run: SyncRun) -> str:
        return run.effect("pay", on_doubt="hold")(pay, run.job_id)

    id = bench.run_one(work if is_async else work_sync).id
    # The adopter settles only now: an attempt that ran before the receipt was stored would correctly find a doubt.
    assert [receipt.applied for receipt in bench.store.receipts.for_job(id)] == [True]
    assert bench.store.transitions.move([decided(thefts[0], Lost())]) == []
    bench.run()
    job = bench.app.get(id)
    assert (job.state, job.attempt, job.result, len(calls)) == ("SUCCEEDED", 2, "paid-1", 1)


def test_call_that_is_cancelled_midway_leaves_a_doubt(bench: Bench) -> None:
    """The external system may have acted, so the job is held for an operator and the call is not repeated."""
    calls: list[int] = []

    async def pay(id: str) -> str:
        calls.append(1)
        await asyncio.to_thread(stolen, bench, id)
        bench.worker.heartbeat()
        return await asyncio.Event().wait() and "never"

    @bench.app.job()
    async def work(run: Run) -> str:
        return await run.effect("pay", on_doubt="hold")(pay, run.job_id)

    job = bench.run_one(work)
    assert (job.attempt, job.held_at is not None, len(calls)) == (2, True, 1)


def test_no_call_is_made_after_the_lease_is_lost(bench: Bench, outside: ExternalWork) -> None:
    """The record before the call is fenced like a transition, so a stale worker does not call the external system."""

    @bench.app.job()
    async def work(run: Run) -> str:
        if run.attempt == 1:
            await asyncio.to_thread(stolen, bench, run.job_id)
        return await run.effect("pay", on_doubt="retry")(outside)

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("SUCCEEDED", 2, 1)


def test_call_with_an_unstorable_result_still_has_a_receipt(bench: Bench) -> None:
    """The job fails, and a redrive does not call again."""
    calls: list[int] = []

    def pay() -> Any:
        calls.append(1)
        return object()

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.effect("pay", on_doubt="hold")(pay)

    job = bench.run_one(work)
    receipt = bench.receipt(job, "pay")
    assert receipt is not None
    assert (job.state, receipt.applied) == ("FAILED", True)
    again = bench.app.redrive(job.id, by="ann")
    bench.run()
    assert (bench.app.get(again.id).state, len(calls)) == ("SUCCEEDED", 1)


def test_steps_and_effects_belong_to_their_job(bench: Bench, outside: ExternalWork) -> None:
    """Another job of the same kind has its own steps and effects."""

    @bench.app.job()
    async def work(run: Run) -> list[str]:
        return [await run.step("a", outside), await run.effect("b", on_doubt="retry")(outside)]

    assert bench.run_one(work).result == ["receipt-1", "receipt-2"]
    assert bench.run_one(work).result == ["receipt-3", "receipt-4"]


def test_finish_can_use_effects(bench: Bench, outside: ExternalWork) -> None:
    """A retry of finish does not repeat the call."""

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> None:
        await run.effect("charge", on_doubt="hold")(outside)

    failures = [ValueError("after the mail")]

    @work.finish
    async def tell(run: Run, value: None) -> None:
        await run.effect("mail", on_doubt="hold")(outside)
        if failures:
            raise failures.pop()

    job: Job = bench.run_one(work)
    assert (job.state, len(outside.calls)) == ("SUCCEEDED", 2)


def test_error_after_an_effect_keeps_its_receipt(bench: Bench, outside: ExternalWork) -> None:
    """The job fails with the handler's error, and the call stays recorded."""
    job = bench.run_one(sending(bench, outside, then=Fail("no")))
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert (job.state, receipt.applied, receipt.value) == ("FAILED", True, '"receipt-1"')
