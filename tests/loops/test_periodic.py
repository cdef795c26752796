"""Periodic tasks: one rule for the next pause, in a thread and in the event loop."""

import asyncio
import threading

from interlock.engine.context import WorkerContext
from interlock.engine.periodic import Periodic
from interlock.telemetry.events import Event, Events, WorkerError


class Pauses(threading.Event):
    """Records the pauses of a thread, and ends it after the third."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return len(self.seconds) == 3


def context(events: Events, random: float = 0.5) -> WorkerContext:
    return WorkerContext("me#1", lambda: 1 / 0, {}, events=events, random=lambda: random)  # type: ignore[arg-type,return-value]


def test_failed_run_is_reported_and_the_next_run_follows() -> None:
    told: list[Event] = []
    events, runs = Events(), []
    events.subscribe(told.append)
    worker = context(events)
    worker.stopped = pauses = Pauses()

    def task() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ValueError("once")

    Periodic(worker, "sweep", lambda: 2.0).run_in_thread(task)
    assert (runs, pauses.seconds) == ([0, 1, 2], [2.0, 2.0, 2.0])
    assert [(event.where, str(event.error)) for event in told if isinstance(event, WorkerError)] == [("sweep", "once")]


def test_thread_and_event_loop_choose_the_same_pause() -> None:
    worker, slept = context(Events(), random=0.0), list[float]()
    worker.stopped = pauses = Pauses()
    periodic = Periodic(worker, "sweep", lambda: 4.0, jitter=True)
    periodic.run_in_thread(lambda: None)

    async def main() -> None:
        stopped = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        async def task() -> None:
            if len(slept) == 3:
                stopped.set()

        await periodic.run_in_loop(task, stopped, sleep)

    asyncio.run(main())
    assert slept[:3] == pauses.seconds == [3.0, 3.0, 3.0]
