"""`complete`: a provider's callback completes the job, as its reconciler would have."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from interlock import Completed, External, InProgress, Job, PayloadError, Run, TransitionRefused
from interlock.core.outcome import Looked
from interlock.engine.context import SettleContext
from interlock.reconcile.callback import complete
from tests.loops.handler_bench import DELIVERY, DOWNLOAD, Bench
from tests.loops.reconciler_bench import HandoverBench


class ScriptedSleeper:
    """A sleeper that advances the clock instead of sleeping, and runs a function during each sleep."""

    def __init__(self, harbour: HandoverBench, *happens: Callable[[], object]) -> None:
        self.harbour, self.happens, self.slept = harbour, list(happens), 0.0

    def monotonic(self) -> float:
        return self.harbour.sleeper.monotonic()

    def sleep(self, seconds: float, /) -> None:
        self.slept += seconds
        self.harbour.advance(seconds)
        if self.happens:
            self.happens.pop(0)()

    async def asleep(self, seconds: float, /) -> None:
        self.sleep(seconds)


def call(harbour: HandoverBench, id: str, value: object, sleeper: ScriptedSleeper) -> bool:
    spec = harbour.fetch.spec
    context = SettleContext("callback#1", lambda: harbour.store, {spec.name: spec}, sleeper=sleeper)
    return complete(context, spec, id, value)


# ---------------------------------------------------------------- the call
def test_callback_completes_the_named_job(harbour: HandoverBench) -> None:
    """The callback does not wait for the next check. It runs the commit function and takes both transitions; the
    reconciler does not ask about the job again.
    """
    harbour.fetch.commit(harbour.ledger.write)
    named, other = harbour.hand("named", "other", check_in=600)
    assert harbour.fetch.complete("named", "film") is True
    assert (harbour.get(named).state, harbour.get(named).result, harbour.state(other)) == (
        "completed",
        "film",
        "queued",
    )
    assert (harbour.walk(named), harbour.ledger.rows) == (["start downloading", "succeed completed"], ["film"])
    assert harbour.store.inspect.history(named)[-1].actor.startswith("callback#")
    assert harbour.once(after=15) == 0


def test_second_callback_changes_nothing(harbour: HandoverBench) -> None:
    """A callback for an unknown id changes nothing either."""
    harbour.hand("a")
    assert harbour.fetch.complete("a", "first") is True
    before = harbour.place.raw.dump()
    assert (harbour.fetch.complete("a", "second"), harbour.fetch.complete("unheard of", "v")) == (False, False)
    assert harbour.place.raw.dump() == before


def test_callback_completes_every_job_with_the_same_external_id(harbour: HandoverBench) -> None:
    """Two jobs wait for the same id."""
    ids = harbour.hand("same", "same", "other")
    assert harbour.fetch.complete("same", "film") is True
    assert [harbour.state(id) for id in ids] == ["completed", "completed", "queued"]


def test_callback_has_an_async_version(harbour: HandoverBench) -> None:
    (id,) = harbour.hand("a")
    assert asyncio.run(harbour.fetch.acomplete("a", "film")) is True
    assert harbour.state(id) == "completed"


def test_callback_does_not_wait_if_the_job_is_not_leased(harbour: HandoverBench) -> None:
    """No reconciler has leased the job, so the call never sleeps."""
    harbour.hand("a")
    sleeper = ScriptedSleeper(harbour)
    assert (call(harbour, "a", "film", sleeper), call(harbour, "a", "film", sleeper), sleeper.slept) == (
        True,
        False,
        0.0,
    )


# ---------------------------------------------------------------- refused callbacks
def test_value_of_another_type_is_refused_and_changes_nothing(harbour: HandoverBench) -> None:
    harbour.hand("a")
    before = harbour.place.raw.dump()
    with pytest.raises(PayloadError):
        harbour.fetch.complete("a", 7)
    assert harbour.place.raw.dump() == before


def test_callback_is_refused_if_the_state_does_not_allow_succeed(harbour: HandoverBench) -> None:
    """The job stays unchanged, and the reconciler checks it again."""
    kind = harbour.declare("deliver", DELIVERY)
    (id,) = harbour.hand("a", kind=kind)
    with pytest.raises(TransitionRefused, match="allows `succeed` only from"):
        kind.complete("a", "film")
    assert harbour.state(id) == "CLAIMED"
    harbour.outside.known = {"a": InProgress()}
    assert harbour.once(harbour.reconciler(kind), after=5) == 1


def test_error_of_the_commit_function_is_raised_and_the_job_is_checked_again(harbour: HandoverBench) -> None:
    """The transaction is rolled back, and the job keeps its tries."""
    errors = [ConnectionResetError("no disk")]

    @harbour.fetch.commit
    def record(tx: Any, job: Job, value: str) -> None:
        harbour.ledger.write(tx, job, value)
        if errors:
            raise errors.pop()

    (id,) = harbour.hand("a")
    with pytest.raises(ConnectionResetError, match="no disk"):
        harbour.fetch.complete("a", "film")
    assert (harbour.state(id), harbour.get(id).tries_left, harbour.ledger.rows) == ("queued", 3, [])
    harbour.outside.known = {"a": Completed("film")}
    assert [harbour.once(after=seconds) for seconds in (4.9, 0.1)] == [0, 1]
    assert (harbour.state(id), harbour.ledger.rows) == ("completed", ["film"])


# ---------------------------------------------------------------- beside a reconciler
def test_callback_waits_for_a_reconciler_that_is_checking_the_job(harbour: HandoverBench) -> None:
    """The reconciler returns the job, and the callback continues."""
    (id,) = harbour.hand("a")
    (lease,) = harbour.store.leases.adopt("rec", ["fetch"], 30.0, 9, external=True)
    sleeper = ScriptedSleeper(harbour, lambda: None, lambda: harbour.move(lease, Looked(15.0, seen=True)))
    assert call(harbour, "a", "film", sleeper) is True
    assert (harbour.get(id).result, sleeper.slept) == ("film", pytest.approx(0.025))


def test_first_of_callback_and_reconciler_completes_the_job(harbour: HandoverBench) -> None:
    """Here the reconciler completes it first."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("asked")}
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(harbour.fetch.complete("a", "called")))
    harbour.outside.meanwhile = [thread.start]
    harbour.once()
    thread.join()
    assert (answers, harbour.get(id).result) == ([False], "asked")


