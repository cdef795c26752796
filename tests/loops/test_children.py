"""Handlers in processes of their own: the same as in the worker, and whatever becomes of the process, only its own job ends."""

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import LeaseLost
from interlock.call import Call
from interlock.errors import Cancelled as CancelledError
from interlock.events import Event, Events, Measured, Trouble
from interlock.outcome import Cancelled, Errored, Failed, Held, Outcome, Rejected, Released, Returned, Snoozed, Started
from interlock.user_code import Scope, protected
from interlock.waits import SystemWaits
from interlock.worker.children import Children, RaisedThere
from interlock.worker.desk import Desk
from interlock.worker.grip import Grip
from interlock.worker.process import PATIENCE, Died
from interlock.worker.runs import StoreLedger
from interlock.worker.settle import Item, Settler
from tests.kit import SettableClock
from tests.loops import apart

TARGET = "tests.loops.apart:app"


class Patience(SystemWaits):
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
        self.waits = Patience()
        self.heard: list[Event] = []
        self.begun = asyncio.Event()
        self.beginnings = asyncio.Semaphore(0)
        events = Events()
        events.subscribe(self._hear)
        kinds = {name: kind.declaration for name, kind in apart.app.kinds.items()}
        self.desk = Desk("ann#1", apart.app.database.store, kinds, events=events, waits=self.waits, draw=lambda: 0.5)
        self.settler = Settler(self.desk)
        self.children = self.open(TARGET)

    def open(self, target: str | None) -> Children:
        return Children(self.desk, target, most=1, database=apart.app.database.url)

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        if isinstance(event, Measured) and event.name == "begun":
            self.begun.set()
            self.beginnings.release()

    # ------------------------------------------------------------ sentences
    def hold(self, call: Call) -> Grip:
        """A fresh job in our hand, begun."""
        id = apart.app.enqueue_many([call])[0].id
        declaration, store = call.declaration, self.desk.store
        (lease,) = store.claim("ann#1", declaration.ways(declaration.version(store)), ["default"], 1)
        assert lease.job.id == id
        grip = Grip(lease, declaration, declaration.lifecycle, asked_at=0.0)
        if grip.status == "LEASED":
            self.settler.alone(Item(grip, Started(), done=lambda _: None))
        return grip

    def ledger(self, grip: Grip) -> StoreLedger:
        return StoreLedger(self.desk, self.settler, grip)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(work, 30))

    def prepare(self, grip: Grip) -> tuple[Outcome, Any]:
        found: tuple[Outcome, Any] = self.run(self.children.prepare(grip, self.ledger(grip)))
        return found

    def outcome(self, call: Call) -> Outcome:
        return self.prepare(self.hold(call))[0]

    def committed(self, how: str, kind: Any = apart.ending) -> Grip:
        """A job past its commit, whose handler returned `how`."""
        grip = self.hold(kind.call(how))
        self.settler.alone(Item(grip, Returned(json.dumps(how), boundary=True), done=lambda _: None))
        assert grip.status == "COMMITTED"
        return grip

    def pid(self) -> int:
        """The child that runs heavy kinds now."""
        _, value = self.prepare(self.hold(apart.add.call(1, 1)))
        found: int = value.pid
        return found

    async def stopped(self, grip: Grip, why: Any) -> Outcome:
        """Stop the handler once it has begun."""
        self.begun.clear()
        running = asyncio.ensure_future(self.children.prepare(grip, self.ledger(grip)))
        await self.begun.wait()
        grip.halt(why)
        return (await running)[0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One bench for all tests, since a process takes a while to start."""
    os.environ["APART_WORD"] = "inherited"
    clock, apart.app.database.clock = apart.app.database.clock, SettableClock()
    with asyncio.Runner() as runner, apart.app.bound_to(f"sqlite:///{tmp_path_factory.mktemp('apart') / 'jobs.db'}") as app:
        app.migrate()
        bench = Bench(runner)
        yield bench
        bench.run(bench.children.close())
    apart.app.database.clock = clock
    del os.environ["APART_WORD"]


@pytest.fixture
def bench(shared: Bench) -> Iterator[Bench]:
    shared.heard.clear()
    shared.waits.over = False
    shared.waits.asked.clear()
    yield shared
    assert (shared.children.busy, shared.children.quarantined) == (0, False)


# ---------------------------------------------------------------- what comes back
@pytest.mark.parametrize("kind", [apart.add, apart.aadd], ids=["def", "async def"])
def test_a_value_comes_back_as_the_handlers_own_type(bench: Bench, kind: Any) -> None:
    outcome, value = bench.prepare(bench.hold(kind.call(2, 3)))
    assert isinstance(value, apart.Sum)
    assert value.total == 5
    assert value.pid != os.getpid()
    assert outcome == Returned(json.dumps({"pid": value.pid, "total": 5}, separators=(",", ":")), boundary=False)


def test_a_child_is_used_again(bench: Bench) -> None:
    assert bench.pid() == bench.pid()


@pytest.mark.parametrize(("what", "outcome"), [
    ("retry", Errored("later", retryable=True, after=7.0)),
    ("fail", Failed("never")),
    ("reject", Rejected("no")),
    ("snooze", Snoozed(9.0, "hush")),
])  # fmt: skip
def test_an_answer_means_the_same_as_in_the_worker(bench: Bench, what: str, outcome: Outcome) -> None:
    assert bench.outcome(apart.raising.call(what)) == outcome


def test_a_snooze_until_is_measured_by_the_clock_of_the_database(bench: Bench) -> None:
    grip = bench.hold(apart.raising.call("snooze until"))
    outcome, _ = bench.prepare(grip)
    assert isinstance(outcome, Snoozed)
    assert outcome.after == 30.0


def test_an_exception_is_judged_and_told_where_it_was_raised(bench: Bench) -> None:
    outcome = bench.outcome(apart.raising.call("value"))
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert outcome.error.endswith("ValueError: what nonsense")
    assert "apart.py" in outcome.error
    missing = bench.outcome(apart.raising.call("odd"))
    assert isinstance(missing, Errored)
    assert not missing.retryable
    assert missing.error.endswith("Odd: not there")


@pytest.mark.parametrize("call", [apart.raising.call("exit"), apart.araising.call(), apart.raising.call("stop")])
def test_what_would_end_a_thread_or_a_loop_ends_the_attempt_only(bench: Bench, call: Call) -> None:
    before = bench.pid()
    outcome = bench.outcome(call)
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert bench.pid() == before


def test_a_value_that_its_annotation_does_not_allow_fails_the_job(bench: Bench) -> None:
    outcome = bench.outcome(apart.unfit.call())
    assert isinstance(outcome, Failed)
    assert "unfit returned what its annotation does not allow" in outcome.reason


# ---------------------------------------------------------------- what it finds there
def test_a_child_has_the_workers_surroundings_and_its_app_is_alive(
    bench: Bench, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Environment, directories and database are the worker's, the lifespan was entered once, and what is printed goes where the worker's own lines go."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    children, grip = bench.open(TARGET), bench.hold(apart.surroundings.call())
    _, value = bench.run(children.prepare(grip, bench.ledger(grip)))
    printed = capfd.readouterr().out
    bench.run(children.close())
    assert printed == "a line on standard output\nand one without an end"
    assert value == {
        "env": "inherited", "cwd": str(Path.cwd()), "path": str(tmp_path), "entered": ["in"], "stdin": "", "database": apart.app.database.url,
    }  # fmt: skip


# ---------------------------------------------------------------- the verbs
@pytest.mark.parametrize("kind", [apart.stepping, apart.astepping], ids=["def", "async def"])
def test_steps_and_effects_are_remembered_across_attempts(bench: Bench, kind: Any) -> None:
    grip = bench.hold(kind.call())
    first, second = bench.prepare(grip)[1], bench.prepare(grip)[1]
    assert first == second
    assert [(receipt.name, receipt.applied) for receipt in bench.desk.store.receipts(grip.job.id)] == [("one", True), ("two", True)]


def test_an_effect_whose_process_died_is_in_doubt(bench: Bench) -> None:
    grip = bench.hold(apart.doubting.call())
    assert isinstance(bench.prepare(grip)[0], Errored)
    outcome, _ = bench.prepare(grip)
    assert isinstance(outcome, Held)
    assert "nobody knows whether 'send' happened" in outcome.reason


@pytest.mark.parametrize("call", [apart.delivering.call("STREAMING"), apart.adelivering.call()], ids=["def", "async def"])
def test_a_stage_is_advanced_by_the_worker(bench: Bench, call: Call) -> None:
    grip = bench.hold(call)
    assert bench.prepare(grip)[1] == "advanced"
    assert grip.job.state == bench.desk.store.get(grip.job.id).state == "STREAMING"


def test_an_error_of_a_verb_is_raised_in_the_child_as_what_it_is(bench: Bench) -> None:
    assert bench.prepare(bench.hold(apart.delivering.call("DELIVERED")))[1] == "refused"


def test_a_write_under_a_lost_fence_is_refused_and_ends_the_attempt(bench: Bench) -> None:
    grip = bench.hold(apart.stepping.call())
    grip.holder += 1
    outcome, _ = bench.prepare(grip)
    assert isinstance(outcome, Released)
    assert grip.stop == "lost"
    assert bench.desk.store.receipts(grip.job.id) == []


def test_progress_and_measures_arrive_before_the_end_none_of_them_lost(bench: Bench) -> None:
    grip = bench.hold(apart.counting.call(5000))
    bench.prepare(grip)
    assert grip.shown() == ('[5000.0,5000.0,"counted"]', '{"beans":10000.0}')
    assert sum(event.value for event in bench.heard if isinstance(event, Measured)) == 10_000


def test_a_run_is_of_no_use_after_its_handler(bench: Bench) -> None:
    """Though the child goes on to another job: a thread that was left behind must not write in that one's name."""
    bench.prepare(bench.hold(apart.keeping.call()))
    grip = bench.hold(apart.misusing.call())
    assert "This attempt has ended" in bench.prepare(grip)[1]
    assert bench.desk.store.receipts(grip.job.id) == []


# ---------------------------------------------------------------- stopping
@pytest.mark.parametrize("kind", [apart.waiting, apart.looking], ids=["async def", "def"])
@pytest.mark.parametrize(("why", "kept"), [("cancel", Cancelled), ("release", Released)])
def test_a_handler_that_is_asked_to_stop_stops_and_its_child_lives_on(bench: Bench, kind: Any, why: str, kept: type) -> None:
    before, grip = bench.pid(), bench.hold(kind.call())
    assert isinstance(bench.run(bench.stopped(grip, why)), kept)
    assert bench.desk.store.receipts(grip.job.id) == []
    assert bench.waits.asked == [PATIENCE]
    assert bench.pid() == before


def test_a_handler_that_does_not_stop_is_killed_when_patience_ends(bench: Bench) -> None:
    before, grip = bench.pid(), bench.hold(apart.stubborn.call())
    bench.waits.over = True
    assert isinstance(bench.run(bench.stopped(grip, "cancel")), Cancelled)
    assert bench.waits.asked == [PATIENCE]
    assert bench.pid() != before


@pytest.mark.parametrize(("why", "outcome"), [("lost", Released), ("runtime", Errored)])
def test_where_lease_or_time_is_over_the_child_is_killed_at_once(bench: Bench, why: str, outcome: type) -> None:
    before, grip = bench.pid(), bench.hold(apart.stubborn.call())
    assert isinstance(bench.run(bench.stopped(grip, why)), outcome)
    assert bench.waits.asked == []
    assert bench.pid() != before


def test_what_waits_for_a_child_can_be_stopped(bench: Bench) -> None:
    first, second = bench.hold(apart.waiting.call()), bench.hold(apart.add.call(1, 1))

    async def crowd() -> tuple[Outcome, Outcome]:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.prepare(first, bench.ledger(first)))
        await bench.begun.wait()
        assert bench.children.busy == 1
        queued = asyncio.ensure_future(bench.children.prepare(second, bench.ledger(second)))
        await asyncio.sleep(0)
        second.halt("release")
        left = (await queued)[0]
        first.halt("cancel")
        return (await running)[0], left

    ran, left = bench.run(crowd())
    assert (type(ran), type(left)) == (Cancelled, Released)


