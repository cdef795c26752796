"""An app with short jobs, and jobs that wait until a test lets them end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from interlock import App, Job, Run, Tx
from interlock.store import OpenStore
from interlock.worker.assembly import run_worker
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.worker_doubles import TIME_LIMIT, EventRecorder, InterceptedStore


class GatedApp:
    """An app in real time, whose worker reaches the database through a store that tests can intercept."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.begun, self.gate, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @self.app.job()
        async def quick(run: Run) -> None: ...

        @self.app.job()
        async def gated(run: Run) -> None:
            self.begun.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        self.quick, self.gated = quick, gated
        self.app.migrate()
        self.intercepted = InterceptedStore(self.app.database.store())

    @asynccontextmanager
    async def worker(self, **settings: Any) -> AsyncGenerator[tuple[Worker, EventRecorder]]:
        recorder = EventRecorder(self.app.events)
        found = {"find_store": lambda: cast(OpenStore, self.intercepted), **settings}
        async with asyncio.timeout(TIME_LIMIT), run_worker(replace(self.app.plan(), **found)) as worker:
            yield worker, recorder

    def jobs(self, kind: str) -> list[Job]:
        return self.app.jobs(kind=kind, limit=1000)

    def close(self) -> None:
        report = self.app.verify()
        self.app.close()
        assert report.ok, report
