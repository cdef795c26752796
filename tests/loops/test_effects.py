"""Steps and outside calls: what is remembered, and what is done in doubt."""

import asyncio
from datetime import date
from typing import Any

import pydantic
import pytest

from interlock import Fail, Job, NotApplied, Retry, Run, SyncRun
from interlock.effect import aged
from interlock.outcome import Lost
from interlock.records import Lease
from interlock.testing import Point
from tests.contract.kit import decided
from tests.loops.bench import AT_ONCE, Bench


class Link(pydantic.BaseModel):
    url: str
    until: date


class Outside:
    """The outside: it counts its calls, and each may be told to go wrong."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.errors: list[BaseException | None] = []

    def __call__(self, *args: Any) -> str:
        self.calls.append(args)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return f"receipt-{len(self.calls)}"


@pytest.fixture
def outside() -> Outside:
    return Outside()


def called(outside: Outside, *args: Any) -> str:
    return outside(*args)


def sending(bench: Bench, outside: Outside, on_doubt: Any = "retry", *, then: BaseException | None = None, is_async: bool = True) -> Any:
    """A kind that makes one outside call, and at its first attempts raises `then`."""
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


# ---------------------------------------------------------------- steps
@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_is_remembered_across_attempts(bench: Bench, outside: Outside, is_async: bool) -> None:
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


def test_a_step_that_raised_is_not_remembered(bench: Bench, outside: Outside) -> None:
    """It is made again."""
    outside.errors = [TimeoutError("slow")]

    @bench.app.job(backoff=AT_ONCE)
    async def work(run: Run) -> str:
        return await run.step("link", outside)

    assert bench.run_one(work).result == "receipt-2"


def test_an_aged_step_is_taken_afresh_once_it_is_too_old(bench: Bench, outside: Outside) -> None:
    """By the store's clock: at 300 s it still holds, after that it does not."""

    @bench.app.job(tries=5)
    async def work(run: Run) -> str:
        value = await run.step(aged("link", 300), outside)
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


def test_an_aged_step_may_be_taken_afresh_with_other_arguments(bench: Bench, outside: Outside) -> None:
    """What is too old to be used is too old to complain about."""

    @bench.app.job()
    async def work(run: Run) -> str:
        value = await run.step(aged("link", 10), outside, run.attempt)
        if run.attempt == 1:
            raise Retry("later", after=20)
        return value

    assert bench.again(bench.run_one(work), 20).result == "receipt-2"


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_a_name_used_twice_in_one_attempt_fails_the_job(bench: Bench, outside: Outside, verb: str) -> None:
    """With a sentence that names it; the second call is not made."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await run.step("link", outside)
        await (run.step("link", outside) if verb == "step" else run.effect("link", on_doubt="retry")(outside))

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("FAILED", 1, 1)
    assert "'link' is used twice in one attempt" in (job.last_error or "")


@pytest.mark.parametrize("verb", ["step", "effect"])
def test_other_arguments_than_before_fail_the_job(bench: Bench, outside: Outside, verb: str) -> None:
    """Its receipt does not speak of this call."""

    @bench.app.job()
    async def work(run: Run) -> None:
        await (run.step("it", outside, run.attempt) if verb == "step" else run.effect("it", on_doubt="retry")(outside, run.attempt))
        raise Retry("later", after=0)

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("FAILED", 2, 1)
    assert f"The {verb} 'it' is called with other arguments than in an earlier attempt" in (job.last_error or "")


def test_a_name_kept_as_a_step_cannot_become_an_effect(bench: Bench, outside: Outside) -> None:
    """Neither can speak for the other."""

    @bench.app.job()
    async def work(run: Run) -> None:
        if run.attempt == 1:
            await run.step("it", outside)
            raise Retry("later", after=0)
        await run.effect("it", on_doubt="retry")(outside)

    job = bench.run_one(work)
    assert "'it' was kept as step by an earlier attempt and is used as effect now" in (job.last_error or "")


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
    assert "cannot be remembered" in (job.last_error or "")


def test_an_async_step_of_a_sync_handler_is_refused(bench: Bench) -> None:
    """With a sentence, not with a coroutine that nobody awaited."""

    async def later() -> int:
        return 1

    @bench.app.job()
    def work(run: SyncRun) -> None:
        run.step("later", later)

    assert "later is async, and its handler is not" in (bench.run_one(work).last_error or "")


# ---------------------------------------------------------------- effects: once
@pytest.mark.parametrize("is_async", [True, False])
def test_an_applied_effect_is_never_called_again(bench: Bench, outside: Outside, is_async: bool) -> None:
    """Whatever attempt asks."""
    job = bench.run_one(sending(bench, outside, then=ValueError("after it"), is_async=is_async))
    assert (job.state, job.attempt, len(outside.calls)) == ("SUCCEEDED", 2, 1)
    assert (job.result[0] if is_async else job.result) == "receipt-1"


def test_an_effects_key_is_the_same_in_every_attempt(bench: Bench, outside: Outside) -> None:
    """Made of the job and the effect's name, for the outside to know it by."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside))
    assert job.attempt == 2
    assert job.result == ["receipt-2", f"{job.id}:send"]


