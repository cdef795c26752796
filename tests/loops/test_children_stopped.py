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
    Released,
    Returned,
)
from interlock.engine.held_execution import HeldExecution
from interlock.engine.ledger import StoreLedger
from interlock.worker.subprocess.child_process import KILL_AFTER
from tests.loops import child_app
from tests.loops.test_children import TARGET, Bench, bench, shared

__all__ = ["bench", "shared"]


# ---------------------------------------------------------------- stopping
@pytest.mark.parametrize("kind", [child_app.waiting, child_app.looking], ids=["async def", "def"])
@pytest.mark.parametrize(("why", "kept"), [("cancel", CancelRequested), ("shutdown", Released)])
def test_a_handler_that_is_asked_to_stop_stops_and_its_child_lives_on(
    bench: Bench, kind: Any, why: str, kept: type
) -> None:
    before, execution = bench.pid(), bench.hold(kind.request())
    assert isinstance(bench.run(bench.stopped(execution, why)), kept)
    assert bench.context.store.receipts.for_job(execution.job.id) == []
    assert bench.sleeper.asked == [KILL_AFTER]
    assert bench.pid() == before


def test_a_handler_that_does_not_stop_is_killed_when_time_limit_ends(bench: Bench) -> None:
    before, execution = bench.pid(), bench.hold(child_app.stubborn.request())
    bench.sleeper.over = True
    assert isinstance(bench.run(bench.stopped(execution, "cancel")), CancelRequested)
    assert bench.sleeper.asked == [KILL_AFTER]
    assert bench.pid() != before


@pytest.mark.parametrize(("why", "outcome"), [("lost", Released), ("runtime", Errored)])
def test_where_lease_or_time_is_over_the_child_is_killed_at_once(bench: Bench, why: str, outcome: type) -> None:
    before, execution = bench.pid(), bench.hold(child_app.stubborn.request())
    assert isinstance(bench.run(bench.stopped(execution, why)), outcome)
    assert bench.sleeper.asked == []
    assert bench.pid() != before


def test_what_waits_for_a_child_can_be_stopped(bench: Bench) -> None:
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
    assert (type(ran), type(left)) == (CancelRequested, Released)


# ---------------------------------------------------------------- dying
@pytest.mark.parametrize(
    ("how", "said"), [(7, "exit code 7"), (0, "exit code 0"), (-9, "signal 9 (SIGKILL)"), (-11, "signal 11 (SIGSEGV)")]
)
def test_a_process_that_dies_spends_a_try_of_its_own_job_and_is_replaced(bench: Bench, how: int, said: str) -> None:
    outcome = bench.outcome(child_app.dying.request(how))
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert outcome.error.startswith(f"the process died: {said}; ")
    assert isinstance(bench.outcome(child_app.add.request(1, 1)), Returned)


def test_a_death_is_noticed_though_another_process_holds_the_pipe(bench: Bench) -> None:
    outcome = bench.outcome(child_app.forking.request())
    assert isinstance(outcome, Errored)
    assert outcome.error.startswith("the process died: exit code 3")
    assert outcome.crashed


def test_a_child_that_has_lost_its_worker_ends_whatever_it_is_doing(bench: Bench) -> None:
    """Where the pipe is all that tells it so."""
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


def test_signals_of_the_terminal_and_forked_processes_do_not_disturb_a_child(bench: Bench) -> None:
    """A process that its handler forks cannot write for it, and can be terminated as any other."""
    before, execution = bench.pid(), bench.hold(child_app.disturbed.request())
    assert bench.prepare(execution)[1] is True
    assert bench.context.store.receipts.for_job(execution.job.id) == []
    assert bench.pid() == before


def test_a_child_that_died_idle_costs_no_job_a_try(bench: Bench) -> None:
    os.kill(bench.pid(), 9)
    assert isinstance(bench.outcome(child_app.add.request(1, 1)), Returned)


class SlowLedger(StoreLedger):
    """A database that takes its time."""

    def __init__(self, bench: Bench, execution: HeldExecution) -> None:
        super().__init__(bench.context, bench.settler, execution)
        self.asked, self.gate, self._loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def record_step(self, name: str, args_hash: str, value: str) -> None:
        self._loop.call_soon_threadsafe(self.asked.set)
        self.gate.wait()
        super().record_step(name, args_hash, value)


def test_a_death_is_told_only_after_what_was_asked_before_is_written(bench: Bench) -> None:
    """Else the end of the attempt would be decided from where the job no longer is."""
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
