"""Handlers in processes of their own: the same as in the worker, and whatever becomes of the process, only its own job
ends.
"""

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import JobRequest
from interlock.core.outcome import (
    Errored,
    FailedFinally,
    Held,
    Outcome,
    Rejected,
    Released,
    Returned,
    Snoozed,
    Started,
)
from interlock.core.sleeper import SystemSleeper
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution
from interlock.engine.ledger import StoreLedger
from interlock.engine.settle import Settlement, Settler
from interlock.telemetry.events import Event, Events, Measured
from interlock.worker.subprocess.children import Children
from tests.kit import SettableClock
from tests.loops import child_app

TARGET = "tests.loops.child_app:app"


class RecoveryGrace(SystemSleeper):
    """Lets no time pass, until a test says that it has passed."""

    def __init__(self) -> None:
        self.over = False
        self.asked: list[float] = []

    async def asleep(self, seconds: float, /) -> None:
        self.asked.append(seconds)
        if not self.over:
            await asyncio.Event().wait()


class Bench:
    """A worker's own things, with one child for heavy kinds."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.sleeper = RecoveryGrace()
        self.heard: list[Event] = []
        self.begun = asyncio.Event()
        self.beginnings = asyncio.Semaphore(0)
        events = Events()
        events.subscribe(self._hear)
        kinds = {name: kind.spec for name, kind in child_app.app.kinds.items()}
        self.context = WorkerContext(
            "ann#1", child_app.app.database.store, kinds, events=events, sleeper=self.sleeper, random=lambda: 0.5
        )
        self.settler = Settler(self.context)
        self.children = self.open(TARGET)

    def open(self, target: str | None) -> Children:
        return Children(self.context, target, most=1, database=child_app.app.database.url)

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        if isinstance(event, Measured) and event.name == "begun":
            self.begun.set()
            self.beginnings.release()

    # ------------------------------------------------------------ sentences
    def hold(self, call: JobRequest) -> HeldExecution:
        """A fresh job in our hand, begun."""
        id = child_app.app.enqueue_many([call])[0].id
        spec, store = call.spec, self.context.store
        (lease,) = store.queue.claim("ann#1", spec.claim_rules(spec.version(store)), ["default"], 1)
        assert lease.job.id == id
        execution = HeldExecution(lease, spec, spec.lifecycle, asked_at=0.0)
        if execution.status == "LEASED":
            self.settler.settle_one(Settlement(execution, Started(), on_settled=lambda _: None))
        return execution

    def ledger(self, execution: HeldExecution) -> StoreLedger:
        return StoreLedger(self.context, self.settler, execution)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(work, 30))

    def prepare(self, execution: HeldExecution) -> tuple[Outcome, Any]:
        found: tuple[Outcome, Any] = self.run(self.children.prepare(execution, self.ledger(execution)))
        return found

    def outcome(self, call: JobRequest) -> Outcome:
        return self.prepare(self.hold(call))[0]

    def committed(self, how: str, kind: Any = child_app.ending) -> HeldExecution:
        """A job past its commit, whose handler returned `how`."""
        execution = self.hold(kind.request(how))
        self.settler.settle_one(
            Settlement(execution, Returned(json.dumps(how), boundary=True), on_settled=lambda _: None)
        )
        assert execution.status == "COMMITTED"
        return execution

    def pid(self) -> int:
        """The child that runs heavy kinds now."""
        _, value = self.prepare(self.hold(child_app.add.request(1, 1)))
        found: int = value.pid
        return found

    async def stopped(self, execution: HeldExecution, why: Any) -> Outcome:
        """Stop the handler once it has begun."""
        self.begun.clear()
        running = asyncio.ensure_future(self.children.prepare(execution, self.ledger(execution)))
        await self.begun.wait()
        execution.halt(why)
        return (await running)[0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One bench for all tests, since a process takes a while to start."""
    os.environ["APART_WORD"] = "inherited"
    clock, child_app.app.database.clock = child_app.app.database.clock, SettableClock()
    with (
        asyncio.Runner() as runner,
        child_app.app.bound_to(f"sqlite:///{tmp_path_factory.mktemp('child_app') / 'jobs.db'}") as app,
    ):
        app.migrate()
        bench = Bench(runner)
        yield bench
        bench.run(bench.children.close())
    child_app.app.database.clock = clock
    del os.environ["APART_WORD"]


@pytest.fixture
def bench(shared: Bench) -> Iterator[Bench]:
    shared.heard.clear()
    shared.sleeper.over = False
    shared.sleeper.asked.clear()
    yield shared
    assert (shared.children.busy, shared.children.quarantined) == (0, False)


# ---------------------------------------------------------------- what comes back
@pytest.mark.parametrize(
    "kind", [child_app.add, child_app.aadd, child_app.add_without_run, child_app.aadd_without_run], ids=lambda k: k.name
)
def test_a_value_comes_back_as_the_handlers_own_type(bench: Bench, kind: Any) -> None:
    outcome, value = bench.prepare(bench.hold(kind.request(2, 3)))
    assert isinstance(value, child_app.Sum)
    assert value.total == 5
    assert value.pid != os.getpid()
    assert outcome == Returned(json.dumps({"pid": value.pid, "total": 5}, separators=(",", ":")), boundary=False)