def test_what_was_asked_is_written_before_the_call(bench: Bench) -> None:
    """So that a crash in the call leaves a doubt, not nothing."""
    found: list[Any] = []

    @bench.app.job()
    async def work(run: Run) -> None:
        def look() -> None:
            found.extend(bench.store.receipts(run.job_id))

        await run.effect("look", on_doubt="retry")(look)

    job = bench.run_one(work)
    assert [(each.name, each.applied) for each in found] == [("look", False)]
    receipt = bench.receipt(job, "look")
    assert receipt is not None
    assert (receipt.applied, receipt.decided_by, receipt.kind) == (True, "worker", "effect")


# ---------------------------------------------------------------- effects: doubt
def test_doubt_with_retry_calls_again(bench: Bench, outside: Outside) -> None:
    """At least once."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "retry"))
    assert (job.state, len(outside.calls)) == ("SUCCEEDED", 2)


@pytest.mark.parametrize("is_async", [True, False])
def test_doubt_with_skip_never_calls_again_and_gives_none(bench: Bench, outside: Outside, is_async: bool) -> None:
    """At most once."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "skip", is_async=is_async))
    assert (job.state, len(outside.calls), job.result[0] if is_async else job.result) == ("SUCCEEDED", 1, None)
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert receipt.decided_by == "skip"


@pytest.mark.parametrize("is_async", [True, False])
def test_doubt_with_hold_asks_an_operator(bench: Bench, outside: Outside, is_async: bool) -> None:
    """The job waits, held, until someone decides; no try is spent by the hold."""
    outside.errors = [TimeoutError("slow")]
    job = bench.run_one(sending(bench, outside, "hold", is_async=is_async))
    assert (job.phase, job.tries_left, len(outside.calls)) == ("pending", 2, 1)
    assert "nobody knows whether 'send' happened at attempt 1" in (job.held_reason or "")
    assert bench.again(job, 3600).attempt == job.attempt


@pytest.mark.parametrize("truth", ["found-it", None])
def test_doubt_with_a_lookup_asks_for_the_truth_by_its_key(bench: Bench, outside: Outside, truth: str | None) -> None:
    """What it finds is the receipt; if it finds nothing, the call is made."""
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


def test_a_lookup_needs_an_async_handler(bench: Bench, outside: Outside) -> None:
    """And `on_doubt` one of the words it knows: both fail the job with a sentence."""

    async def look_up(key: str) -> None: ...

    job = bench.run_one(sending(bench, outside, look_up, is_async=False))
    assert "would look the truth up, which only an async handler can" in (job.last_error or "")
    assert (job.state, outside.calls) == ("FAILED", [])


def test_a_doubt_that_is_none_of_the_words_fails_the_job(bench: Bench, outside: Outside) -> None:
    """Nothing is called."""
    job = bench.run_one(sending(bench, outside, "maybe"))
    assert "on_doubt is 'maybe': give one of retry, hold, skip" in (job.last_error or "")
    assert outside.calls == []


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


@pytest.mark.parametrize("error", [NotApplied("never sent"), ConnectionRefusedError("refused"), HttpError(429)], ids=repr)
def test_an_error_that_proves_it_did_not_happen_removes_the_doubt(bench: Bench, outside: Outside, error: Exception) -> None:
    """Even `skip` then calls again: there is nothing to skip."""
    outside.errors = [error]
    job = bench.run_one(sending(bench, outside, "skip"))
    assert (job.state, job.result[0], len(outside.calls)) == ("SUCCEEDED", "receipt-2", 2)


def test_a_refused_request_leaves_no_doubt_behind_the_failed_job(bench: Bench, outside: Outside) -> None:
    """HTTP 403 fails the job, and nobody wonders what happened."""
    outside.errors = [HttpError(403)]
    job = bench.run_one(sending(bench, outside, "hold"))
    assert (job.state, bench.receipt(job, "send")) == ("FAILED", None)


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("reset"), HttpError(502)], ids=repr)
def test_an_error_that_proves_nothing_leaves_the_doubt(bench: Bench, outside: Outside, error: Exception) -> None:
    """It was asked for, and nobody knows."""
    outside.errors = [error]
    job = bench.run_one(sending(bench, outside, "hold"))
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert (receipt.applied, job.held_at is not None) == (False, True)


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.IN_PREPARE])
def test_a_crash_keeps_what_is_known(bench: Bench, outside: Outside, point: Point) -> None:
    """After the call its receipt is there; before it nothing was asked."""
    from interlock.testing import Crashed

    id = bench.add(sending(bench, outside, "hold"))
    bench.worker.crash_at(point)
    with pytest.raises(Crashed):
        bench.run()
    bench.clock.advance(31)
    bench.run()
    assert (bench.app.get(id).state, len(outside.calls)) == ("SUCCEEDED", 1)


