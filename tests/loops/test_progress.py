"""Progress that a handler reports reaches the database within a second, whatever its lease."""

from itertools import pairwise
from typing import Any, cast

import pytest

from interlock import App, Run, SyncRun, Tx
from interlock.engine.context import WorkerContext
from interlock.engine.held_execution import HeldExecution
from interlock.store import OpenStore
from interlock.store.types import Lease, WorkerFacts
from interlock.worker.heartbeat import PROGRESS_INTERVAL, LeaseRenewer
from tests.contract.kit import LIFECYCLES, claimed
from tests.loops.handler_bench import Bench
from tests.loops.worker_doubles import InstantSleeper, InterceptedStore


class Pauses:
    """The stop event of a worker: each wait runs the next action at once, and the worker stops after the last."""

    def __init__(self, *actions: Any) -> None:
        self._actions = list(actions)
        self.waited: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if not self._actions:
            return True
        self._actions.pop(0)()
        return False

    def is_set(self) -> bool:
        return False


class Held:
    """One execution with a long lease, and the thread body that renews it."""

    def __init__(self, store: OpenStore, *actions: Any) -> None:
        app: App[Tx] = App("sqlite:///nowhere.db")

        @app.job(kind="mail", lifecycle=LIFECYCLES["standard"], lease=3000)
        async def mail(run: Run) -> None:
            """Never called."""

        self.store = InterceptedStore(store)
        context = WorkerContext(
            "me#1", lambda: cast(OpenStore, self.store), {"mail": mail.spec}, sleeper=InstantSleeper()
        )
        lease: Lease = claimed(store)
        self.id = lease.job.id
        lease.seconds = 3000.0
        self.execution = HeldExecution(lease, mail.spec, LIFECYCLES["standard"], asked_at=context.sleeper.monotonic())
        self.over = Pauses(*actions)
        context.stopped = cast(Any, self.over)
        facts = WorkerFacts("me#1", "host", 1, "Idle", 1, 0, (), ())
        self.leases = LeaseRenewer(context, {1: self.execution}, lambda: facts, 10.0)

    def stored(self, store: OpenStore) -> object:
        return store.inspect.executions(self.id)[-1].progress


def test_progress_is_stored_after_one_second_of_a_long_lease(store: OpenStore) -> None:
    seen: list[object] = []
    held = Held(
        store,
        lambda: held.execution.progress(1, 4, "pages"),
        lambda: seen.append(held.stored(store)),
    )
    held.leases.run()
    assert seen == [(1.0, 4.0, "pages")]
    assert max(held.over.waited) <= PROGRESS_INTERVAL == 1.0


def test_unchanged_progress_is_not_written_again(store: OpenStore) -> None:
    """A worker writes progress at most once per second, and only if it changed."""
    held = Held(store, lambda: held.execution.progress(1, 4, "pages"), *[lambda: None] * 5)
    held.leases.run()
    before = store.inspect.executions(held.id)[-1].heartbeat_at
    held.leases.heartbeat(progress_only=True)
    assert not held.execution.has_new_progress
    assert store.inspect.executions(held.id)[-1].heartbeat_at == before


def test_slow_progress_writes_do_not_delay_the_next_heartbeat(store: OpenStore) -> None:
    """Leases of other jobs are renewed on time although each write of progress takes two seconds."""
    time, heartbeats = [0.0], list[float]()
    held = Held(store, *[lambda: held.execution.progress(time[0], 100, "")] * 20)
    heartbeat, wait = held.leases.heartbeat, held.over.wait
    held.leases._monotonic = lambda: time[0]

    def heartbeat_in_two_seconds(*, progress_only: bool = False) -> None:
        heartbeat(progress_only=progress_only)
        time[0] += 2.0 if progress_only else 0.0
        if not progress_only:
            heartbeats.append(time[0])

    def wait_by_the_clock(seconds: float) -> bool:
        time[0] += seconds
        return wait(seconds)

    held.leases.heartbeat = heartbeat_in_two_seconds  # type: ignore[method-assign]
    held.over.wait = wait_by_the_clock  # type: ignore[method-assign]
    held.leases._due_at = 0.0
    held.leases.run()
    assert not held.leases.failing
    gaps = [later - earlier for earlier, later in pairwise(heartbeats)]
    assert len(gaps) >= 3
    assert max(gaps) <= held.leases.interval + 2.0 + PROGRESS_INTERVAL


def test_progress_that_could_not_be_stored_is_stored_by_the_next_heartbeat(store: OpenStore) -> None:
    held = Held(store)
    held.execution.progress(2, None, "files")
    held.leases._context.find_store = lambda: (_ for _ in ()).throw(OSError("unreachable"))  # type: ignore[attr-defined]
    held.leases.heartbeat(progress_only=True)
    assert held.execution.has_new_progress
    held.leases._context.find_store = lambda: cast(OpenStore, held.store)  # type: ignore[attr-defined]
    held.leases.heartbeat(progress_only=True)
    assert held.stored(store) == (2.0, None, "files")


@pytest.mark.parametrize("is_async", [True, False])
def test_progress_is_visible_while_the_handler_runs(bench: Bench, is_async: bool) -> None:
    """An async handler may await `progress`, but does not have to."""
    seen: list[object] = []

    def look(id: str) -> None:
        bench.worker.heartbeat()
        seen.append((bench.app.get(id).progress, bench.app.explain(id).sentence))

    @bench.app.job(lease=3000)
    async def work(run: Run) -> None:
        run.progress(1, 4)
        await run.progress(2, 4, "pages")
        look(run.job_id)

    @bench.app.job(lease=3000)
    def work_sync(run: SyncRun) -> None:
        run.progress(2, 4, "pages")
        look(run.job_id)

    bench.run_one(work if is_async else work_sync)
    ((progress, sentence),) = cast(Any, seen)
    assert progress == (2.0, 4.0, "pages")
    assert "It has reported 2 of 4 pages." in sentence
