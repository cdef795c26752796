"""Stages, progress and measures of a handler, with the example lifecycles of the documentation."""

from typing import Any

import pytest

from interlock import (
    External,
    Fail,
    Reject,
    Run,
    SyncRun,
    TransitionRefused,
)
from interlock.telemetry.events import Measured
from tests.loops.handler_bench import DELIVERY, DOWNLOAD, IMAGE, STEADY, Bench
from tests.loops.test_handlers import raising


# ---------------------------------------------------------------- stages
def test_each_stage_is_in_the_audit(bench: Bench) -> None:
    """Advancing to the current stage adds no transition."""

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> str:
        await run.advance("DOWNLOADING")
        await run.advance("STREAMING")
        return bench.app.get(run.job_id).state

    job = bench.run_one(deliver)
    assert job.result == "STREAMING"
    assert bench.walk(job) == ["claim CLAIMED", "start DOWNLOADING", "advance STREAMING", "succeed DELIVERED"]


def test_sync_handler_can_advance(bench: Bench) -> None:
    """The methods are the same, without await."""

    @bench.app.job(lifecycle=DELIVERY)
    def deliver(run: SyncRun) -> None:
        run.advance("STREAMING")

    assert bench.run_one(deliver).state == "DELIVERED"


@pytest.mark.parametrize("caught", [True, False])
def test_advance_to_a_stage_that_is_not_allowed_is_refused(bench: Bench, caught: bool) -> None:
    """The handler may catch the error and continue. Otherwise the job fails with it."""

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> None:
        try:
            await run.advance("DELIVERED")
        except TransitionRefused:
            if not caught:
                raise
            await run.advance("STREAMING")

    job = bench.run_one(deliver)
    assert job.state == ("DELIVERED" if caught else "FAILED")
    if not caught:
        assert "advances to STREAMING, not to DELIVERED" in (job.last_error or "")
        assert job.attempt == 1


def test_handler_that_returns_in_a_state_without_succeed_fails_the_job(bench: Bench) -> None:
    """The commit function does not run. The error says from which state the job can succeed."""
    committed: list[str] = []

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> int:
        return 1

    @deliver.commit
    def record(tx: Any, job: Any, value: int) -> None:
        committed.append("committed")

    job = bench.run_one(deliver)
    assert (job.state, committed) == ("FAILED", [])
    assert "The handler returned in DOWNLOADING, but the lifecycle delivery allows `succeed` only from STREAMING" in (
        job.last_error or ""
    )


# ---------------------------------------------------------------- progress and measures
@pytest.mark.parametrize("ends_well", [True, False])
def test_progress_and_measures_of_a_short_job_are_stored(bench: Bench, ends_well: bool) -> None:
    """The job ends before its first heartbeat, so they are stored with its last transition."""

    @bench.app.job()
    async def work(run: Run) -> None:
        run.progress(1, 4, "one")
        run.progress(3, 4, "three")
        run.measure("pages", 2)
        run.measure("pages", 3)
        run.measure("seconds", 0.5)
        if not ends_well:
            raise Fail("paper is out")

    job = bench.run_one(work)
    last = bench.last(job)
    assert last.progress == (3, 4, "three")
    assert last.usage == {"pages": 5, "seconds": 0.5}
    assert [(event.name, event.value) for event in bench.heard(Measured)] == [
        ("pages", 2),
        ("pages", 3),
        ("seconds", 0.5),
    ]


# ---------------------------------------------------------------- the example lifecycles
def test_failed_image_rests_and_is_buried_after_its_last_try(bench: Bench) -> None:
    """It rests in `failed`, a claim makes both transitions to `running`, and it ends in `dead_letter`."""
    job = bench.run_one(raising(bench, ValueError("no gpu"), lifecycle=IMAGE, tries=2))
    assert (job.state, job.phase, bench.wait_of(job)) == ("failed", "pending", 10)
    job = bench.again(job, 10)
    assert (job.state, job.phase) == ("dead_letter", "failed")
    assert bench.walk(job) == [
        "claim running",
        "fail failed",
        "retry queued",
        "claim running",
        "fail failed",
        "bury dead_letter",
    ]


def test_image_completes_or_is_rejected(bench: Bench) -> None:
    """These are its other two final states."""

    @bench.app.job(lifecycle=IMAGE)
    async def paint(run: Run, safe: bool) -> str:
        if not safe:
            raise Reject("unsafe prompt")
        return "image.png"

    assert bench.run_one(paint, True).state == "completed"
    assert bench.run_one(paint, False).state == "rejected"


def test_delivery_is_retried_from_any_stage(bench: Bench) -> None:
    """It returns to its queue and starts again."""
    tried: list[int] = []

    @bench.app.job(lifecycle=DELIVERY, backoff=STEADY)
    async def deliver(run: Run) -> None:
        tried.append(run.attempt)
        await run.advance("STREAMING")
        if run.attempt == 1:
            raise ConnectionResetError("the user's phone is off")

    job = bench.again(bench.run_one(deliver), 10)
    assert (job.state, tried) == ("DELIVERED", [1, 2])
    assert "retry QUEUED" in bench.walk(job)


def test_download_by_its_own_handler_takes_each_transition(bench: Bench) -> None:
    """It starts and completes. An error fails it, because `downloading` allows no retry."""

    @bench.app.job(lifecycle=DOWNLOAD)
    async def fetch(run: Run, good: bool) -> None:
        if not good:
            raise TimeoutError("slow")

    assert bench.walk(bench.run_one(fetch, True)) == ["start downloading", "succeed completed"]
    assert bench.walk(bench.run_one(fetch, False)) == ["start downloading", "fail failed"]


def test_handed_over_download_stays_queued_until_its_reconciler_sees_it_start(bench: Bench) -> None:
    """An error before the handover leaves it queued. After the handover no worker has a lease on it."""
    fails = [TimeoutError("slow")]

    @bench.app.job(lifecycle=DOWNLOAD, backoff=STEADY)
    async def fetch(run: Run) -> External[str]:
        if fails:
            raise fails.pop()
        return External("hash-1")

    @fetch.reconcile(every=15)
    async def ask(ids: Any) -> Any:
        return {}

    job = bench.run_one(fetch)
    assert (job.state, job.phase, bench.wait_of(job)) == ("queued", "pending", 10)
    job = bench.again(job, 10)
    last = bench.last(job)
    assert (job.state, job.phase, last.status, last.external_id, last.lease_owner) == (
        "queued",
        "running",
        "IN_PROGRESS",
        "hash-1",
        "external:fetch",
    )
    assert bench.walk(job) == []
