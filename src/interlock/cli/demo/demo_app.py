"""The demo's own program: a shop that charges orders, and three more kinds of job with lifecycles of their own.

Every commit adds a row to a table that nothing else looks at. It has no key, so that what is done twice is there twice: doubles are counted, not claimed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...answers import Fail, Reject, Retry
from ...app import App
from ...backoff import Backoff
from ...job import Job
from ...lifecycle import Lifecycle
from ...run import Run, SyncRun
from ...store import Tx
from ...waits import SystemWaits

VARIABLE = "INTERLOCK_DEMO"
GLANCE = 0.05


@dataclass(frozen=True)
class Setting:
    """Where the program works, how long its leases are, and how fast the machine is that it runs on."""

    url: str
    lease: float = 3.0
    pace: float = 0.5
    """Seconds that a handler takes."""
    gate: str | None = None
    """On a machine that is too slow, a handler takes until this file is there."""

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Setting":
        return cls(**json.loads(environment.get(VARIABLE, '{"url": "sqlite:///interlock-demo.db"}')))

    @property
    def insert(self) -> str:
        return "INSERT INTO effects (job_id) VALUES (?)" if self.url.startswith("sqlite") else "INSERT INTO effects (job_id) VALUES (%s)"


@dataclass(frozen=True)
class Effects:
    """What the shop's own table says."""

    applied: int
    doubled: int


@dataclass(frozen=True)
class Plot:
    """A job of the second half: what it meets on its way, and where it has to end."""

    kind: str
    fate: str
    end: str


PLOTS = (
    *(Plot("deliver", "fine", "DELIVERED") for _ in range(3)), Plot("deliver", "busy", "DELIVERED"), Plot("deliver", "broken", "FAILED"),
    Plot("deliver", "late", "EXPIRED"),
    *(Plot("download", "fine", "completed") for _ in range(3)), Plot("download", "broken", "failed"), Plot("download", "unwanted", "canceled"),
    *(Plot("paint", "fine", "completed") for _ in range(3)), Plot("paint", "busy", "completed"), Plot("paint", "forbidden", "rejected"),
    Plot("paint", "hopeless", "dead_letter"),
)


def lifecycle(name: str) -> Lifecycle:
    """One of the three that the demo brings along."""
    document = files("interlock.cli.demo").joinpath("lifecycles.md")
    return Lifecycle.from_markdown(name, document.read_text(encoding="utf-8"), origin=document.name)


def build(setting: Setting) -> App:
    """The program on its database. Each process that runs it builds its own."""
    app, shop = App(setting.url), Shop(setting)
    again = Backoff(setting.pace, factor=1.0, jitter=False)
    app.job(kind="charge", lease=setting.lease, backoff=again)(shop.charge).commit(shop.book)
    app.job(kind="deliver", lifecycle=lifecycle("delivery"), lease=setting.lease, backoff=again)(shop.deliver).commit(shop.book)
    app.job(kind="download", lifecycle=lifecycle("download"), lease=setting.lease, backoff=again)(shop.fetch).commit(shop.book)
    paint = app.job(kind="paint", lifecycle=lifecycle("image"), tries=2, lease=setting.lease, backoff=again)(shop.paint)
    paint.commit(shop.book)
    paint.guard(moderate)
    return app


class Shop:
    """The handlers."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._waits = SystemWaits()

    def charge(self, run: SyncRun, order: int) -> str:
        """Takes its time, at the till."""
        del run
        if self._setting.gate is None:
            self._waits.sleep(self._setting.pace)
        else:
            while not Path(self._setting.gate).exists():
                self._waits.sleep(GLANCE)
        return f"charged order {order}"

    def book(self, tx: Tx, job: Job, value: str) -> None:
        """The effect. It runs inside the transaction of the job's own commit."""
        del value
        tx.execute(self._setting.insert, (job.id,))

    async def deliver(self, run: Run, number: int, fate: str) -> str:
        await self._waits.asleep(self._setting.pace)
        if fate == "busy" and run.attempt == 1:
            raise Retry("the disk is busy")
        if fate == "broken":
            raise Fail("the file is gone")
        await run.advance("STREAMING")
        await self._waits.asleep(self._setting.pace)
        return f"delivered file {number}"

    async def fetch(self, run: Run, number: int, fate: str) -> str:
        del run
        await self._waits.asleep(3 * self._setting.pace)
        if fate == "broken":
            raise Fail("nobody has it")
        return f"fetched {number}"

    async def paint(self, run: Run, number: int, fate: str) -> str:
        await self._waits.asleep(self._setting.pace)
        if fate == "hopeless" or (fate == "busy" and run.attempt == 1):
            raise Retry("the model is busy")
        return f"painted {number}"


async def moderate(job: Job, number: int, fate: str) -> None:
    """Runs before a picture is begun, with its lease held."""
    del job, number
    if fate == "forbidden":
        raise Reject("moderation said no")


# ---------------------------------------------------------------- what the story does with it
def open_shop(app: App) -> None:
    """Make the tables: ours and the shop's own."""
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE effects (job_id text NOT NULL)")


def effects(app: App) -> Effects:
    with app.transaction() as tx:
        counts = [row[0] for row in tx.execute("SELECT count(*) FROM effects GROUP BY job_id").fetchall()]
    return Effects(sum(counts), sum(count - 1 for count in counts))


def enqueue(app: App, plots: tuple[Plot, ...]) -> dict[str, Plot]:
    """Store a job for each plot; answers them by id. One that is to come late waits for longer than it lives; one that nobody wants is cancelled."""
    stored: dict[str, Plot] = {}
    for number, plot in enumerate(plots):
        kind: Any = app.kinds[plot.kind]
        late = {"late": {"delay": 60, "ttl": 1}, "unwanted": {"delay": 60}}.get(plot.fate, {})
        stored[kind.using(**late).enqueue(number, plot.fate).id] = plot
    for id, plot in stored.items():
        if plot.fate == "unwanted":
            app.cancel(id, by="ann", reason="she has it already")
    return stored

