"""Workers for the races of schedules: each runs in a process, opens the database itself, and lives in real time."""

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock import App, SyncRun
from interlock.engine.context import WorkerContext
from interlock.maintenance import scheduler
from interlock.telemetry.events import Event, Events, WorkerError

FASTER = 6000.0
"""The workers believe that time runs so much faster: a minute, and so a tick, takes ten milliseconds."""


def make_app(url: str, schema: str) -> App[Any]:
    app: App[Any] = App(url, schema=schema)

    @app.job()
    def report(run: SyncRun, round: int = 0) -> None: ...

    return app


def tick_until(url: str, schema: str, began: float, until: float, name: str) -> list[str]:
    """Look for due ticks as often as possible; return the errors."""
    app, told = make_app(url, schema), list[Event]()
    events, draw = Events(), random.Random(name)
    events.subscribe(told.append)
    kinds = {each: kind.spec for each, kind in app.kinds.items()}
    worker = scheduler.Scheduler(WorkerContext(name, app.database.store, kinds, events=events), {}, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "READ_EVERY", 0.02)
        while (now := time.time()) < until:
            worker.run(datetime.fromtimestamp(began, UTC) + timedelta(seconds=(now - began) * FASTER))
            time.sleep(draw.random() * 0.005)
    app.close()
    return [repr(event.error) for event in told if isinstance(event, WorkerError)]