# ---------------------------------------------------------------- effects: true knowledge is never refused
def stolen(bench: Bench, id: str) -> None:
    """Time stands still for this worker, and another takes its job and gives it back to the queue."""
    bench.clock.advance(31)
    (lease,) = bench.store.adopt("thief#1", [bench.app.get(id).kind], 30.0, 1)
    assert bench.store.move([decided(lease, Lost())]) == []


@pytest.mark.parametrize("is_async", [True, False])
def test_a_receipt_is_written_although_the_lease_ended_meanwhile(bench: Bench, is_async: bool) -> None:
    """The next attempt does not call again."""
    calls, thefts = list[int](), list[Lease]()

    def pay(id: str) -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            bench.clock.advance(31)
            thefts.extend(bench.store.adopt("thief#1", [bench.app.get(id).kind], 30.0, 1))
            if not is_async:
                # A thread goes on although it was told to stop.
                bench.worker.beat()
        return f"paid-{len(calls)}"

    @bench.app.job()
    async def work(run: Run) -> str:
        return await run.effect("pay", on_doubt="hold")(pay, run.job_id)

    @bench.app.job()
    def work_sync(run: SyncRun) -> str:
        return run.effect("pay", on_doubt="hold")(pay, run.job_id)

    id = bench.run_one(work if is_async else work_sync).id
    # Not before: whoever runs the job meanwhile finds a doubt, and is right.
    assert [receipt.applied for receipt in bench.store.receipts(id)] == [True]
    assert bench.store.move([decided(thefts[0], Lost())]) == []
    bench.run()
    job = bench.app.get(id)
    assert (job.state, job.attempt, job.result, len(calls)) == ("SUCCEEDED", 2, "paid-1", 1)


def test_a_call_that_is_cancelled_in_the_middle_leaves_its_doubt(bench: Bench) -> None:
    """The outside may have done it: an operator is asked, and nothing is called again unasked."""
    calls: list[int] = []

    async def pay(id: str) -> str:
        calls.append(1)
        await asyncio.to_thread(stolen, bench, id)
        bench.worker.beat()
        return await asyncio.Event().wait() and "never"

    @bench.app.job()
    async def work(run: Run) -> str:
        return await run.effect("pay", on_doubt="hold")(pay, run.job_id)

    job = bench.run_one(work)
    assert (job.attempt, job.held_at is not None, len(calls)) == (2, True, 1)


def test_nothing_is_asked_once_the_lease_is_lost(bench: Bench, outside: Outside) -> None:
    """Writing `asked` is fenced as a move is, so the outside is not called by a loser."""

    @bench.app.job()
    async def work(run: Run) -> str:
        if run.attempt == 1:
            await asyncio.to_thread(stolen, bench, run.job_id)
        return await run.effect("pay", on_doubt="retry")(outside)

    job = bench.run_one(work)
    assert (job.state, job.attempt, len(outside.calls)) == ("SUCCEEDED", 2, 1)


def test_a_value_that_cannot_be_kept_still_leaves_its_receipt(bench: Bench) -> None:
    """It happened, whatever it answered: the job fails, and a redrive does not call again."""
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


def test_steps_and_effects_belong_to_their_job(bench: Bench, outside: Outside) -> None:
    """Another job of the kind makes its own."""

    @bench.app.job()
    async def work(run: Run) -> list[str]:
        return [await run.step("a", outside), await run.effect("b", on_doubt="retry")(outside)]

    assert bench.run_one(work).result == ["receipt-1", "receipt-2"]
    assert bench.run_one(work).result == ["receipt-3", "receipt-4"]


def test_what_follows_the_commit_may_use_them_too(bench: Bench, outside: Outside) -> None:
    """A finish that is tried again does not send again."""

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


def test_an_error_of_the_handler_after_an_effect_is_its_own(bench: Bench, outside: Outside) -> None:
    """Failing after a call does not undo what is known of it."""
    job = bench.run_one(sending(bench, outside, then=Fail("no")))
    receipt = bench.receipt(job, "send")
    assert receipt is not None
    assert (job.state, receipt.applied, receipt.value) == ("FAILED", True, '"receipt-1"')
