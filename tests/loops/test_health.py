"""The health of a worker: what a probe hears while it starts, works, hangs, loses its database and stops."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock import Run
from interlock.engine.context import WorkerContext
from interlock.telemetry.events import WorkerError, WorkerStateChanged
from interlock.worker import assembly
from interlock.worker import health as health_module
from interlock.worker.health import UNRESPONSIVE, HealthCheck
from interlock.worker.recycle import RecycleLimits
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.gated_app import GatedApp
from tests.loops.worker_doubles import EventRecorder, away


@pytest.fixture
def gated(place: Place) -> Iterator[GatedApp]:
    gated = GatedApp(place)
    yield gated
    gated.close()


def check(*, now: float, pulse: float = 0.0, failing_since: float | None = None, **worker: Any) -> HealthCheck:
    """Return the check of a worker that polls, at a set time."""
    context = SimpleNamespace(
        sleeper=SimpleNamespace(monotonic=lambda: now), database_down=SimpleNamespace(is_set=lambda: False)
    )
    state = {"state": "Polling", "connected": True, "stopping": False, "retiring": False, **worker}
    leases = SimpleNamespace(failing_since=failing_since)
    return HealthCheck(
        cast(WorkerContext, context), cast(Any, SimpleNamespace(**state)), cast(Any, leases), lambda: pulse
    )


def fail() -> None:
    raise away()


async def ready(worker: Worker, recorder: EventRecorder) -> None:
    """Wait until the worker polls and its heartbeat works."""
    await recorder.until(WorkerStateChanged, lambda one: one.target == "Polling", after=len(recorder.seen))
    await asyncio.to_thread(worker.heartbeat)
    assert worker.health().unready == []


# ---------------------------------------------------------------- one condition each
def test_worker_whose_event_loop_does_not_respond_is_neither_healthy_nor_ready() -> None:
    """A blocked event loop for ten seconds. Until then, a handler may just be slow."""
    assert check(now=UNRESPONSIVE)().unhealthy == []
    health = check(now=UNRESPONSIVE + 1)()
    assert health.unhealthy == ["The event loop has not responded for 11 s: a handler blocks it."]
    assert health.unready == health.unhealthy


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ({"state": "Startup", "connected": False}, "not connected to its database, or has not checked its schema (Sta"),
        ({"state": "Connecting", "connected": False}, "or has not checked its schema (Connecting)."),
        ({"state": "ErrorWait", "connected": False}, "The worker waits after an error (ErrorWait), and then connects"),
        ({"stopping": True}, "The worker is stopping and claims no more jobs."),
        ({"retiring": True}, "The worker is being recycled and claims no more jobs."),
        ({"failing_since": 4.0}, "The worker has not renewed its leases for 5 s, because its heartbeat fails."),
    ],
)
def test_each_condition_is_one_sentence_and_none_makes_the_worker_unhealthy(worker: dict[str, Any], says: str) -> None:
    """A probe that restarts the process would not help."""
    health = check(now=9.0, **worker)()
    (sentence,) = health.unready
    assert says in sentence
    assert health.unhealthy == []


def test_ready_worker_has_no_problem() -> None:
    """Nor has one that reads the database again after a pause."""
    assert check(now=1.0)() == health_module.Health([], [])
    assert check(now=1.0, state="Connecting")() == health_module.Health([], [])


# ---------------------------------------------------------------- a real worker
def test_idle_worker_is_ready_in_every_round(gated: GatedApp) -> None:
    """Its loop passes through Connecting each time."""
    found = list[tuple[str, list[str]]]()

    async def scene() -> None:
        async with gated.worker() as (worker, recorder):
            await ready(worker, recorder)
            end = gated.app.events.subscribe(
                lambda one: found.append((one.target, worker.health().unready)), WorkerStateChanged
            )
            while [target for target, _ in found].count("Connecting") < 3:
                await recorder.until(
                    WorkerStateChanged, lambda one: one.target == "Connecting", after=len(recorder.seen)
                )
            end()

    asyncio.run(scene())
    assert [problems for _, problems in found if problems] == []


def test_worker_is_not_ready_while_its_database_is_unreachable(
    gated: GatedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays healthy, and is ready again when the database is back."""
    monkeypatch.setattr("interlock.worker.worker.ERROR_WAIT", 0.02)

    async def scene() -> None:
        async with gated.worker(listen=False) as (worker, recorder):
            await ready(worker, recorder)
            gated.intercepted.before |= dict.fromkeys(("now", "due_in", "claim", "report"), fail)
            known = len(recorder.seen)
            await recorder.until(WorkerError, after=known)
            await recorder.until(WorkerStateChanged, lambda one: one.target == "ErrorWait", after=known)
            await asyncio.to_thread(worker.heartbeat)
            health = worker.health()
            assert health.unhealthy == []
            assert "The database is unreachable." in health.unready
            assert any("not renewed its leases" in problem for problem in health.unready)
            assert any("ErrorWait" in one or "Connecting" in one for one in health.unready)
            gated.intercepted.before.clear()
            await recorder.until(WorkerStateChanged, lambda one: one.target == "Idle", after=len(recorder.seen))
            await ready(worker, recorder)

    asyncio.run(scene())


def test_worker_whose_heartbeat_fails_is_not_ready(gated: GatedApp) -> None:
    """Although its loop has not noticed it yet."""

    async def scene() -> None:
        async with gated.worker() as (worker, recorder):
            await ready(worker, recorder)
            gated.intercepted.before["report"] = fail
            await asyncio.to_thread(worker.heartbeat)
            assert any("not renewed its leases" in problem for problem in worker.health().unready)
            gated.intercepted.before.clear()

    asyncio.run(scene())


def test_stopping_and_recycled_workers_are_not_ready(gated: GatedApp) -> None:
    async def scene() -> None:
        async with gated.worker(limits=RecycleLimits(max_jobs=1)) as (worker, _):
            await gated.gated.aenqueue()
            await gated.begun.wait()
            assert worker.health().unready == ["The worker is being recycled and claims no more jobs."]
            worker.stop()
            assert worker.health().unready == ["The worker is stopping and claims no more jobs."]
            assert worker.health().unhealthy == []
            gated.gate.set()

    asyncio.run(scene())


def test_worker_whose_handler_blocks_the_event_loop_is_not_healthy(
    gated: GatedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread finds out. The worker is healthy again when the handler has ended."""
    monkeypatch.setattr(assembly, "PULSE_INTERVAL", 0.01)
    monkeypatch.setattr(health_module, "UNRESPONSIVE", 0.5)
    workers, found, gate = list[Worker](), list[list[str]](), threading.Event()

    def probe() -> None:
        while not (problems := workers[0].health().unhealthy):
            gate.wait(0.01)
        found.append(problems)
        gate.set()

    @gated.app.job()
    async def blocking(run: Run) -> None:
        threading.Thread(target=probe).start()
        gate.wait(30)

    gated.app.migrate()

    async def scene() -> None:
        async with gated.worker() as (worker, _):
            workers.append(worker)
            job = await blocking.aenqueue()
            await blocking.aresult(job.id, timeout=30)
            while worker.health().unhealthy:  # noqa: ASYNC110 - the next pulse comes by itself
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    ((sentence,),) = found
    assert sentence.endswith("a handler blocks it.")