# ---------------------------------------------------------------- dying
@pytest.mark.parametrize(("how", "said"), [(7, "exit code 7"), (0, "exit code 0"), (-9, "signal 9 (SIGKILL)"), (-11, "signal 11 (SIGSEGV)")])
def test_a_process_that_dies_spends_a_try_of_its_own_job_and_is_replaced(bench: Bench, how: int, said: str) -> None:
    outcome = bench.outcome(apart.dying.call(how))
    assert isinstance(outcome, Errored)
    assert outcome.retryable
    assert outcome.error.startswith(f"the process died: {said}; ")
    assert isinstance(bench.outcome(apart.add.call(1, 1)), Returned)


def test_a_death_is_noticed_though_another_process_holds_the_pipe(bench: Bench) -> None:
    outcome = bench.outcome(apart.forking.call())
    assert isinstance(outcome, Errored)
    assert outcome.error.startswith("the process died: exit code 3")
    assert outcome.crashed


def test_a_child_that_has_lost_its_worker_ends_whatever_it_is_doing(bench: Bench) -> None:
    """Where the pipe is all that tells it so."""
    children, grip = bench.open(TARGET), bench.hold(apart.stubborn.call())

    async def hang_up() -> Outcome:
        bench.begun.clear()
        running = asyncio.ensure_future(children.prepare(grip, bench.ledger(grip)))
        await bench.begun.wait()
        for child in children._living:
            child._writer.write_eof()
        return (await running)[0]

    outcome = bench.run(hang_up())
    assert isinstance(outcome, Errored)
    assert "exit code 1;" in outcome.error


