"""An app whose worker reaches the database through a store that tests can intercept."""

import asyncio
from dataclasses import replace
from typing import Any, cast

from interlock import App, Tx
from interlock.store import OpenStore
from tests.kit import Place
from tests.loops.worker_doubles import InstantSleeper, InterceptedStore


class InterceptedApp:
    """An app in real time; a test can make any store method of its worker fail or wait."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.ready = False

    def plan(self, **chosen: Any) -> Any:
        self.app.migrate()
        self.intercepted = InterceptedStore(self.app.database.store())
        return replace(
            self.app.plan(), find_store=lambda: cast(OpenStore, self.intercepted), sleeper=InstantSleeper(), **chosen
        )