def test_callback_waits_for_a_dead_reconciler_until_its_lease_expires(harbour: HandoverBench) -> None:
    (id,) = harbour.hand("a")
    harbour.store.leases.adopt("dead", ["fetch"], 20.0, 9, external=True)
    sleeper = ScriptedSleeper(harbour)
    assert call(harbour, "a", "film", sleeper) is True
    assert (harbour.state(id), 20.0 <= sleeper.slept <= 20.5) == ("completed", True)


def test_callback_that_waits_too_long_raises_a_timeout(harbour: HandoverBench) -> None:
    """The job is unchanged, so the provider can call again."""
    (id,) = harbour.hand("a")
    harbour.store.leases.adopt("busy", ["fetch"], 600.0, 9, external=True)
    with pytest.raises(TimeoutError, match="A reconciler has leased 'a' of fetch for more than 30 s"):
        call(harbour, "a", "film", ScriptedSleeper(harbour))
    assert harbour.last(id).lease_owner == "busy"


# ---------------------------------------------------------------- with a worker
def fetching(bench: Bench, known: dict[str, Any]) -> tuple[Any, list[list[str]], list[str]]:
    """Declare a kind that hands over, reconciles with `known`, and has a finish; return it with its recorded calls."""
    asked, finished = list[list[str]](), list[str]()

    @bench.app.job(lifecycle=DOWNLOAD)
    async def fetch(run: Run, name: str) -> External[str]:
        return External(name)

    @fetch.reconcile(every=15)
    async def ask(ids: Any) -> Any:
        asked.append(list(ids))
        return {id: known[id] for id in ids if id in known}

    @fetch.finish
    async def tell(run: Run, value: str) -> None:
        finished.append(value)

    return fetch, asked, finished


def test_run_until_idle_also_reconciles(bench: Bench) -> None:
    """The worker asks once about each handed-over job, and finishes the completed ones."""
    fetch, asked, finished = fetching(bench, known := {"a": Completed("film"), "b": InProgress(1, 2)})
    first, second = bench.run_one(fetch, "a"), bench.run_one(fetch, "b")
    assert (first.state, second.state, finished, asked) == ("completed", "downloading", ["film"], [["a"], ["b"]])
    assert bench.walk(first) == ["start downloading", "succeed completed"]
    assert bench.again(second, 14).state == "downloading"
    known["b"] = Completed("more")
    assert (bench.again(second, 1).state, finished, len(asked)) == ("completed", ["film", "more"], 3)
    assert (bench.last(second).holder, bench.store.inspect.history(second.id)[-1].reason) == (3, None)


def test_worker_runs_finish_after_a_callback(bench: Bench) -> None:
    """The callback itself runs only the commit function."""
    fetch, _, finished = fetching(bench, {"a": InProgress()})
    job = bench.run_one(fetch, "a")
    assert fetch.complete("a", "film") is True
    assert (bench.app.get(job.id).state, bench.last(job).status, finished) == ("downloading", "COMMITTED", [])
    assert (bench.again(job, 4).state, finished) == ("downloading", [])
    assert (bench.again(job, 1).state, finished) == ("completed", ["film"])