def test_signals_of_the_terminal_and_forked_processes_do_not_disturb_a_child(bench: Bench) -> None:
    """A process that its handler forks cannot write for it, and can be terminated as any other."""
    before, grip = bench.pid(), bench.hold(apart.disturbed.call())
    assert bench.prepare(grip)[1] is True
    assert bench.desk.store.receipts(grip.job.id) == []
    assert bench.pid() == before


def test_a_child_that_died_idle_costs_no_job_a_try(bench: Bench) -> None:
    os.kill(bench.pid(), 9)
    assert isinstance(bench.outcome(apart.add.call(1, 1)), Returned)


class SlowLedger(StoreLedger):
    """A database that takes its time."""

    def __init__(self, bench: Bench, grip: Grip) -> None:
        super().__init__(bench.desk, bench.settler, grip)
        self.asked, self.gate, self._loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def remember(self, name: str, args_hash: str, value: str) -> None:
        self._loop.call_soon_threadsafe(self.asked.set)
        self.gate.wait()
        super().remember(name, args_hash, value)


def test_a_death_is_told_only_after_what_was_asked_before_is_written(bench: Bench) -> None:
    """Else the end of the attempt would be decided from where the job no longer is."""
    grip = bench.hold(apart.stepping.call())

    async def die_early() -> Outcome:
        ledger = SlowLedger(bench, grip)
        running = asyncio.ensure_future(bench.children.prepare(grip, ledger))
        await ledger.asked.wait()
        (child,) = [each for each in bench.children._living if each._errands]
        child.kill()
        await child._watching
        await asyncio.wait({running}, timeout=0.01)
        assert not running.done()
        ledger.gate.set()
        return (await running)[0]

    assert isinstance(bench.run(die_early()), Errored)
    assert [receipt.name for receipt in bench.desk.store.receipts(grip.job.id)] == ["one"]


