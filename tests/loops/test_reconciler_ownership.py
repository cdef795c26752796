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


# ---------------------------------------------------------------- stale answers
def test_rule_35_job_moved_by_another_reconciler_is_left_alone(harbour: HandoverBench) -> None:
    """The answer came after the lease expired, and another reconciler had moved the job. The refusal is recorded in the
    audit and is not an error.
    """
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
def test_rule_01_old_answer_of_a_reconciler_that_adopted_again_is_refused(harbour: HandoverBench, answer: Any) -> None:
    """Name and attempt are the same; only the holder number differs."""
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


def test_answer_after_the_lease_counts_if_no_other_reconciler_adopted_the_job(harbour: HandoverBench) -> None:
    """Rule 3: the fence is the holder number, not the time."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("v")}
    harbour.outside.meanwhile = [lambda: harbour.advance(600)]
    harbour.once()
    assert harbour.state(id) == "completed"


def test_job_of_a_killed_reconciler_is_checked_after_its_lease(harbour: HandoverBench) -> None:
    """It is not checked before. The job keeps its tries, because the external work continued."""
    (id,) = harbour.hand("a")
    assert len(harbour.store.leases.adopt("killed", ["fetch"], 30.0, 9, external=True)) == 1
    harbour.outside.known = {"a": Completed("v")}
    assert [harbour.once(after=seconds) for seconds in (0, 29.9, 0.1)] == [0, 0, 1]
    job = harbour.get(id)
    assert (job.state, job.tries_left, job.lease_losses, job.attempt) == ("completed", 3, 0, 1)


# ---------------------------------------------------------------- several reconcilers
def test_two_reconcilers_never_check_one_execution_at_the_same_time(harbour: HandoverBench) -> None:
    """While one reconciler asks, the other cannot adopt the execution."""
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


def test_two_concurrent_reconcilers_check_each_execution_once(harbour: HandoverBench) -> None:
    """Each runs in its own thread, on one database."""
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


def test_every_job_is_checked_before_any_is_checked_twice(harbour: HandoverBench) -> None:
    """1000 jobs are checked in batches of 100, the least recently checked first."""
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


def test_rule_05_maintenance_never_touches_handed_over_work(harbour: HandoverBench) -> None:
    """This holds however overdue the check is, and even if the reconciler is dead. Such a job does not count as stuck."""
    harbour.hand("rests", "held")
    harbour.store.leases.adopt("killed", ["fetch"], 30.0, 1, external=True)
    harbour.advance(86_400)
    before = harbour.place.raw.dump()
    assert (harbour.maintenance().run_once(), harbour.store.inspect.stuck(10)) == (0, [])
    assert harbour.place.raw.dump() == before
    assert (harbour.told_of().overdue, harbour.told_of().late) == (86_400.0, True)


# ---------------------------------------------------------------- cancel requests
def test_job_with_a_cancel_request_ends_before_its_next_check(harbour: HandoverBench) -> None:
    """`on_cancel` runs first, with the external id. The audit names the operator as the actor."""
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
    """A job with a cancel request is not checked any more, even if its check is due."""
    first, second = harbour.hand("a", "b")
    harbour.app.cancel(first, by="olga")
    harbour.app.cancel(second, by="olga")
    assert asyncio.run(harbour.reconciler().check_due()) == 2
    assert (harbour.state(first), harbour.state(second), harbour.outside.asked) == ("canceled", "canceled", [])


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no route"), asyncio.CancelledError(), SystemExit(3)], ids=repr
)
def test_failed_on_cancel_is_retried(harbour: HandoverBench, error: BaseException) -> None:
    """It is retried with the next check. The job is not cancelled before that."""
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


def test_job_with_a_failing_on_cancel_is_still_checked(harbour: HandoverBench) -> None:
    """It may complete, fail or go missing like any other job. Its history says once why it was not cancelled."""
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


def test_on_cancel_runs_again_after_a_crash(harbour: HandoverBench) -> None:
    """The crash came before the cancellation was stored, so the next reconciler cannot know that `on_cancel` ran."""
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


def test_hook_on_the_cancelled_state_runs_in_the_transaction_of_the_cancellation(harbour: HandoverBench) -> None:
    """If it raises, the transaction is rolled back and the whole cancellation is retried."""
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


def test_job_that_cannot_be_cancelled_continues(harbour: HandoverBench) -> None:
    """Its state does not allow `cancel`. It is checked as before and may succeed."""
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


def test_cancellations_run_in_batches(harbour: HandoverBench) -> None:
    """The oldest requests come first."""
    kind = harbour.declare("two", batch=2)
    kind.on_cancel(harbour.outside.cancel)
    ids = dict(zip("abc", harbour.hand("a", "b", "c", kind=kind, check_in=600), strict=True))
    for name in "cab":
        harbour.advance(1)
        harbour.app.cancel(ids[name], by="olga")
    reconciler = harbour.reconciler(kind)
    assert [asyncio.run(reconciler.cancel_requested()) for _ in range(3)] == [2, 1, 0]
    assert (sorted(harbour.outside.told[:2]), harbour.outside.told[2]) == (["a", "c"], "b")


# ---------------------------------------------------------------- after the commit
def finished(harbour: HandoverBench) -> list[str]:
    """Give the kind a finish function; return the list of its calls."""
    calls: list[str] = []

    @harbour.fetch.finish
    async def tell(run: Run, value: str) -> None:
        calls.append(value)

    return calls


def test_worker_runs_finish_of_external_work(harbour: HandoverBench) -> None:
    """The reconciler passes the committed execution to its worker, with its value and its holder number."""
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
    """The number of checks before the commit does not count. Finish runs as often as the kind has tries and is then
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
