"""The reconciler while the external system cannot be asked, while the database is unreachable, and at its own end: no
job changes for any of it.
"""

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


# ---------------------------------------------------------------- it cannot be asked
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
def test_an_outside_that_cannot_be_asked_changes_no_job(harbour: HandoverBench, what: str) -> None:
    """Nor their history, nor since when one is missing; it is shown, with its reason, until it answers again."""
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
def test_one_answer_that_means_nothing_stops_no_other(harbour: HandoverBench, answer: Any) -> None:
    """It is said, with what to answer, and that job is looked at again; the external system is not down for it."""
    odd, fine = harbour.hand("odd", "fine")
    harbour.outside.known = {"odd": answer, "fine": Completed("v")}
    harbour.once()
    assert (harbour.state(odd), harbour.state(fine), harbour.next_check(odd)) == ("queued", "completed", 15.0)
    assert (harbour.told_of().failures, harbour.told(ExternalCheckFailed)) == (0, [])
    (trouble,) = harbour.told(WorkerError)
    assert "Return InProgress, Completed, Failed or Gone" in str(trouble.error)


def test_an_answer_that_comes_too_late_for_the_lease_is_none(harbour: HandoverBench) -> None:
    """Another may be asking by then.

    The sentence says how long there was; an error of the external system's own keeps its own.
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


def test_the_questions_come_ever_later_while_nobody_answers(harbour: HandoverBench) -> None:
    """Twice as late each time, up to five minutes; the first answer ends that."""
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
    """When it was asked, while a reconciler was kept for so long; and what happens during the first question."""
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


def test_it_asks_every_so_often_and_seldom_while_the_outside_is_down(harbour: HandoverBench) -> None:
    """Whoever else becomes due meanwhile waits with the others."""
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


def test_it_looks_every_second_at_who_is_asked_to_stop(harbour: HandoverBench) -> None:
    """Also while the external system is down, and its checks are far away."""
    late, soon = harbour.hand("late", "soon")
    _raises(harbour.outside, ConnectionRefusedError("no route"))
    times_asked(harbour, 3)
    harbour.app.cancel(soon, by="olga")
    begun = harbour.store.inspect.now()
    assert times_asked(harbour, 1) == []
    assert (harbour.state(late), harbour.state(soon), harbour.get(soon).finished_at) == ("queued", "canceled", begun)


# ---------------------------------------------------------------- its end
class Thinking:
    """An outside that never comes to an answer; it says when it was asked."""

    def __init__(self, harbour: HandoverBench) -> None:
        self._begun = asyncio.Event()
        harbour.outside.meanwhile = [self._think]

    async def _think(self) -> None:
        self._begun.set()
        await asyncio.Event().wait()

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), 20)


def test_what_is_being_asked_about_is_given_back_at_the_end(harbour: HandoverBench) -> None:
    """Due at once, and in nobody's hands: whoever comes next asks anew."""
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


def test_what_was_only_just_adopted_is_given_back_unasked(harbour: HandoverBench) -> None:
    """The end came between the two."""
    (id,) = harbour.hand("a")
    store, context = InterceptedStore(harbour.store), harbour.context()
    context.find_store = lambda: cast(OpenStore, store)
    reconciler = harbour.reconciler(context=context)
    store.before = {"adopt": reconciler.stop}
    asyncio.run(reconciler.run())
    assert (harbour.outside.asked, harbour.next_check(id)) == ([], 0.0)


def test_a_worker_that_ends_gives_back_what_it_asks_about(harbour: HandoverBench) -> None:
    """And one that runs asks by itself."""
    (id,) = harbour.hand("a")

    async def work() -> None:
        thinking = Thinking(harbour)
        async with run_worker(harbour.app.plan(name="w9")):
            await thinking.begun()
            assert harbour.last(id).lease_owner.startswith("w9#")

    asyncio.run(work())
    assert harbour.next_check(id) == 0.0


def test_a_database_that_is_away_ends_no_reconciler(harbour: HandoverBench) -> None:
    """The round is lost, the worker is told, and what was adopted is asked about again after its lease."""
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