# ---------------------------------------------------------------- suspects
def suspects(bench: Bench, *calls: Call, losses: int = 1) -> list[Grip]:
    grips = [bench.hold(call) for call in calls]
    for grip in grips:
        grip.job.lease_losses = losses
    return grips


async def together(bench: Bench, *grips: Grip) -> list[tuple[Outcome, Any]]:
    return await asyncio.gather(*(bench.children.prepare(grip, bench.ledger(grip)) for grip in grips))


def test_suspects_run_together_in_a_few_children(bench: Bench) -> None:
    """Which are others than that of heavy kinds, and are used again."""
    grips = suspects(bench, *(apart.named.call() for _ in range(12)))
    first, second = (Counter(value for _, value in bench.run(together(bench, *grips))) for _ in range(2))
    assert len(first) == bench.children.most_alone
    assert set(first.values()) == {12 // len(first)}
    assert first.keys() == second.keys()
    assert bench.pid() not in first


@pytest.mark.parametrize("kind", [apart.meeting, apart.ameeting], ids=["def", "async def"])
def test_suspects_of_one_child_run_at_the_same_time(bench: Bench, kind: Any) -> None:
    """Each waits there until all are there."""
    count = 3 * bench.children.most_alone
    grips = suspects(bench, *(kind.call(3) for _ in range(count)))
    assert [value for _, value in bench.run(together(bench, *grips))] == ["met"] * count


def test_a_death_in_a_group_costs_no_try_yet_and_clears_the_other_groups(bench: Bench) -> None:
    """The dead group's members lose no try, and run alone from then on."""
    groups = bench.children.most_alone
    grips = suspects(bench, *(apart.hanging.call() for _ in range(2 * groups - 1)), apart.deadly.call())

    async def scene() -> list[Outcome]:
        tasks = [asyncio.ensure_future(bench.children.prepare(grip, bench.ledger(grip))) for grip in grips]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            done, _ = await asyncio.wait(tasks, timeout=0.05)
        for grip in grips:
            grip.halt("cancel")
        return [(await task)[0] for task in tasks]

    outcomes = bench.run(scene())
    dead = [outcome for outcome in outcomes if isinstance(outcome, Errored)]
    assert [(outcome.crashed, outcome.shared) for outcome in dead] == [(True, True)] * 2
    assert sum(isinstance(outcome, Cancelled) for outcome in outcomes) == len(grips) - 2


@pytest.mark.parametrize("how", ["cancel", "stop", "exit"])
def test_a_suspect_that_ends_all_of_its_event_loop_ends_neither_its_group_nor_itself(bench: Bench, how: str) -> None:
    """As in a worker, which only refuses: a handler that succeeds there must not fail here."""
    children = bench.open(TARGET)
    children._groups.most = 1
    innocent, sweeper = suspects(bench, apart.hanging.call(), apart.sweeping.call(how))

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
    assert isinstance(left, Cancelled)


def test_a_handler_that_cancels_all_tasks_stops_no_child_that_starts_for_suspects(bench: Bench) -> None:
    """They would be left to their leases, and be charged a second loss."""
    children = bench.open(TARGET)
    (grip,) = suspects(bench, apart.named.call())

    async def scene() -> Outcome:
        ours = asyncio.all_tasks()
        slot = protected(children.prepare(grip, bench.ledger(grip)))
        while not children._living:  # noqa: ASYNC110 - a child that starts says so to nobody
            await asyncio.sleep(0)

        async def hostile() -> None:
            for task in asyncio.all_tasks() - ours - {asyncio.current_task()}:
                task.cancel()

        await protected(hostile(), Scope("hostile"))
        try:
            return (await slot)[0]
        finally:
            await children.close()

    assert isinstance(bench.run(scene()), Returned)


@pytest.mark.parametrize(("losses", "tries_left"), [(2, 3), (1, 1)], ids=["second loss", "last try"])
def test_a_suspect_with_a_second_loss_or_one_try_left_runs_alone(bench: Bench, losses: int, tries_left: int) -> None:
    """Several do so at once, each in a child of its own; a death is then its own."""
    grips = suspects(bench, apart.deadly.call(), *(apart.lasting.call() for _ in range(bench.children.most_alone - 1)), losses=losses)
    for grip in grips:
        grip.job.tries_left = tries_left

    (death, _), *others = bench.run(together(bench, *grips))
    assert isinstance(death, Errored)
    assert (death.crashed, death.shared) == (True, False)
    assert len({value for _, value in others}) == len(others)


def test_a_child_that_is_ended_because_of_one_job_gives_the_others_of_its_group_back(bench: Bench) -> None:
    """The other jobs keep their tries."""
    children = bench.open(TARGET)
    children._groups.most = 1
    stubborn, innocent = suspects(bench, apart.rooted.call(), apart.hanging.call())

    async def scene() -> list[Outcome]:
        bench.beginnings = asyncio.Semaphore(0)
        tasks = [asyncio.ensure_future(children.prepare(grip, bench.ledger(grip))) for grip in (stubborn, innocent)]
        for _ in tasks:
            await bench.beginnings.acquire()
        stubborn.halt("runtime")
        outcomes = [(await task)[0] for task in tasks]
        await children.close()
        return outcomes

    ended, left = bench.run(scene())
    assert isinstance(ended, Errored)
    assert (ended.crashed, left) == (False, Released("the worker ended its process because of another job"))


def test_an_idle_child_ends_after_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.worker.children.IDLE", 0.0)
    children, (grip,) = bench.open(TARGET), suspects(bench, apart.named.call())

    async def scene() -> None:
        await children.prepare(grip, bench.ledger(grip))
        await asyncio.gather(*(child._watching for child in children._living))

    bench.run(scene())


def test_what_was_adopted_past_its_commit_is_finished_in_quarantine(bench: Bench) -> None:
    grip = bench.committed("wait", apart.light)
    grip.crashes = 1
    bench.waits.over = True

    async def look() -> None:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.finish(grip, bench.ledger(grip)))
        await bench.begun.wait()
        assert bench.children.quarantined
        grip.halt("lost")
        await running

    with pytest.raises(LeaseLost):
        bench.run(look())


