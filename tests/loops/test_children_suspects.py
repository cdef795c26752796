"""Child processes for suspects and for `finish`, and jobs for which no child can start."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from interlock import LeaseLost
from interlock.core.outcome import (
    CancelRequested,
    Errored,
    Outcome,
    Requeued,
    Returned,
    Snoozed,
)
from interlock.engine.held_execution import HeldExecution
from interlock.errors import Cancelled as CancelledError
from interlock.jobs.request import JobRequest
from interlock.jobs.user_code import CallScope, protected
from interlock.telemetry.events import Measured, WorkerError
from interlock.worker.subprocess.child_process import Died
from interlock.worker.subprocess.children import RaisedInChild
from tests.loops import child_app
from tests.loops.test_children import TARGET, Bench, bench, shared

__all__ = ["bench", "shared"]


# ---------------------------------------------------------------- suspects
def suspects(bench: Bench, *calls: JobRequest, losses: int = 1) -> list[HeldExecution]:
    executions = [bench.hold(call) for call in calls]
    for execution in executions:
        execution.job.lease_losses = losses
    return executions


async def settle_batch(bench: Bench, *executions: HeldExecution) -> list[tuple[Outcome, Any]]:
    return await asyncio.gather(
        *(bench.children.prepare(execution, bench.ledger(execution)) for execution in executions)
    )


def test_suspects_run_together_in_a_few_children(bench: Bench) -> None:
    """These children are reused, and differ from the child for kinds with `process=True`."""
    executions = suspects(bench, *(child_app.named.request() for _ in range(12)))
    first, second = (Counter(value for _, value in bench.run(settle_batch(bench, *executions))) for _ in range(2))
    assert len(first) == bench.children.most_alone
    assert set(first.values()) == {12 // len(first)}
    assert first.keys() == second.keys()
    assert bench.pid() not in first


@pytest.mark.parametrize("kind", [child_app.meeting, child_app.ameeting], ids=["def", "async def"])
def test_suspects_of_one_child_run_at_the_same_time(bench: Bench, kind: Any) -> None:
    """Each handler waits until all of its group have started."""
    count = 3 * bench.children.most_alone
    executions = suspects(bench, *(kind.request(3) for _ in range(count)))
    assert [value for _, value in bench.run(settle_batch(bench, *executions))] == ["met"] * count


def test_death_in_a_group_costs_no_try_and_leaves_other_groups_alone(bench: Bench) -> None:
    """The members of the dead group keep their tries and run alone from then on."""
    groups = bench.children.most_alone
    executions = suspects(
        bench, *(child_app.hanging.request() for _ in range(2 * groups - 1)), child_app.deadly.request()
    )

    async def scene() -> list[Outcome]:
        tasks = [
            asyncio.ensure_future(bench.children.prepare(execution, bench.ledger(execution)))
            for execution in executions
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            done, _ = await asyncio.wait(tasks, timeout=0.05)
        for execution in executions:
            execution.halt("cancel")
        return [(await task)[0] for task in tasks]

    outcomes = bench.run(scene())
    dead = [outcome for outcome in outcomes if isinstance(outcome, Errored)]
    assert [(outcome.crashed, outcome.shared) for outcome in dead] == [(True, True)] * 2
    assert sum(isinstance(outcome, CancelRequested) for outcome in outcomes) == len(executions) - 2


@pytest.mark.parametrize("how", ["cancel", "stop", "exit"])
def test_suspect_that_cancels_all_tasks_ends_neither_its_group_nor_itself(bench: Bench, how: str) -> None:
    """A worker ignores such calls too, so a handler that succeeds there must not fail here."""
    children = bench.open(TARGET)
    children._groups.most = 1
    innocent, sweeper = suspects(bench, child_app.hanging.request(), child_app.sweeping.request(how))

    async def scene() -> tuple[Outcome, Outcome]:
        bench.begun.clear()
        waiting = asyncio.ensure_future(children.prepare(innocent, bench.ledger(innocent)))
        await bench.begun.wait()
        swept, _ = await children.prepare(sweeper, bench.ledger(sweeper))
        innocent.halt("cancel")
        left, _ = await waiting
        await children.close()
        return swept, left

    swept, left = bench.run(scene())
    assert swept == Returned(json.dumps(how), boundary=False)
    assert isinstance(left, CancelRequested)


def test_handler_that_cancels_all_tasks_does_not_stop_a_starting_child(bench: Bench) -> None:
    """Otherwise the suspects would lose their leases and be charged a second loss."""
    children = bench.open(TARGET)
    (execution,) = suspects(bench, child_app.named.request())

    async def scene() -> Outcome:
        ours = asyncio.all_tasks()
        slot = protected(children.prepare(execution, bench.ledger(execution)))
        while not children._living:  # noqa: ASYNC110 - a starting child sends no signal
            await asyncio.sleep(0)

        async def hostile() -> None:
            for task in asyncio.all_tasks() - ours - {asyncio.current_task()}:
                task.cancel()

        await protected(hostile(), CallScope("hostile"))
        try:
            return (await slot)[0]
        finally:
            await children.close()

    assert isinstance(bench.run(scene()), Returned)


@pytest.mark.parametrize(("losses", "tries_left"), [(2, 3), (1, 1)], ids=["second loss", "last try"])
def test_suspect_with_a_second_loss_or_one_try_left_runs_alone(bench: Bench, losses: int, tries_left: int) -> None:
    """Several run at once, each in its own child; a death is then charged to its own job."""
    executions = suspects(
        bench,
        child_app.deadly.request(),
        *(child_app.surviving.request() for _ in range(bench.children.most_alone - 1)),
        losses=losses,
    )
    for execution in executions:
        execution.job.tries_left = tries_left

    (death, _), *others = bench.run(settle_batch(bench, *executions))
    assert isinstance(death, Errored)
    assert (death.crashed, death.shared) == (True, False)
    assert len({value for _, value in others}) == len(others)


def test_child_killed_for_one_job_returns_the_other_jobs_of_its_group(bench: Bench) -> None:
    """The other jobs keep their tries."""
    children = bench.open(TARGET)
    children._groups.most = 1
    stubborn, innocent = suspects(bench, child_app.rooted.request(), child_app.hanging.request())

    async def scene() -> list[Outcome]:
        bench.beginnings = asyncio.Semaphore(0)
        tasks = [
            asyncio.ensure_future(children.prepare(execution, bench.ledger(execution)))
            for execution in (stubborn, innocent)
        ]
        for _ in tasks:
            await bench.beginnings.acquire()
        stubborn.halt("runtime")
        outcomes = [(await task)[0] for task in tasks]
        await children.close()
        return outcomes

    ended, left = bench.run(scene())
    assert isinstance(ended, Errored)
    assert (ended.crashed, left) == (False, Requeued("the worker ended its process because of another job"))


def test_idle_child_exits_after_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.worker.subprocess.children.IDLE", 0.0)
    children, (execution,) = bench.open(TARGET), suspects(bench, child_app.named.request())

    async def scene() -> None:
        await children.prepare(execution, bench.ledger(execution))
        await asyncio.gather(*(child._watching for child in children._living))

    bench.run(scene())


def test_finish_after_a_crash_runs_in_quarantine(bench: Bench) -> None:
    execution = bench.committed("wait", child_app.light)
    execution.crashes = 1
    bench.sleeper.over = True

    async def look() -> None:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.finish(execution, bench.ledger(execution)))
        await bench.begun.wait()
        assert bench.children.quarantined
        execution.halt("lost")
        await running

    with pytest.raises(LeaseLost):
        bench.run(look())


@pytest.mark.parametrize("alone", [False, True])
def test_death_in_finish_reports_whether_the_job_ran_alone(bench: Bench, alone: bool) -> None:
    execution = bench.committed("die", child_app.light)
    execution.crashes, execution.shared_crash = 1, alone
    with pytest.raises(Died) as death:
        bench.run(bench.children.finish(execution, bench.ledger(execution)))
    assert death.value.others is not alone


# ---------------------------------------------------------------- finish
def test_finish_runs_in_a_child(bench: Bench) -> None:
    execution = bench.committed("well")
    bench.run(bench.children.finish(execution, bench.ledger(execution)))
    assert [event.name for event in bench.heard if isinstance(event, Measured)] == ["begun"]


def test_error_of_finish_in_a_child_names_the_file(bench: Bench) -> None:
    execution = bench.committed("raise")
    with pytest.raises(RaisedInChild, match="ValueError: what follows is broken") as raised:
        bench.run(bench.children.finish(execution, bench.ledger(execution)))
    assert "child_app.py" in raised.value.__notes__[0]


def test_death_of_a_child_in_finish_is_raised(bench: Bench) -> None:
    execution = bench.committed("die")
    with pytest.raises(Died, match="exit code 9"):
        bench.run(bench.children.finish(execution, bench.ledger(execution)))


@pytest.mark.parametrize(("why", "error"), [("lost", LeaseLost), ("cancel", CancelledError)])
def test_stopped_finish_raises_the_reason(bench: Bench, why: Any, error: type[Exception]) -> None:
    execution = bench.committed("wait")
    bench.sleeper.over = True

    async def stop() -> None:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.finish(execution, bench.ledger(execution)))
        await bench.begun.wait()
        execution.halt(why)
        await running

    with pytest.raises(error):
        bench.run(stop())


# ---------------------------------------------------------------- no child can start
@pytest.mark.parametrize(("target", "said"), [
    ("tests.loops.nowhere:app", "There is no module tests.loops.nowhere here"),
    ("tests.loops.child_app:delivery", "not an interlock.App"),
    (None, "the app cannot be imported by name"),
])  # fmt: skip
def test_job_is_snoozed_without_cost_if_no_child_can_start(bench: Bench, target: str | None, said: str) -> None:
    execution, children = bench.hold(child_app.add.request(1, 1)), bench.open(target)
    assert children.importable == (target is not None)
    outcome, _ = bench.run(children.prepare(execution, bench.ledger(execution)))
    bench.run(children.close())
    assert isinstance(outcome, Snoozed)
    assert said in outcome.reason
    assert [event.where for event in bench.heard if isinstance(event, WorkerError)] == ["child"]


def test_idle_child_leaves_its_lifespan_when_closed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APART_FAREWELL", str(tmp_path / "farewell"))
    children = bench.open(TARGET)
    execution = bench.hold(child_app.add.request(1, 1))
    bench.run(children.prepare(execution, bench.ledger(execution)))
    bench.run(children.close())
    assert (tmp_path / "farewell").read_text() == "left in peace"
    execution = bench.hold(child_app.add.request(1, 1))
    assert isinstance(bench.run(children.prepare(execution, bench.ledger(execution)))[0], Requeued)


def test_busy_child_is_killed_at_once_when_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.worker.subprocess.child_process.KILL_AFTER", 600.0)
    children, execution = bench.open(TARGET), bench.hold(child_app.stubborn.request())

    async def close() -> Outcome:
        bench.begun.clear()
        running = asyncio.ensure_future(children.prepare(execution, bench.ledger(execution)))
        await bench.begun.wait()
        await children.close()
        return (await running)[0]

    assert isinstance(bench.run(close()), Errored)
