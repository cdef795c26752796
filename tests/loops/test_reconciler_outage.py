"""No job changes while the external system or the database is unreachable, or when the reconciler stops."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from interlock import Completed, InProgress
from interlock.operate.status import status
from interlock.store import OpenStore
from interlock.telemetry.events import ExternalCheckFailed, WorkerError
from interlock.worker.assembly import run_worker
from tests.loops.reconciler_bench import MINE, ExternalWork, HandoverBench, Walking
from tests.loops.worker_doubles import InterceptedStore, away, once


# ---------------------------------------------------------------- the external system is unreachable
async def _never() -> None:
    await asyncio.Event().wait()


def _raises(outside: ExternalWork, error: BaseException) -> None:
    outside.error = error


DOWN: dict[str, Any] = {
    "an error": lambda outside: _raises(outside, ConnectionRefusedError("no route")),
    "a timeout of its own": lambda outside: _raises(outside, TimeoutError("slow tracker")),
    "a cancellation of its own": lambda outside: _raises(outside, asyncio.CancelledError()),
    "an exit": lambda outside: _raises(outside, SystemExit(3)),
    "nothing": lambda outside: setattr(outside, "rubbish", 0),
    "a list": lambda outside: setattr(outside, "rubbish", ["a"]),
}


@pytest.mark.parametrize("what", DOWN)
def test_unreachable_external_system_changes_no_job(harbour: HandoverBench, what: str) -> None:
    """History and grace stay unchanged too. The status shows the outage and its reason until the system answers again."""
    (id,) = harbour.hand("a")
    harbour.once()
    jobs = {table: harbour.place.raw.lines(table) for table in ("jobs", "audit")}
    since = harbour.last(id).missing_since
    DOWN[what](harbour.outside)
    assert harbour.once(after=30) == 1
    assert {table: harbour.place.raw.lines(table) for table in jobs} == jobs
    assert (harbour.last(id).missing_since, harbour.next_check(id)) == (since, 30.0)
    told = harbour.told_of()
    assert (told.failures, told.down_since, status(harbour.store).healthy) == (1, harbour.store.inspect.now(), False)
    assert told.error
    assert harbour.told(WorkerError) == []
    assert [(event.kind, event.failures, event.again_in) for event in harbour.told(ExternalCheckFailed)] == [
        ("fetch", 1, 30.0)
    ]
    harbour.outside.error = harbour.outside.rubbish = None
    harbour.outside.known = {"a": Completed("v")}
    harbour.once(after=30)
    told = harbour.told_of()
    assert (harbour.state(id), told.failures, told.error, told.down_since, status(harbour.store).healthy) == (
        "completed",
        0,
        None,
        None,
        True,
    )


@pytest.mark.parametrize("answer", ["done", InProgress, 7], ids=str)
def test_invalid_answer_stops_no_other_job(harbour: HandoverBench, answer: Any) -> None:
    """The error says what to return, and the job is checked again. The system does not count as unreachable."""
    odd, fine = harbour.hand("odd", "fine")
    harbour.outside.known = {"odd": answer, "fine": Completed("v")}
    harbour.once()
    assert (harbour.state(odd), harbour.state(fine), harbour.next_check(odd)) == ("queued", "completed", 15.0)
    assert (harbour.told_of().failures, harbour.told(ExternalCheckFailed)) == (0, [])
    (trouble,) = harbour.told(WorkerError)
    assert "Return InProgress, Completed, Failed or Gone" in str(trouble.error)


def test_answer_after_the_time_limit_of_the_lease_is_ignored(harbour: HandoverBench) -> None:
    """Another reconciler may be asking by then.

    The error names the time limit; a timeout raised by the external system keeps its own text.
    """
    slow = harbour.declare("slow", lease=0.05)
    (id,) = harbour.hand("a", kind=slow)
    harbour.outside.meanwhile = [_never]
    harbour.once(harbour.reconciler(slow))
    assert (harbour.state(id), harbour.told_of("slow").error) == (
        "queued",
        "TimeoutError: no answer within 0.04 s, the limit for a lease of 0.05 s",
    )
    _raises(harbour.outside, TimeoutError("slow tracker"))
    harbour.once(harbour.reconciler(slow), after=60)
    assert (harbour.told_of("slow").error, harbour.told_of("slow").failures) == ("TimeoutError: slow tracker", 2)


def test_checks_back_off_while_the_external_system_is_unreachable(harbour: HandoverBench) -> None:
    """The pause doubles up to five minutes. The first answer resets it."""
    (id,) = harbour.hand("a")
    reconciler = harbour.reconciler()
    _raises(harbour.outside, ConnectionRefusedError("no route"))
    pauses = []
    for _ in range(7):
        harbour.once(reconciler)
        pauses.append(harbour.next_check(id))
        harbour.advance(pauses[-1])
    assert (pauses, harbour.told_of().failures, harbour.last(id).missing_since) == (
        [30, 60, 120, 240, 300, 300, 300],
        7,
        None,
    )
    harbour.outside.error, harbour.outside.known = None, {"a": InProgress()}
    harbour.once(reconciler)
    assert harbour.next_check(id) == 15
    _raises(harbour.outside, ConnectionRefusedError("no route"))
    harbour.once(reconciler, after=15)
    assert (harbour.next_check(id), harbour.told_of().failures) == (30, 1)


def times_asked(harbour: HandoverBench, seconds: float, *first: Callable[[], object]) -> list[float]:
    """Run a reconciler for this long, with functions that run during its first request; return the request times."""
    context, begun, times = harbour.context(), harbour.sleeper.at, list[float]()
    context.sleeper = walk = Walking(harbour, begun + seconds)
    walk.reconciler = harbour.reconciler(context=context)

    def note() -> None:
        if not times:
            for happens in first:
                happens()
        times.append(harbour.sleeper.at - begun)

    harbour.outside.meanwhile = [note] * 1000
    asyncio.run(walk.reconciler.run())
    return times


def test_reconciler_asks_at_its_interval_and_less_often_during_an_outage(harbour: HandoverBench) -> None:
    """A job that becomes due during the outage waits with the others."""
    harbour.hand("a")
    harbour.outside.known = {"a": InProgress(), "b": InProgress()}
    assert times_asked(harbour, 50) == [0, 15, 30, 45]
    _raises(harbour.outside, ConnectionRefusedError("no route"))
    harbour.advance(15)
    assert times_asked(harbour, 500, lambda: harbour.hand("b")) == [0, 30, 90, 210, 450]
    assert (harbour.told_of().failures, [sorted(ids) for ids in harbour.outside.asked[4:]]) == (
        5,
        [["a"], *[["a", "b"]] * 4],
    )


def test_cancel_requests_are_read_every_second(harbour: HandoverBench) -> None:
    """This also holds while the external system is unreachable and the next check is far away."""
    late, soon = harbour.hand("late", "soon")
    _raises(harbour.outside, ConnectionRefusedError("no route"))
    times_asked(harbour, 3)
    harbour.app.cancel(soon, by="olga")
    begun = harbour.store.inspect.now()
    assert times_asked(harbour, 1) == []
    assert (harbour.state(late), harbour.state(soon), harbour.get(soon).finished_at) == ("queued", "canceled", begun)


# ---------------------------------------------------------------- the reconciler stops
class Thinking:
    """An external system that never answers and signals when it was asked."""

    def __init__(self, harbour: HandoverBench) -> None:
        self._begun = asyncio.Event()
        harbour.outside.meanwhile = [self._think]

    async def _think(self) -> None:
        self._begun.set()
        await asyncio.Event().wait()

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), 20)


def test_stopped_reconciler_returns_the_jobs_it_is_checking(harbour: HandoverBench) -> None:
    """They are due at once, so the next reconciler checks them."""
    (id,) = harbour.hand("a")

    async def work() -> None:
        thinking = Thinking(harbour)
        reconciler = harbour.reconciler()
        task = asyncio.ensure_future(reconciler.run())
        await thinking.begun()
        assert harbour.last(id).lease_owner == MINE
        reconciler.stop()
        done, _ = await asyncio.wait([task], timeout=20)
        assert done

    asyncio.run(work())
    assert (harbour.next_check(id), harbour.state(id), harbour.told_of().failures) == (0.0, "queued", 0)


def test_reconciler_stopped_after_adopting_returns_the_job_unchecked(harbour: HandoverBench) -> None:
    """The stop comes between adoption and request."""
    (id,) = harbour.hand("a")
    store, context = InterceptedStore(harbour.store), harbour.context()
    context.find_store = lambda: cast(OpenStore, store)
    reconciler = harbour.reconciler(context=context)
    store.before = {"adopt": reconciler.stop}
    asyncio.run(reconciler.run())
    assert (harbour.outside.asked, harbour.next_check(id)) == ([], 0.0)


def test_stopped_worker_returns_the_jobs_it_is_checking(harbour: HandoverBench) -> None:
    """A running worker runs its reconciler itself."""
    (id,) = harbour.hand("a")

    async def work() -> None:
        thinking = Thinking(harbour)
        async with run_worker(harbour.app.plan(name="w9")):
            await thinking.begun()
            assert harbour.last(id).lease_owner.startswith("w9#")

    asyncio.run(work())
    assert harbour.next_check(id) == 0.0


def test_unreachable_database_does_not_end_the_reconciler(harbour: HandoverBench) -> None:
    """The round fails, the worker learns of the outage, and the adopted job is checked again after its lease."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("v")}
    store, context = InterceptedStore(harbour.store), harbour.context()
    context.find_store = lambda: cast(OpenStore, store)
    reconciler = harbour.reconciler(context=context)
    store.before = {"recall": once(away()), "report_check": once(away())}
    harbour.once(reconciler)
    assert (harbour.state(id), context.database_down.is_set(), len(harbour.told(WorkerError))) == ("queued", True, 2)
    harbour.once(reconciler, after=31)
    assert harbour.state(id) == "completed"