@pytest.mark.parametrize("alone", [False, True])
def test_a_death_of_what_follows_a_commit_says_whether_it_was_alone(bench: Bench, alone: bool) -> None:
    grip = bench.committed("die", apart.light)
    grip.crashes, grip.unpaid = 1, alone
    with pytest.raises(Died) as death:
        bench.run(bench.children.finish(grip, bench.ledger(grip)))
    assert death.value.others is not alone


# ---------------------------------------------------------------- finish
def test_what_follows_the_commit_runs_in_a_child(bench: Bench) -> None:
    grip = bench.committed("well")
    bench.run(bench.children.finish(grip, bench.ledger(grip)))
    assert [event.name for event in bench.heard if isinstance(event, Measured)] == ["begun"]


def test_what_it_raises_is_raised_and_names_its_place(bench: Bench) -> None:
    grip = bench.committed("raise")
    with pytest.raises(RaisedThere, match="ValueError: what follows is broken") as raised:
        bench.run(bench.children.finish(grip, bench.ledger(grip)))
    assert "apart.py" in raised.value.__notes__[0]


def test_its_death_is_raised_too(bench: Bench) -> None:
    grip = bench.committed("die")
    with pytest.raises(Died, match="exit code 9"):
        bench.run(bench.children.finish(grip, bench.ledger(grip)))


