"""The app of the demo: a shop that charges orders, and three more kinds with their own lifecycles.

Every commit adds a row to a table without a key, so that a doubled effect can be counted.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...app import App
from ...core.backoff import Backoff
from ...core.job import Job
from ...core.lifecycle import Lifecycle
from ...core.sleeper import SystemSleeper
from ...jobs.results import Fail, Reject, Retry
from ...jobs.run import Run, SyncRun
from ...store.contract import Tx

VARIABLE = "INTERLOCK_DEMO"
POLL_INTERVAL = 0.05


@dataclass(frozen=True)
class Setting:
    """The database of the demo app, its lease length and its speed."""

    url: str
    lease: float = 3.0
    handler_seconds: float = 0.5
    """Seconds that a handler takes."""
    gate: str | None = None
    """If given, handlers wait until this file exists."""

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Setting":
        return cls(**json.loads(environment.get(VARIABLE, '{"url": "sqlite:///interlock-demo.db"}')))

    @property
    def insert(self) -> str:
        return (
            "INSERT INTO effects (job_id) VALUES (?)"
            if self.url.startswith("sqlite")
            else "INSERT INTO effects (job_id) VALUES (%s)"
        )


@dataclass(frozen=True)
class Effects:
    """The counts of the shop's table."""

    applied: int
    doubled: int


@dataclass(frozen=True)
class Case:
    """A job of step 4: what happens to it, and its expected final state."""

    kind: str
    fate: str
    end: str


CASES = (
    *(Case("deliver", "fine", "DELIVERED") for _ in range(3)),
    Case("deliver", "busy", "DELIVERED"),
    Case("deliver", "broken", "FAILED"),
    Case("deliver", "late", "EXPIRED"),
    *(Case("download", "fine", "completed") for _ in range(3)),
    Case("download", "broken", "failed"),
    Case("download", "unwanted", "canceled"),
    *(Case("paint", "fine", "completed") for _ in range(3)),
    Case("paint", "busy", "completed"),
    Case("paint", "forbidden", "rejected"),
    Case("paint", "hopeless", "dead_letter"),
)


def lifecycle(name: str) -> Lifecycle:
    """Return one of the demo's three lifecycles."""
    document = files("interlock.cli.demo").joinpath("lifecycles.md")
    return Lifecycle.from_markdown(name, document.read_text(encoding="utf-8"), origin=document.name)


def build(setting: Setting) -> App:
    """Build the app. Each process builds its own."""
    app, shop = App(setting.url), Shop(setting)
    backoff = Backoff(setting.handler_seconds, factor=1.0, jitter=False)
    app.job(kind="charge", lease=setting.lease, backoff=backoff)(shop.charge).commit(shop.book)
    app.job(kind="deliver", lifecycle=lifecycle("delivery"), lease=setting.lease, backoff=backoff)(shop.deliver).commit(
        shop.book
    )
    app.job(kind="download", lifecycle=lifecycle("download"), lease=setting.lease, backoff=backoff)(shop.fetch).commit(
        shop.book
    )
    paint = app.job(kind="paint", lifecycle=lifecycle("image"), tries=2, lease=setting.lease, backoff=backoff)(
        shop.paint
    )
    paint.commit(shop.book)
    paint.guard(moderate)
    return app


class Shop:
    """The handlers."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sleeper = SystemSleeper()

    def charge(self, run: SyncRun, order: int) -> str:
        """Take some time to charge an order."""
        del run
        if self._setting.gate is None:
            self._sleeper.sleep(self._setting.handler_seconds)
        else:
            while not Path(self._setting.gate).exists():
                self._sleeper.sleep(POLL_INTERVAL)
        return f"charged order {order}"

    def book(self, tx: Tx, job: Job, value: str) -> None:
        """Record the effect, in the transaction that commits the job."""
        del value
        tx.execute(self._setting.insert, (job.id,))

    async def deliver(self, run: Run, number: int, fate: str) -> str:
        await self._sleeper.asleep(self._setting.handler_seconds)
        if fate == "busy" and run.attempt == 1:
            raise Retry("the disk is busy")
        if fate == "broken":
            raise Fail("the file is gone")
        await run.advance("STREAMING")
        await self._sleeper.asleep(self._setting.handler_seconds)
        return f"delivered file {number}"

    async def fetch(self, run: Run, number: int, fate: str) -> str:
        del run
        await self._sleeper.asleep(3 * self._setting.handler_seconds)
        if fate == "broken":
            raise Fail("no peer has the file")
        return f"fetched {number}"

    async def paint(self, run: Run, number: int, fate: str) -> str:
        await self._sleeper.asleep(self._setting.handler_seconds)
        if fate == "hopeless" or (fate == "busy" and run.attempt == 1):
            raise Retry("the model is busy")
        return f"painted {number}"


async def moderate(job: Job, number: int, fate: str) -> None:
    """Reject a forbidden picture before its handler runs."""
    del job, number
    if fate == "forbidden":
        raise Reject("moderation said no")


# ---------------------------------------------------------------- for the scenario
def open_shop(app: App) -> None:
    """Create the tables of Interlock and of the shop."""
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE effects (job_id text NOT NULL)")


def effects(app: App) -> Effects:
    with app.transaction() as tx:
        counts = [row[0] for row in tx.execute("SELECT count(*) FROM effects GROUP BY job_id").fetchall()]
    return Effects(sum(counts), sum(count - 1 for count in counts))


def enqueue(app: App, cases: tuple[Case, ...]) -> dict[str, Case]:
    """Store a job for each case and return the cases by job id.

    A late job expires before it is due; an unwanted one is cancelled.
    """
    stored: dict[str, Case] = {}
    for number, case in enumerate(cases):
        kind: Any = app.kinds[case.kind]
        late = {"late": {"delay": 60, "ttl": 1}, "unwanted": {"delay": 60}}.get(case.fate, {})
        stored[kind.using(**late).enqueue(number, case.fate).id] = case
    for id, case in stored.items():
        if case.fate == "unwanted":
            app.cancel(id, by="ann", reason="she has it already")
    return stored
