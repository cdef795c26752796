"""Slots after a commit: the death of a child in finish, and the time from which a lease is trusted."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from interlock.core.outcome import Finished, Outcome
from interlock.core.sleeper import SystemSleeper
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution
from interlock.engine.reporter import Reporter
from interlock.store import OpenStore
from interlock.worker.assembly import run_worker
from interlock.worker.attempt import Attempts
from interlock.worker.capacity import must_run_alone
from interlock.worker.slots import Slots
from interlock.worker.subprocess.child_process import Died
from tests.loops.test_slots import Shop, shop
from tests.loops.worker_doubles import InterceptedStore

__all__ = ["shop"]


# ---------------------------------------------------------------- death of a child in finish
class Deaths:
    """Fake attempts and a fake reporter: each finish returns the next death, and outcomes are recorded."""

    def __init__(self, deaths: list[Died]) -> None:
        self.deaths = deaths
        self.alone: list[bool] = []
        self.outcomes: list[Outcome] = []
        self.told = asyncio.Event()

    async def finish(self, execution: HeldExecution) -> BaseException | None:
        self.alone.append(must_run_alone(execution))
        return self.deaths.pop(0) if self.deaths else None

    async def pause(self, execution: HeldExecution, seconds: float) -> None:
        """Return at once."""

    def post(self, execution: HeldExecution, outcome: Outcome, done: object) -> None:
        self.outcomes.append(outcome)
        self.told.set()


@pytest.mark.parametrize(("deaths", "alone", "given_up"), [
    ([Died("a", began=True, shared=True), Died("b", began=True)], [False, True], True),
    ([Died("a", began=True, shared=True)], [False, True], False),
    ([Died("a", began=True, ended=True)], [False, False], False),
])  # fmt: skip
def test_rule_30_death_in_a_shared_process_is_charged_only_if_finish_dies_alone_too(
    shop: Shop,
    deaths: list[Died],
    alone: list[bool],
    given_up: bool,
) -> None:
    """The kind has three tries, and finish has killed its worker once. After one death in a group and one alone it is
    given up.
    """
    shop.committed_by_the_dead(1)
    (lease,) = shop.store.leases.adopt("me#1", ["bill"], 30.0, 1)
    context = WorkerContext("me#1", lambda: shop.store, {"bill": shop.bill.spec})

    async def scene() -> Deaths:
        there = Deaths(list(deaths))
        slots = Slots(context, cast(Attempts, there), cast(Reporter, there), lambda _: None, size=1, threads=1)
        slots.take(lease, shop.bill.spec.lifecycle, context.sleeper.monotonic(), separate_process=True)
        await there.told.wait()
        return there

    there = asyncio.run(scene())
    assert there.alone == alone
    assert [outcome.error is not None for outcome in there.outcomes if isinstance(outcome, Finished)] == [given_up]


class Outage(SystemSleeper):
    """A sleeper during which the lease is renewed, or taken by another worker, after a few sleeps."""

    def __init__(self, *, taken: bool) -> None:
        self.taken = taken
        self.looks = 0
        self.execution: HeldExecution | None = None

    async def asleep(self, seconds: float, /) -> None:
        self.looks += 1
        if self.looks == 3 and self.execution is not None:
            self.execution.lease_doubtful = not self.taken
            self.execution.asked_at = self.monotonic()
        await asyncio.sleep(0)


@pytest.mark.parametrize("taken", [False, True])
def test_rule_3_finish_stopped_by_an_outage_runs_again_in_the_same_worker(shop: Shop, taken: bool) -> None:
    """It does not run again if another worker has taken the job. The outage costs no try."""
    shop.committed_by_the_dead(1)
    (lease,) = shop.store.leases.adopt("me#1", ["bill"], 30.0, 1)
    sleeper = Outage(taken=taken)
    context = WorkerContext("me#1", lambda: shop.store, {"bill": shop.bill.spec}, sleeper=sleeper)

    class Attempt(Deaths):
        async def finish(self, execution: HeldExecution) -> BaseException | None:
            self.alone.append(False)
            if len(self.alone) == 1:
                sleeper.execution, execution.lease_doubtful = execution, True
                execution.asked_at -= 60
                execution.halt("lost")
            return None

    async def scene() -> tuple[Deaths, int]:
        there = Attempt([])
        slots = Slots(context, cast(Attempts, there), cast(Reporter, there), lambda _: None, size=1, threads=1)
        slots.take(lease, shop.bill.spec.lifecycle, sleeper.monotonic(), separate_process=True)
        (execution,) = slots.executions.values()
        assert execution.task is not None
        await execution.task
        return there, execution.failures

    there, failures = asyncio.run(scene())
    assert (len(there.alone), failures) == (1 if taken else 2, 1)
    assert there.outcomes == ([] if taken else [Finished()])


# ---------------------------------------------------------------- from when a lease is trusted
@pytest.mark.parametrize("verb", ["claim", "adopt", "commit by the reconciler"])
def test_lease_is_trusted_from_the_time_of_its_request(shop: Shop, verb: str) -> None:
    """A slow database may answer when most of the lease is over; another worker may adopt the execution soon after."""
    sleeper, intercepted = Slow(), InterceptedStore(shop.store)
    if verb == "adopt":
        shop.committed_by_the_dead(1)
    else:
        (shop.bill if verb == "claim" else shop.order).enqueue(1)
    name = "move" if verb.startswith("commit") else verb
    part = {"claim": "queue", "adopt": "leases", "move": "transitions"}[name]
    real = getattr(getattr(shop.store, part), name)
    trusted: list[tuple[float, float]] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        asked, answer = sleeper.monotonic(), real(*args, **kwargs)
        if answer if name != "move" else args[0][0].to_status == "COMMITTED":
            sleeper.late += 20
            trusted.append((asked, asked + 5))
        return answer

    setattr(getattr(intercepted, part), name, slow)
    plan = replace(shop.app.plan(), find_store=lambda: cast(OpenStore, intercepted), sleeper=sleeper)

    async def scene() -> float:
        shop.gate = asyncio.Event()
        async with run_worker(plan) as worker:
            await shop.crowded.wait()
            (execution,) = worker._slots.executions.values()
            shop.gate.set()
            return execution.asked_at

    asked_at = asyncio.run(scene())
    ((earliest, latest),) = trusted[:1]
    assert earliest - 5 <= asked_at <= latest


class Slow(SystemSleeper):
    """A clock that can be made to jump."""

    late = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late
