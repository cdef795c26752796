"""Ownership of handed-over executions: one reconciler asks at a time, and stale answers are refused."""

import asyncio
import threading
from collections import Counter
from typing import Any, cast

import pytest

from interlock import Completed, InProgress, Job, Lifecycle, Run
from interlock.core.outcome import Looked, Returned
from interlock.store import OpenStore
from interlock.telemetry.events import MoveRefused, WorkerError
from interlock.testing import Crashed
from interlock.testing.crash import RevocableStore
from tests.loops.reconciler_bench import MINE, HandoverBench

UNSTOPPABLE = Lifecycle(
    "unstoppable",
    transitions=[
        ("waiting", "claim", "doing"),
        ("waiting", "cancel", "stopped"),
        ("doing", "succeed", "done"),
        ("doing", "fail", "broken"),
    ],
)


# ---------------------------------------------------------------- old answers
def test_rule_35_what_another_has_moved_meanwhile_is_left_alone(harbour: HandoverBench) -> None:
    """The answer came after the lease, and another had already heard it: the refusal is a remark, and no trouble."""
    harbour.fetch.commit(harbour.ledger.write)
    late, fine = harbour.hand("late", "fine")
    harbour.outside.known = {"late": Completed("old"), "fine": Completed("fine")}

    def take_over() -> None:
        harbour.advance(31)
        (lease,) = [
            one
            for one in harbour.store.leases.adopt("another", ["fetch"], 30.0, 9, external=True)
            if one.job.id == late
        ]
        harbour.move(lease, Returned('"new"', boundary=False, begins=True))

    harbour.outside.meanwhile = [take_over]
    harbour.once()
    assert (harbour.get(late).result, harbour.ledger.rows) == ("new", [])
    assert (harbour.remarks(late), harbour.remarks(fine)) == (["refused"], ["refused"])
    assert [event.job_id for event in harbour.told(MoveRefused)] == sorted([late, fine])
    assert harbour.told(WorkerError) == []
    assert harbour.last(fine).lease_owner == "another"
    harbour.once(after=31)
    assert (harbour.get(fine).result, harbour.ledger.rows) == ("fine", ["fine"])


@pytest.mark.parametrize("answer", [Completed("old"), InProgress(1, 2), None], ids=repr)
def test_rule_01_a_reconciler_that_adopted_again_cannot_let_its_own_old_answer_through(
    harbour: HandoverBench, answer: Any
) -> None:
    """The same name, the same attempt: only the holder tells the two apart."""
    harbour.fetch.commit(lambda tx, job, value: pytest.fail("the old answer was committed"))
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": answer} if answer else {}

    def again() -> None:
        harbour.advance(31)
        (lease,) = harbour.store.leases.adopt(MINE, ["fetch"], 30.0, 9, external=True)
        harbour.move(lease, Looked(40.0, seen=True))

    harbour.outside.meanwhile = [again]
    harbour.once()
    assert (harbour.state(id), harbour.next_check(id), harbour.last(id).missing_since) == ("queued", 40.0, None)
    assert (harbour.remarks(id), harbour.last(id).holder) == (["refused"], 3)


