"""Child processes that are stopped, or die."""

import asyncio
import os
import threading
from typing import Any

import pytest

from interlock.core.outcome import (
    CancelRequested,
    Errored,
    Outcome,
    Requeued,
    Returned,
)
from interlock.engine.held_execution import HeldExecution
from interlock.engine.ledger import StoreLedger
from interlock.worker.subprocess.child_process import KILL_AFTER, KILL_AT_SHUTDOWN
from tests.loops import child_app
from tests.loops.test_children import TARGET, Bench, bench, shared

__all__ = ["bench", "shared"]


# ---------------------------------------------------------------- stopping
@pytest.mark.parametrize("kind", [child_app.waiting, child_app.looking], ids=["async def", "def"])
@pytest.mark.parametrize(("why", "kept"), [("cancel", CancelRequested), ("shutdown", Requeued)])
def test_child_survives_a_handler_that_stops_when_asked(bench: Bench, kind: Any, why: str, kept: type) -> None:
    before, execution = bench.pid(), bench.hold(kind.request())
    assert isinstance(bench.run(bench.stopped(execution, why)), kept)
    assert bench.context.store.receipts.for_job(execution.job.id) == []
    assert bench.sleeper.asked == [{"cancel": KILL_AFTER, "shutdown": KILL_AT_SHUTDOWN}[why]]
    assert bench.pid() == before


def test_child_of_a_handler_that_does_not_stop_is_killed_after_the_limit(bench: Bench) -> None:
    before, execution = bench.pid(), bench.hold(child_app.stubborn.request())
    bench.sleeper.over = True
    assert isinstance(bench.run(bench.stopped(execution, "cancel")), CancelRequested)
    assert bench.sleeper.asked == [KILL_AFTER]
    assert bench.pid() != before


@pytest.mark.parametrize(("why", "outcome"), [("lost", Requeued), ("runtime", Errored)])
def test_child_is_killed_at_once_after_a_lost_lease_or_max_runtime(bench: Bench, why: str, outcome: type) -> None:
    before, execution = bench.pid(), bench.hold(child_app.stubborn.request())
    assert isinstance(bench.run(bench.stopped(execution, why)), outcome)
    assert bench.sleeper.asked == []
    assert bench.pid() != before


def test_job_that_waits_for_a_child_can_be_stopped(bench: Bench) -> None:
    first, second = bench.hold(child_app.waiting.request()), bench.hold(child_app.add.request(1, 1))

    async def crowd() -> tuple[Outcome, Outcome]:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.prepare(first, bench.ledger(first)))
        await bench.begun.wait()
        assert bench.children.busy == 1
        queued = asyncio.ensure_future(bench.children.prepare(second, bench.ledger(second)))
        await asyncio.sleep(0)
        second.halt("shutdown")
        left = (await queued)[0]
        first.halt("cancel")
        return (await running)[0], left

    ran, left = bench.run(crowd())
    assert (type(ran), type(left)) == (CancelRequested, Requeued)


# ---------------------------------------------------------------- death
@pytest.mark.parametrize(
    ("how", "said"), [(7, "exit code 7"), (0, "exit code 0"), (-9, "signal 9 (SIGKILL)"), (-11, "signal 11 (SIGSEGV)")]
)
def test_death_of_a_child_costs_its_job_a_try_and_the_child_is_replaced(bench: Bench, how: int, said: str) -> None:
    outcome = bench.outcome(child_app.dying.request(how))
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert outcome.error.startswith(f"the process died: {said}; ")
    assert isinstance(bench.outcome(child_app.add.request(1, 1)), Returned)


def test_death_is_noticed_even_if_another_process_holds_the_pipe(bench: Bench) -> None:
    outcome = bench.outcome(child_app.forking.request())
    assert isinstance(outcome, Errored)
    assert outcome.error.startswith("the process died: exit code 3")
    assert outcome.crashed


def test_child_exits_when_its_worker_is_gone(bench: Bench) -> None:
    """The closed pipe is its only sign, and its handler is blocked."""
    children, execution = bench.open(TARGET), bench.hold(child_app.stubborn.request())

    async def hang_up() -> Outcome:
        bench.begun.clear()
        running = asyncio.ensure_future(children.prepare(execution, bench.ledger(execution)))
        await bench.begun.wait()
        for child in children._living:
            child._writer.write_eof()
        return (await running)[0]

    outcome = bench.run(hang_up())
    assert isinstance(outcome, Errored)
    assert "exit code 1;" in outcome.error


def test_child_ignores_terminal_signals_and_forked_processes_cannot_write(bench: Bench) -> None:
    """A process that the handler forks cannot write for the job, and SIGTERM ends it."""
    before, execution = bench.pid(), bench.hold(child_app.disturbed.request())
    assert bench.prepare(execution)[1] is True
    assert bench.context.store.receipts.for_job(execution.job.id) == []
    assert bench.pid() == before


def test_death_of_an_idle_child_costs_no_try(bench: Bench) -> None:
    os.kill(bench.pid(), 9)
    assert isinstance(bench.outcome(child_app.add.request(1, 1)), Returned)


class SlowLedger(StoreLedger):
    """A ledger whose database is slow."""

    def __init__(self, bench: Bench, execution: HeldExecution) -> None:
        super().__init__(bench.context, bench.settler, execution)
        self.asked, self.gate, self._loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def record_step(self, name: str, args_hash: str, value: str) -> None:
        self._loop.call_soon_threadsafe(self.asked.set)
        self.gate.wait()
        super().record_step(name, args_hash, value)


def test_death_is_reported_after_pending_writes_are_stored(bench: Bench) -> None:
    """Otherwise the end of the attempt would be decided from an outdated state of the job."""
    execution = bench.hold(child_app.stepping.request())

    async def die_early() -> Outcome:
        ledger = SlowLedger(bench, execution)
        running = asyncio.ensure_future(bench.children.prepare(execution, ledger))
        await ledger.asked.wait()
        try:
            (child,) = [each for each in bench.children._living if each._calls]
            child.kill()
            await child._watching
            await asyncio.wait({running}, timeout=0.01)
            assert not running.done()
        finally:
            ledger.gate.set()
        return (await running)[0]

    assert isinstance(bench.run(die_early()), Errored)
    assert [receipt.name for receipt in bench.context.store.receipts.for_job(execution.job.id)] == ["one"]
