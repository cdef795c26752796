"""The drain time: how long running jobs have to end after a worker was asked to stop."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from interlock import App, UsageError
from interlock.core.sleeper import SystemSleeper
from interlock.worker import worker as worker_module
from interlock.worker.draining import wait_until_empty
from interlock.worker.slots import Slots
from interlock.worker.worker import GRACE
from tests.kit import Place
from tests.loops.gated_app import GatedApp


class SettableLoop(asyncio.SelectorEventLoop):
    """An event loop, and a sleeper, whose time a test moves forward."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = 0.0

    def time(self) -> float:
        return super().time() + self.forward


class LoopSleeper(SystemSleeper):
    def __init__(self, loop: SettableLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()


@pytest.fixture
def gated(place: Place) -> Iterator[GatedApp]:
    gated = GatedApp(place)
    yield gated
    gated.close()


@pytest.mark.parametrize("seconds", [7.0, 20.0])
def test_stopping_worker_gives_running_jobs_the_drain_time_and_returns_the_rest(
    gated: GatedApp, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A returned job keeps its tries."""
    loop, waits, draining = SettableLoop(), list[float](), asyncio.Event()

    async def wait(slots: Slots, sleeper: SystemSleeper, drain: float) -> bool:
        waits.append(drain)
        draining.set()
        return await wait_until_empty(slots, sleeper, drain)

    monkeypatch.setattr(worker_module, "wait_until_empty", wait)
    # The leases outlive the drain time, as far as this worker knows.
    monkeypatch.setattr("interlock.worker.watchdog.Watchdog.check", lambda _: None)

    async def scene() -> None:
        async with gated.worker(drain=seconds, sleeper=LoopSleeper(loop)) as (worker, _):
            ending, _ = await gated.gated.aenqueue(), await gated.begun.wait()
            worker.stop()
            await draining.wait()
            loop.forward = seconds - 3.0
            for _ in range(100):
                await asyncio.sleep(0)
            assert not gated.cancelled.is_set()
            loop.forward = seconds
            await gated.cancelled.wait()
        job = await gated.app.aget(ending.id)
        assert (job.state, job.tries_left, job.lease_losses) == ("PENDING", 3, 0)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scene())
    assert waits == [seconds, GRACE]


def test_job_that_ends_within_the_drain_time_succeeds(gated: GatedApp) -> None:
    """The worker ends at once when no job runs."""

    async def scene() -> None:
        async with gated.worker(drain=3600) as (worker, _):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            worker.stop()
            gated.gate.set()
        (job,) = gated.jobs("gated")
        assert (job.state, job.attempt) == ("SUCCEEDED", 1)

    asyncio.run(scene())


def test_stop_can_name_a_shorter_drain_time(gated: GatedApp) -> None:
    async def scene() -> None:
        async with gated.worker(drain=3600) as (worker, _):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            worker.stop(drain=0.0)
        (job,) = gated.jobs("gated")
        assert (job.state, job.tries_left) == ("PENDING", 3)

    asyncio.run(scene())


def test_embedded_worker_drains_for_the_given_time(gated: GatedApp) -> None:
    """`app.worker(drain=…)` takes seconds or a timedelta."""

    async def scene() -> None:
        async with asyncio.timeout(30), gated.app.worker(drain=timedelta(0)):
            await gated.gated.aenqueue()
            await gated.begun.wait()
        (job,) = gated.jobs("gated")
        assert (job.state, job.tries_left) == ("PENDING", 3)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drain": -1}, "drain is -1: give seconds, or a timedelta"),
        ({"drain": float("nan")}, "drain is nan: give seconds, or a timedelta"),
        ({"child_processes": 0}, "child_processes is 0: it must be at least 1."),
        ({"slots": 0}, "slots is 0: it must be at least 1."),
    ],
)
def test_wrong_options_of_an_embedded_worker_are_refused(gated: GatedApp, options: dict[str, float], says: str) -> None:
    """Before it starts."""

    async def scene(app: App) -> None:
        async with app.worker(**options):  # type: ignore[arg-type]
            raise AssertionError("the block is not entered")

    with pytest.raises(UsageError, match=says):
        asyncio.run(scene(gated.app))