@pytest.mark.parametrize(("why", "error"), [("lost", LeaseLost), ("cancel", CancelledError)])
def test_a_stop_of_it_is_raised_as_such(bench: Bench, why: Any, error: type[Exception]) -> None:
    grip = bench.committed("wait")
    bench.waits.over = True

    async def stop() -> None:
        bench.begun.clear()
        running = asyncio.ensure_future(bench.children.finish(grip, bench.ledger(grip)))
        await bench.begun.wait()
        grip.halt(why)
        await running

    with pytest.raises(error):
        bench.run(stop())


# ---------------------------------------------------------------- no child
@pytest.mark.parametrize(("target", "said"), [
    ("tests.loops.nowhere:app", "There is no module tests.loops.nowhere here"),
    ("tests.loops.apart:delivery", "not an interlock.App"),
    (None, "the app cannot be imported by name"),
])  # fmt: skip
def test_where_no_child_can_start_the_job_comes_back_later_and_no_try_is_spent(bench: Bench, target: str | None, said: str) -> None:
    grip, children = bench.hold(apart.add.call(1, 1)), bench.open(target)
    assert children.importable == (target is not None)
    outcome, _ = bench.run(children.prepare(grip, bench.ledger(grip)))
    bench.run(children.close())
    assert isinstance(outcome, Snoozed)
    assert said in outcome.reason
    assert [event.where for event in bench.heard if isinstance(event, Trouble)] == ["child"]


def test_closing_lets_an_idle_child_leave_its_lifespan(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APART_FAREWELL", str(tmp_path / "farewell"))
    children = bench.open(TARGET)
    grip = bench.hold(apart.add.call(1, 1))
    bench.run(children.prepare(grip, bench.ledger(grip)))
    bench.run(children.close())
    assert (tmp_path / "farewell").read_text() == "left in peace"
    grip = bench.hold(apart.add.call(1, 1))
    assert isinstance(bench.run(children.prepare(grip, bench.ledger(grip)))[0], Released)


def test_closing_kills_a_busy_child_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.worker.process.PATIENCE", 600.0)
    children, grip = bench.open(TARGET), bench.hold(apart.stubborn.call())

    async def close() -> Outcome:
        bench.begun.clear()
        running = asyncio.ensure_future(children.prepare(grip, bench.ledger(grip)))
        await bench.begun.wait()
        await children.close()
        return (await running)[0]

    assert isinstance(bench.run(close()), Errored)
