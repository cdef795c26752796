"""The testing kit's crashes and lost leases."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock import App, Job, Run, Unavailable, UsageError
from interlock.testing import Crashed, Failpoint, KitClock, KitWorker, fresh
from tests.loops.handler_bench import Bench


# ---------------------------------------------------------------- crashes
def kinds(bench: Bench) -> Any:
    """Declare a kind with all its functions; return it with the list of calls."""
    seen: list[str] = []

    @bench.app.job()
    async def work(run: Run) -> int:
        seen.append("prepare")
        return 1

    @work.guard
    def guard(job: Job) -> None:
        seen.append("guard")

    @work.commit
    def commit(tx: Any, job: Job, value: int) -> None:
        seen.append("commit")

    @work.finish
    async def finish(run: Run, value: int) -> None:
        seen.append("finish")

    return work, seen


@pytest.mark.parametrize(
    ("point", "status", "done"),
    [
        (Failpoint.AFTER_CLAIM, "LEASED", []),
        (Failpoint.IN_PREPARE, "IN_PROGRESS", ["guard"]),
        (Failpoint.BEFORE_COMMIT, "IN_PROGRESS", ["guard", "prepare"]),
        (Failpoint.IN_COMMIT, "IN_PROGRESS", ["guard", "prepare", "commit"]),
        (Failpoint.AFTER_COMMIT, "COMMITTED", ["guard", "prepare", "commit"]),
        (Failpoint.IN_FINISH, "COMMITTED", ["guard", "prepare", "commit"]),
    ],
)
def test_simulated_crash_leaves_the_database_as_a_kill_would(
    bench: Bench, point: Failpoint, status: str, done: list[str]
) -> None:
    """At every failpoint the execution keeps its status and its lease, and the worker stays in the workers table."""
    work, seen = kinds(bench)
    id = bench.add(work)
    bench.worker.crash_at(point, kind="work")
    with pytest.raises(Crashed, match=f"died at {point.name}, with job {id}, attempt 1"):
        bench.run()
    (execution,) = bench.app.executions(id)
    assert (execution.status, execution.holder, seen) == (status, 1, done)
    assert len(bench.store.workers.all()) == 1
    assert bench.run() == 0
    bench.clock.advance(31)
    bench.run()
    assert bench.app.get(id).phase == "succeeded"
    assert seen.count("finish") == 1


def test_crashed_process_cannot_write(bench: Bench) -> None:
    """A handler's `finally` block, its run and the app are refused. The app works again after the run."""
    refused: list[str] = []

    @bench.app.job(kind="bystander")
    async def bystander(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for verb in (bystander.enqueue, lambda: bench.app.get(run.job_id)):
                with pytest.raises(UsageError):
                    verb()
                refused.append("app")
            with pytest.raises((Crashed, asyncio.CancelledError)):
                await run.step("late", dict)

    @bench.app.job(kind="deadly")
    async def deadly(run: Run) -> None: ...

    first, second = bench.add(bystander), bench.add(deadly)
    bench.worker.crash_at(Failpoint.BEFORE_COMMIT, kind="deadly")
    with pytest.raises(Crashed):
        bench.run()
    assert refused == ["app", "app"]
    assert {job.id: job.phase for job in bench.app.jobs()} == {first: "running", second: "running"}
    assert bench.store.receipts.for_job(first) == []


def test_planned_crash_happens_once_and_only_for_the_named_kind(bench: Bench) -> None:
    """Jobs of other kinds run normally."""

    @bench.app.job()
    async def one(run: Run) -> None: ...

    @bench.app.job()
    async def two(run: Run) -> None: ...

    bench.worker.crash_at(Failpoint.AFTER_CLAIM, kind="two")
    assert bench.run_one(one).phase == "succeeded"
    assert bench.worker.unmet() == ["crash_at(Failpoint.AFTER_CLAIM)"]
    bench.add(two)
    with pytest.raises(Crashed):
        bench.run()
    assert bench.worker.unmet() == []
    with pytest.raises(UsageError, match="This app has no kind 'three': give one of one, two"):
        bench.worker.crash_at(Failpoint.AFTER_CLAIM, kind="three")


def test_crash_is_not_an_unreachable_database() -> None:
    """A worker waits until an unreachable database is back. It must not wait after a crash."""
    assert not issubclass(Crashed, Unavailable)


# ---------------------------------------------------------------- lost leases
@pytest.mark.parametrize("point", [Failpoint.AFTER_CLAIM, Failpoint.IN_PREPARE, Failpoint.BEFORE_COMMIT])
def test_lease_lost_before_the_commit_costs_a_try(bench: Bench, point: Failpoint) -> None:
    """The first attempt stores nothing, and the second succeeds."""
    work, seen = kinds(bench)
    bench.worker.lose_lease(point)
    job = bench.run_one(work)
    assert (job.phase, job.attempt, job.tries_left, job.lease_losses) == ("succeeded", 2, 2, 1)
    assert (seen.count("commit"), seen.count("finish")) == (1, 1)


@pytest.mark.parametrize("point", [Failpoint.AFTER_COMMIT, Failpoint.IN_FINISH])
def test_lease_lost_after_the_commit_belongs_to_another_worker_until_it_expires(bench: Bench, point: Failpoint) -> None:
    """Then the job is finished, and neither handler nor commit is repeated."""
    work, seen = kinds(bench)
    bench.worker.lose_lease(point)
    job = bench.run_one(work)
    assert (job.phase, bench.last(job).lease_owner) == ("running", "another#worker")
    job = bench.again(job, 31)
    assert (job.phase, job.attempt, seen.count("prepare"), seen.count("commit")) == ("succeeded", 1, 1, 1)


def test_worker_still_trusts_its_claims_after_a_lost_lease(bench: Bench) -> None:
    """A claim may be on its way while the clock moves. If the worker distrusted it, the job would be claimed again."""
    trusted: list[float] = []

    @bench.app.job()
    async def work(run: Run) -> None:
        trusted.append(bench.worker.sleeper.monotonic())

    id = bench.add(work)
    begun, clock = bench.worker.sleeper.monotonic(), bench.clock.now()
    bench.worker.lose_lease()
    bench.run()
    job = bench.app.get(id)
    assert (job.phase, job.attempt, job.lease_losses) == ("succeeded", 2, 1)
    assert trusted == [begun, begun]
    assert (bench.clock.now() - clock).total_seconds() > 30


def test_lose_lease_inside_a_commit_is_refused(bench: Bench) -> None:
    """The row is locked there, so such a test is wrong."""
    with pytest.raises(UsageError, match="No lease is lost at IN_COMMIT"):
        bench.worker.lose_lease(Failpoint.IN_COMMIT)


def test_heartbeat_is_refused_if_no_worker_runs(bench: Bench) -> None:
    """It is refused before and after a run, and works during it."""

    @bench.app.job()
    async def work(run: Run) -> None:
        bench.worker.heartbeat()

    with pytest.raises(UsageError, match="No worker is running: call heartbeat"):
        bench.worker.heartbeat()
    assert bench.run_one(work).phase == "succeeded"
    with pytest.raises(UsageError, match="No worker is running: call heartbeat"):
        bench.worker.heartbeat()


def test_testing_kit_works_without_pytest(tmp_path: Path) -> None:
    """`fresh` and `KitWorker` need no fixtures."""
    app: App[Any] = App()
    clock = KitClock()

    @app.job()
    async def work(run: Run) -> str:
        return "done"

    with fresh(app, clock, tmp_path):
        id = work.enqueue().id
        assert KitWorker(app, clock).run_until_idle() == 1
        assert work.result(id) == "done"
