"""A worker as a real process, `python -m tests.crash.run_worker ORDERS`: at given points it reports on a pipe and waits
until it is killed or may continue.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from interlock.core.job import Job
from interlock.engine.failpoints import Failpoint
from interlock.worker.assembly import start_worker
from interlock.worker.plan import Plan
from tests.crash.crash_app import app, gates


@dataclass(frozen=True)
class Orders:
    """The arguments of a worker process."""

    name: str
    says: int
    """The pipe for its reports: one JSON object per line."""
    hears: int
    """The pipe that lets it continue: one byte per stop."""
    stops: tuple[str, ...] = ()
    """The points at which it waits, at each as often as it is named."""
    tag: str | None = None
    """It waits only with the job of this tag; None means any."""
    queues: tuple[str, ...] = ()
    slots: int = 100
    store: str | None = None
    """A class that wraps the store, `module:Class`."""
    hang_timeout: float | None = None
    """Seconds for which the event loop may be blocked."""
    dies: bool = True
    """Whether the process exits at once when it hangs, as a worker process does; an embedded worker only stops."""

    @classmethod
    def read(cls, text: str) -> "Orders":
        given: dict[str, Any] = json.loads(text)
        return cls(**given | {name: tuple(given[name]) for name in ("stops", "queues")})


class Gatekeeper:
    """Reports the points of the worker and waits at the given ones."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._left = list(orders.stops)
        self._lock = threading.Lock()

    def say(self, **message: Any) -> None:
        os.write(self._orders.says, (json.dumps(message) + "\n").encode())

    def point(self, point: Failpoint, job: Job) -> None:
        self.at(point.value, str(job.payload.get("tag")), job.attempt)

    def at(self, point: str, tag: str, attempt: int) -> None:
        with self._lock:
            if point not in self._left or self._orders.tag not in (None, tag):
                return
            self._left.remove(point)
        self.say(at=point, tag=tag, attempt=attempt)
        # The pipe is closed when the test is over.
        if not os.read(self._orders.hears, 1):
            os._exit(3)


def plan_of(orders: Orders, gatekeeper: Gatekeeper) -> Plan:
    plan = app.plan(
        name=orders.name,
        queues=orders.queues,
        slots=orders.slots,
        failpoints=gatekeeper.point,
        hang_timeout=orders.hang_timeout,
        on_hang=(lambda seconds: os._exit(70)) if orders.dies else None,
    )
    if orders.store is None:
        return plan
    module, _, attribute = orders.store.partition(":")
    store = getattr(import_module(module), attribute)(app.database.store())
    return replace(plan, find_store=lambda: store)


async def work(orders: Orders) -> int:
    gatekeeper = Gatekeeper(orders)
    gates.gate = gatekeeper.at
    async with start_worker(plan_of(orders, gatekeeper)) as worker:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        gatekeeper.say(at="ready", owner=worker.name)
        await worker.run()
        return worker.exit_code


if __name__ == "__main__":
    # No worker outlives its test, not even a frozen one.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    sys.exit(asyncio.run(work(Orders.read(sys.argv[1]))))
