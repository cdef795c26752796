"""Effects in doubt that the next attempt calls with other arguments: no doubt policy applies to another call."""

from typing import Any

import pytest

from interlock import Job, Run, SyncRun
from tests.loops.handler_bench import AT_ONCE, Bench


class Shop:
    """A kind whose first call times out, and whose second attempt passes another amount."""

    def __init__(self, bench: Bench, on_doubt: Any, *, is_async: bool = True) -> None:
        self.bench = bench
        self.calls: list[int] = []

        def pay(cents: int) -> str:
            self.calls.append(cents)
            if len(self.calls) == 1:
                raise TimeoutError("slow")
            return f"paid {cents}"

        @bench.app.job(kind="charge", backoff=AT_ONCE)
        async def charge(run: Run) -> Any:
            return await run.effect("pay", on_doubt=on_doubt)(pay, 100 * run.attempt)

        @bench.app.job(kind="charge_sync", backoff=AT_ONCE)
        def charge_sync(run: SyncRun) -> Any:
            return run.effect("pay", on_doubt=on_doubt)(pay, 100 * run.attempt)

        self.kind: Any = charge if is_async else charge_sync

    def run(self) -> Job:
        return self.bench.run_one(self.kind)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("on_doubt", ["retry", "skip"])
def test_retry_and_skip_policies_fail_the_job_and_keep_the_doubt(bench: Bench, on_doubt: str, is_async: bool) -> None:
    """The new call is neither made under the old key nor skipped."""
    shop = Shop(bench, on_doubt, is_async=is_async)
    job = shop.run()
    assert (job.state, job.attempt, shop.calls) == ("FAILED", 2, [100])
    assert "The effect 'pay' may have happened in attempt 1, and this attempt calls it with other arguments" in (
        job.last_error or ""
    )
    receipt = bench.receipt(job, "pay")
    assert receipt is not None
    assert not receipt.applied


@pytest.mark.parametrize(
    ("found_out", "state", "calls"), [("happened", "FAILED", [100]), ("did_not", "SUCCEEDED", [100, 300])]
)
def test_hold_policy_tells_the_operator_about_the_other_arguments(
    bench: Bench, found_out: Any, state: str, calls: list[int]
) -> None:
    """If the old call did not happen, the new one is made. If it happened, its receipt is for the old arguments."""
    shop = Shop(bench, "hold")
    job = shop.run()
    assert (job.held_at is not None, shop.calls) == (True, [100])
    assert "this attempt calls it with other arguments" in (job.held_reason or "")
    bench.app.release(job.id, by="ann", reason="looked", effect=found_out)
    job = bench.again(job)
    assert (job.state, shop.calls) == (state, calls)


def test_lookup_that_finds_the_old_call_keeps_its_receipt_and_fails_the_job(bench: Bench) -> None:
    """The result of the old call is not returned for the new call, and is not lost."""

    async def look_up(key: str) -> str | None:
        return "paid 100"

    shop = Shop(bench, look_up)
    job = shop.run()
    assert (job.state, shop.calls) == ("FAILED", [100])
    assert "called with other arguments than in an earlier attempt" in (job.last_error or "")
    receipt = bench.receipt(job, "pay")
    assert receipt is not None
    assert (receipt.applied, receipt.value, receipt.decided_by) == (True, '"paid 100"', "lookup")


def test_lookup_that_finds_nothing_makes_the_new_call(bench: Bench) -> None:
    async def look_up(key: str) -> str | None:
        return None

    shop = Shop(bench, look_up)
    job = shop.run()
    assert (job.state, job.result, shop.calls) == ("SUCCEEDED", "paid 200", [100, 200])