def test_a_child_is_used_again(bench: Bench) -> None:
    assert bench.pid() == bench.pid()


@pytest.mark.parametrize(("what", "outcome"), [
    ("retry", Errored("later", retryable=True, after=7.0)),
    ("fail", FailedFinally("never")),
    ("reject", Rejected("no")),
    ("snooze", Snoozed(9.0, "hush")),
])  # fmt: skip
def test_an_answer_means_the_same_as_in_the_worker(bench: Bench, what: str, outcome: Outcome) -> None:
    assert bench.outcome(child_app.raising.request(what)) == outcome


def test_a_snooze_until_is_measured_by_the_clock_of_the_database(bench: Bench) -> None:
    execution = bench.hold(child_app.raising.request("snooze until"))
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Snoozed)
    assert outcome.after == 30.0


def test_an_exception_is_judged_and_told_where_it_was_raised(bench: Bench) -> None:
    outcome = bench.outcome(child_app.raising.request("value"))
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert outcome.error.endswith("ValueError: what nonsense")
    assert "child_app.py" in outcome.error
    missing = bench.outcome(child_app.raising.request("odd"))
    assert isinstance(missing, Errored)
    assert not missing.retryable
    assert missing.error.endswith("Odd: not there")


@pytest.mark.parametrize(
    "call", [child_app.raising.request("exit"), child_app.araising.request(), child_app.raising.request("stop")]
)
def test_what_would_end_a_thread_or_a_loop_ends_the_attempt_only(bench: Bench, call: JobRequest) -> None:
    before = bench.pid()
    outcome = bench.outcome(call)
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert bench.pid() == before


def test_a_value_that_its_annotation_does_not_allow_fails_the_job(bench: Bench) -> None:
    outcome = bench.outcome(child_app.unfit.request())
    assert isinstance(outcome, FailedFinally)
    assert "unfit returned a value that its annotation does not allow" in outcome.reason


# ---------------------------------------------------------------- what it finds there
def test_a_child_has_the_workers_surroundings_and_its_app_is_alive(
    bench: Bench,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Environment, directories and database are the worker's, the lifespan was entered once, and what is printed goes
    where the worker's own lines go.
    """
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    children, execution = bench.open(TARGET), bench.hold(child_app.surroundings.request())
    _, value = bench.run(children.prepare(execution, bench.ledger(execution)))
    printed = capfd.readouterr().out
    bench.run(children.close())
    assert printed == "a line on standard output\nand one without an end"
    assert value == {
        "env": "inherited", "cwd": str(Path.cwd()), "path": str(tmp_path), "entered": ["in"], "stdin": "", "database": child_app.app.database.url,
    }  # fmt: skip


# ---------------------------------------------------------------- the verbs
@pytest.mark.parametrize("kind", [child_app.stepping, child_app.astepping], ids=["def", "async def"])
def test_steps_and_effects_are_remembered_across_attempts(bench: Bench, kind: Any) -> None:
    execution = bench.hold(kind.request())
    first, second = bench.prepare(execution)[1], bench.prepare(execution)[1]
    assert first == second
    assert [(receipt.name, receipt.applied) for receipt in bench.context.store.receipts.for_job(execution.job.id)] == [
        ("one", True),
        ("two", True),
    ]


def test_an_effect_whose_process_died_is_in_doubt(bench: Bench) -> None:
    execution = bench.hold(child_app.doubting.request())
    assert isinstance(bench.prepare(execution)[0], Errored)
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Held)
    assert "It is unknown whether 'send' happened" in outcome.reason


@pytest.mark.parametrize(
    "call", [child_app.delivering.request("STREAMING"), child_app.adelivering.request()], ids=["def", "async def"]
)
def test_a_stage_is_advanced_by_the_worker(bench: Bench, call: JobRequest) -> None:
    execution = bench.hold(call)
    assert bench.prepare(execution)[1] == "advanced"
    assert execution.job.state == bench.context.store.inspect.get(execution.job.id).state == "STREAMING"


def test_an_error_of_a_verb_is_raised_in_the_child_as_what_it_is(bench: Bench) -> None:
    assert bench.prepare(bench.hold(child_app.delivering.request("DELIVERED")))[1] == "refused"


def test_a_write_under_a_lost_fence_is_refused_and_ends_the_attempt(bench: Bench) -> None:
    execution = bench.hold(child_app.stepping.request())
    execution.holder += 1
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Released)
    assert execution.stop == "lost"
    assert bench.context.store.receipts.for_job(execution.job.id) == []


def test_progress_and_measures_arrive_before_the_end_none_of_them_lost(bench: Bench) -> None:
    execution = bench.hold(child_app.counting.request(5000))
    bench.prepare(execution)
    assert execution.progress_and_usage() == ('[5000.0,5000.0,"counted"]', '{"beans":10000.0}')
    assert sum(event.value for event in bench.heard if isinstance(event, Measured)) == 10_000


def test_a_run_is_of_no_use_after_its_handler(bench: Bench) -> None:
    """Though the child goes on to another job: a thread that was left behind must not write in that one's name."""
    bench.prepare(bench.hold(child_app.keeping.request()))
    execution = bench.hold(child_app.misusing.request())
    assert "This attempt has ended" in bench.prepare(execution)[1]
    assert bench.context.store.receipts.for_job(execution.job.id) == []