def test_an_answer_after_the_lease_is_taken_while_nobody_else_came(harbour: HandoverBench) -> None:
    """Rule 3: possession, not time, is the fence."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("v")}
    harbour.outside.meanwhile = [lambda: harbour.advance(600)]
    harbour.once()
    assert harbour.state(id) == "completed"


def test_the_work_of_a_killed_reconciler_is_asked_about_after_its_lease(harbour: HandoverBench) -> None:
    """And not before. The job is none the worse: the work went on elsewhere."""
    (id,) = harbour.hand("a")
    assert len(harbour.store.leases.adopt("killed", ["fetch"], 30.0, 9, external=True)) == 1
    harbour.outside.known = {"a": Completed("v")}
    assert [harbour.once(after=seconds) for seconds in (0, 29.9, 0.1)] == [0, 0, 1]
    job = harbour.get(id)
    assert (job.state, job.tries_left, job.lease_losses, job.attempt) == ("completed", 3, 0, 1)


# ---------------------------------------------------------------- many of them
def test_two_reconcilers_never_ask_about_one_execution_at_a_time(harbour: HandoverBench) -> None:
    """What one is asking about, the other does not get."""
    kind = harbour.declare("two", batch=1)
    harbour.hand("a", "b", kind=kind)
    harbour.outside.known = {"a": InProgress(), "b": InProgress()}
    others = [harbour.reconciler(kind, owner=f"w{n}#boot") for n in (2, 3)]
    looked: list[int] = []

    async def meanwhile() -> None:
        looked.extend([await other.run_once() for other in others])

    harbour.outside.meanwhile = [meanwhile]
    assert harbour.once(harbour.reconciler(kind)) == 1
    assert looked == [1, 0]
    assert sorted(name for asked in harbour.outside.asked for name in asked) == ["a", "b"]


def test_two_at_once_ask_about_each_execution_once(harbour: HandoverBench) -> None:
    """In threads of their own, on one database."""
    kind = harbour.declare("two", batch=7)
    harbour.hand(*(f"n{n}" for n in range(60)), kind=kind)
    harbour.outside.known = {f"n{n}": InProgress() for n in range(60)}

    def work(owner: str) -> None:
        reconciler = harbour.reconciler(kind, owner=owner)
        while asyncio.run(reconciler.run_once()):
            pass

    threads = [threading.Thread(target=work, args=(f"w{n}#boot",)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(name for asked in harbour.outside.asked for name in asked) == dict.fromkeys(harbour.outside.known, 1)


def test_every_one_is_asked_about_before_any_is_asked_about_twice(harbour: HandoverBench) -> None:
    """A thousand of them, a hundred at a time: who was looked at longest ago comes first."""
    names = [f"n{n}" for n in range(1000)]
    harbour.hand(*names)
    harbour.outside.known = {name: InProgress() for name in names}
    reconciler = harbour.reconciler()
    for _ in range(10):
        assert harbour.once(reconciler, after=15) == 100
    assert Counter(name for asked in harbour.outside.asked for name in asked) == dict.fromkeys(names, 1)
    for _ in range(10):
        harbour.once(reconciler, after=15)
    assert {*Counter(name for asked in harbour.outside.asked for name in asked).values()} == {2}


def test_rule_05_a_maintenance_never_touches_handed_over_work(harbour: HandoverBench) -> None:
    """However overdue, whether it rests or its reconciler is dead; nor is it stuck."""
    harbour.hand("rests", "held")
    harbour.store.leases.adopt("killed", ["fetch"], 30.0, 1, external=True)
    harbour.advance(86_400)
    before = harbour.place.raw.dump()
    assert (harbour.maintenance().run_once(), harbour.store.inspect.stuck(10)) == (0, [])
    assert harbour.place.raw.dump() == before
    assert (harbour.told_of().overdue, harbour.told_of().late) == (86_400.0, True)


# ---------------------------------------------------------------- asked to stop
def test_cancel_requested_job_ends_before_its_next_check(harbour: HandoverBench) -> None:
    """The external system is told first, by the id it knows; the end is by whoever asked."""
    states: list[str] = []
    harbour.fetch.on_cancel(harbour.outside.cancel)
    stop, other = harbour.hand("stop", "other", check_in=600)
    harbour.app.cancel(stop, by="olga", reason="enough")
    harbour.outside.meanwhile = [lambda: states.append(harbour.state(stop))]
    assert asyncio.run(harbour.reconciler().cancel_requested()) == 1
    assert (states, harbour.outside.told, harbour.outside.asked) == (["queued"], ["stop"], [])
    assert (harbour.state(stop), harbour.state(other), harbour.last(stop).ended_by) == ("canceled", "queued", "cancel")
    entry = harbour.store.inspect.history(stop)[-1]
    assert (entry.actor, entry.reason) == ("operator:olga", "enough")


def test_job_without_on_cancel_is_cancelled_directly(harbour: HandoverBench) -> None:
    """Not every outside can be told. One that is due is not asked about any more, either."""
    first, second = harbour.hand("a", "b")
    harbour.app.cancel(first, by="olga")
    harbour.app.cancel(second, by="olga")
    assert asyncio.run(harbour.reconciler().check_due()) == 2
    assert (harbour.state(first), harbour.state(second), harbour.outside.asked) == ("canceled", "canceled", [])


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no route"), asyncio.CancelledError(), SystemExit(3)], ids=repr
)
def test_the_outside_is_told_again_after_it_could_not_be(harbour: HandoverBench, error: BaseException) -> None:
    """With the next check; the job is not cancelled before, and no other waits for it."""
    harbour.fetch.on_cancel(harbour.outside.cancel)
    (id,) = harbour.hand("a")
    harbour.app.cancel(id, by="olga")
    harbour.outside.error = error
    reconciler = harbour.reconciler()
    harbour.once(reconciler)
    assert (harbour.state(id), harbour.outside.told, harbour.outside.asked) == ("queued", ["a"], [])
    assert [event.where for event in harbour.told(WorkerError)] == ["on_cancel of fetch"]
    harbour.outside.error = None
    assert [harbour.once(reconciler, after=seconds) for seconds in (0, 14.9, 0.1)] == [0, 0, 1]
    assert (harbour.state(id), harbour.outside.told, harbour.outside.asked) == ("canceled", ["a", "a"], [])


def test_a_job_whose_outside_cannot_be_told_is_followed_all_the_same(harbour: HandoverBench) -> None:
    """It may complete, fail or go missing as any other; its history says once why it was not cancelled."""
    harbour.fetch.on_cancel(harbour.outside.cancel)
    (id,) = harbour.hand("a")
    harbour.app.cancel(id, by="olga")
    reconciler = harbour.reconciler()
    harbour.outside.known = {"a": InProgress(1, 2)}
    harbour.outside.meanwhile = [_untellable, _untellable, lambda: None, _untellable, _untellable, lambda: None]
    harbour.once(reconciler)
    harbour.once(reconciler, after=15)
    assert (harbour.state(id), harbour.outside.told, harbour.outside.asked) == ("downloading", ["a", "a"], [["a"]])
    harbour.outside.known = {"a": Completed("v")}
    harbour.once(reconciler, after=15)
    harbour.once(reconciler, after=15)
    assert (harbour.state(id), [name for name in harbour.remarks(id) if name == "cancel_failed"]) == (
        "completed",
        ["cancel_failed"],
    )


def _untellable() -> None:
    raise ConnectionRefusedError("it does not cancel")


def test_the_outside_is_told_again_after_a_crash(harbour: HandoverBench) -> None:
    """It was told, and nobody could write that down: whoever takes over cannot know."""
    harbour.fetch.on_cancel(harbour.outside.cancel)
    (id,) = harbour.hand("a")
    harbour.app.cancel(id, by="olga")
    handle = RevocableStore(harbour.store)
    context = harbour.context()
    context.find_store = lambda: cast(OpenStore, handle)
    harbour.outside.meanwhile = [lambda: setattr(handle, "revoked", Crashed("It died."))]
    harbour.once(harbour.reconciler(context=context))
    assert (harbour.state(id), harbour.outside.told) == ("queued", ["a"])
    assert harbour.once(after=29.9) == 0
    assert harbour.once(after=0.1) == 1
    assert (harbour.state(id), harbour.outside.told) == ("canceled", ["a", "a"])


def test_the_hook_of_the_cancelled_state_runs_in_the_transaction_of_the_cancel(harbour: HandoverBench) -> None:
    """If it raises, nothing of it is written, and all of it is tried again."""
    broken = [True]
    harbour.fetch.on_cancel(harbour.outside.cancel)

    @harbour.fetch.on_enter("canceled")
    def enter(tx: Any, job: Job) -> None:
        harbour.ledger.write(tx, job, job.state)
        if broken:
            broken.clear()
            raise RuntimeError("the hook is broken")

    (id,) = harbour.hand("a")
    harbour.app.cancel(id, by="olga")
    harbour.once()
    assert (harbour.state(id), harbour.ledger.rows, harbour.remarks(id)) == (
        "queued",
        [],
        ["cancel_requested", "hook_failed"],
    )
    harbour.once(after=15)
    assert (harbour.state(id), harbour.ledger.rows, harbour.outside.told) == ("canceled", ["canceled"], ["a", "a"])


def test_what_cannot_be_cancelled_goes_on(harbour: HandoverBench) -> None:
    """A state that does not allow cancel: it is looked at as ever, and may succeed."""
    kind = harbour.declare("paint", UNSTOPPABLE)
    kind.on_cancel(harbour.outside.cancel)
    (id,) = harbour.hand("a", kind=kind)
    harbour.app.cancel(id, by="olga")
    reconciler = harbour.reconciler(kind)
    harbour.outside.known = {"a": InProgress(1, 2)}
    assert [harbour.once(reconciler, after=seconds) for seconds in (0, 14.9, 0.1, 14.9, 0.1)] == [1, 0, 1, 0, 1]
    harbour.outside.known = {"a": Completed("v")}
    harbour.once(reconciler, after=15)
    assert (harbour.state(id), harbour.outside.told, len(harbour.outside.asked)) == ("done", [], 4)


def test_no_more_are_stopped_at_once_than_a_batch(harbour: HandoverBench) -> None:
    """The rest a moment later, the longest asked first."""
    kind = harbour.declare("two", batch=2)
    kind.on_cancel(harbour.outside.cancel)
    ids = dict(zip("abc", harbour.hand("a", "b", "c", kind=kind, check_in=600), strict=True))
    for name in "cab":
        harbour.advance(1)
        harbour.app.cancel(ids[name], by="olga")
    reconciler = harbour.reconciler(kind)
    assert [asyncio.run(reconciler.cancel_requested()) for _ in range(3)] == [2, 1, 0]
    assert (sorted(harbour.outside.told[:2]), harbour.outside.told[2]) == (["a", "c"], "b")


# ---------------------------------------------------------------- past the commit
def finished(harbour: HandoverBench) -> list[str]:
    """Gives the kind a finish function, and notes what it was called with."""
    calls: list[str] = []

    @harbour.fetch.finish
    async def tell(run: Run, value: str) -> None:
        calls.append(value)

    return calls


def test_what_follows_the_commit_of_outside_work_is_run_by_the_worker(harbour: HandoverBench) -> None:
    """It is given over as it was committed, with its value and in its holder's name."""
    finished(harbour)
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("v")}
    harbour.once()
    (lease,) = harbour.committed_here
    assert (lease.job.id, lease.status, lease.result, lease.crashes, lease.holder) == (
        id,
        "COMMITTED",
        '"v"',
        0,
        harbour.last(id).holder,
    )
    assert (harbour.state(id), harbour.walk(id), harbour.last(id).status) == (
        "downloading",
        ["start downloading"],
        "COMMITTED",
    )


def test_rule_30_only_crashes_after_the_commit_are_counted(harbour: HandoverBench) -> None:
    """However often it was looked at: what follows its commit is run as often as its kind has tries, and then
    given up.
    """
    finished(harbour)
    (id,) = harbour.hand("a")
    for answer in [*[InProgress()] * 8, Completed("v")]:
        harbour.outside.known = {"a": answer}
        harbour.once(after=15)
    taken = []
    for _ in range(4):
        harbour.advance(31)
        harbour.maintenance().run_once()
        taken.append((len(harbour.finished), harbour.last(id).status))
    assert taken == [(1, "COMMITTED"), (2, "COMMITTED"), (3, "COMMITTED"), (3, "DONE")]
    assert harbour.store.inspect.history(id)[-1].reason == "finish_failed"
