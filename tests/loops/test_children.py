"""Handlers in child processes behave as in the worker, and the death of a child ends only its own job."""

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock import JobRequest
from interlock.core.outcome import (
    Errored,
    FailedFinally,
    Handed,
    Held,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
)
from interlock.core.sleeper import SystemSleeper
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution
from interlock.engine.ledger import StoreLedger
from interlock.engine.settle import Settler
from interlock.engine.settlement import Settlement
from interlock.telemetry.events import Event, Events, Measured
from interlock.worker.assembly import run_until_idle
from interlock.worker.recycle import RecycleLimits
from interlock.worker.subprocess.children import NO_LIMITS, Children
from tests.kit import SettableClock
from tests.loops import child_app

TARGET = "tests.loops.child_app:app"


class EndlessSleeper(SystemSleeper):
    """A sleeper whose sleeps never end, unless a test sets `over`."""

    def __init__(self) -> None:
        self.over = False
        self.asked: list[float] = []

    async def asleep(self, seconds: float, /) -> None:
        self.asked.append(seconds)
        if not self.over:
            await asyncio.Event().wait()


class Bench:
    """The parts of a worker, with one child for kinds with `process=True`."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.sleeper = EndlessSleeper()
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

    def open(self, target: str | None, limits: RecycleLimits = NO_LIMITS) -> Children:
        return Children(self.context, target, most=1, limits=limits, database=child_app.app.database.url)

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        if isinstance(event, Measured) and event.name == "begun":
            self.begun.set()
            self.beginnings.release()

    # ------------------------------------------------------------ steps of a test
    def hold(self, call: JobRequest) -> HeldExecution:
        """Enqueue, claim and start a job."""
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
        """Return the execution of a committed job whose handler returned `how`."""
        execution = self.hold(kind.request(how))
        self.settler.settle_one(
            Settlement(execution, Returned(json.dumps(how), boundary=True), on_settled=lambda _: None)
        )
        assert execution.status == "COMMITTED"
        return execution

    def pid(self) -> int:
        """Return the process id of the child that runs kinds with `process=True`."""
        _, value = self.prepare(self.hold(child_app.add.request(1, 1)))
        found: int = value.pid
        return found

    async def stopped(self, execution: HeldExecution, why: Any) -> Outcome:
        """Stop the handler after it has started."""
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


# ---------------------------------------------------------------- results and errors
@pytest.mark.parametrize(
    "kind", [child_app.add, child_app.aadd, child_app.add_without_run, child_app.aadd_without_run], ids=lambda k: k.name
)
def test_value_keeps_the_type_of_the_handlers_annotation(bench: Bench, kind: Any) -> None:
    outcome, value = bench.prepare(bench.hold(kind.request(2, 3)))
    assert isinstance(value, child_app.Sum)
    assert value.total == 5
    assert value.pid != os.getpid()
    assert outcome == Returned(json.dumps({"pid": value.pid, "total": 5}, separators=(",", ":")), boundary=False)


def test_child_is_reused(bench: Bench) -> None:
    assert bench.pid() == bench.pid()


@pytest.mark.parametrize(("what", "outcome"), [
    ("retry", Errored("later", retryable=True, after=7.0)),
    ("fail", FailedFinally("never")),
    ("reject", Rejected("no")),
    ("snooze", Snoozed(9.0, "hush")),
])  # fmt: skip
def test_retry_fail_reject_and_snooze_work_as_in_the_worker(bench: Bench, what: str, outcome: Outcome) -> None:
    assert bench.outcome(child_app.raising.request(what)) == outcome


def test_snooze_until_is_measured_by_the_clock_of_the_database(bench: Bench) -> None:
    execution = bench.hold(child_app.raising.request("snooze until"))
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Snoozed)
    assert outcome.after == 30.0


def test_exception_is_classified_and_shows_where_it_was_raised(bench: Bench) -> None:
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
def test_system_exit_and_stop_iteration_end_only_the_attempt(bench: Bench, call: JobRequest) -> None:
    before = bench.pid()
    outcome = bench.outcome(call)
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert bench.pid() == before


def test_value_that_its_annotation_does_not_allow_fails_the_job(bench: Bench) -> None:
    outcome = bench.outcome(child_app.unfit.request())
    assert isinstance(outcome, FailedFinally)
    assert "unfit returned a value that its annotation does not allow" in outcome.reason


# ---------------------------------------------------------------- environment
def test_child_has_the_workers_environment_and_enters_the_lifespan(
    bench: Bench,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Environment variables, directories and database are those of the worker. The child enters the lifespan once, and
    its output goes to the worker's stdout.
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


# ---------------------------------------------------------------- methods of a run
@pytest.mark.parametrize("kind", [child_app.stepping, child_app.astepping], ids=["def", "async def"])
def test_steps_and_effects_are_remembered_across_attempts(bench: Bench, kind: Any) -> None:
    execution = bench.hold(kind.request())
    first, second = bench.prepare(execution)[1], bench.prepare(execution)[1]
    assert first == second
    assert [(receipt.name, receipt.applied) for receipt in bench.context.store.receipts.for_job(execution.job.id)] == [
        ("one", True),
        ("two", True),
    ]


def test_effect_whose_process_died_is_in_doubt(bench: Bench) -> None:
    execution = bench.hold(child_app.doubting.request())
    assert isinstance(bench.prepare(execution)[0], Errored)
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Held)
    assert "It is unknown whether 'send' happened" in outcome.reason


@pytest.mark.parametrize("kind", [child_app.asking, child_app.aasking], ids=["def", "async def"])
def test_child_asks_with_the_token_that_its_worker_accepts(bench: Bench, kind: Any) -> None:
    """The token is the same in a second attempt, and the worker stores the answer with the declared type."""
    execution, store = bench.hold(kind.request()), bench.context.store
    outcome = bench.prepare(execution)[0]
    terms = '{"default":{"pid":0,"total":0},"timeout":60.0}'
    assert outcome == Handed(f"question:{execution.job.id}", 60.0, terms)
    (mail,) = store.receipts.for_job(execution.job.id)
    assert bench.prepare(execution)[0] == outcome
    bench.settler.settle_one(Settlement(execution, outcome))
    assert child_app.app.answer(json.loads(mail.value or ""), {"total": 7, "pid": 1}) is True
    assert kind.result(execution.job.id) == child_app.Sum(7, 1)


@pytest.mark.parametrize(
    "call", [child_app.delivering.request("STREAMING"), child_app.adelivering.request()], ids=["def", "async def"]
)
def test_stage_is_advanced_by_the_worker(bench: Bench, call: JobRequest) -> None:
    execution = bench.hold(call)
    assert bench.prepare(execution)[1] == "advanced"
    assert execution.job.state == bench.context.store.inspect.get(execution.job.id).state == "STREAMING"


def test_error_of_a_run_method_keeps_its_type_in_the_child(bench: Bench) -> None:
    assert bench.prepare(bench.hold(child_app.delivering.request("DELIVERED")))[1] == "refused"


def test_write_of_a_stale_worker_is_refused_and_ends_the_attempt(bench: Bench) -> None:
    execution = bench.hold(child_app.stepping.request())
    execution.holder += 1
    outcome, _ = bench.prepare(execution)
    assert isinstance(outcome, Requeued)
    assert execution.stop == "lost"
    assert bench.context.store.receipts.for_job(execution.job.id) == []


def test_all_progress_and_measures_arrive_before_the_result(bench: Bench) -> None:
    execution = bench.hold(child_app.counting.request(5000))
    bench.prepare(execution)
    assert execution.progress_and_usage() == ('[5000.0,5000.0,"counted"]', '{"beans":10000.0}')
    assert sum(event.value for event in bench.heard if isinstance(event, Measured)) == 10_000


def test_run_cannot_be_used_after_its_handler(bench: Bench) -> None:
    """The child continues with another job; a thread of the previous handler must not write for that job."""
    bench.prepare(bench.hold(child_app.keeping.request()))
    execution = bench.hold(child_app.misusing.request())
    assert "This attempt has ended" in bench.prepare(execution)[1]
    assert bench.context.store.receipts.for_job(execution.job.id) == []


@pytest.mark.parametrize("number", [1, 3])
def test_number_of_child_processes_can_be_set(shared: Bench, number: int) -> None:
    """So many jobs of kinds with `process=True` run at once, each in its own child."""
    stored = child_app.app.enqueue_many(child_app.add.request(1, 1) for _ in range(6))
    plan = child_app.app.plan(only=["add"], until_idle=True, child_processes=number)
    assert asyncio.run(run_until_idle(replace(plan, target=TARGET), 60)) == 6
    assert len({child_app.add.result(each.id).pid for each in stored}) == number
