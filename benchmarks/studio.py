"""The studio with an instant provider: measures the engine, the ledger and the storage, and compares a bare loop."""

import asyncio
import io
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from apps.common.database import make_engine
from apps.studio import ledger_check
from apps.studio.clients.originals import Originals
from apps.studio.clients.provider import Link
from apps.studio.jobs import Dependencies, Studio, build
from apps.studio.order import Order
from apps.studio.orders import Orders
from apps.studio.prompt_guard import PromptGuard
from apps.studio.users import Users


@dataclass
class StudioResult:
    """The results for one database: images ordered one by one, then made by one worker process."""

    store: str
    jobs: int
    ordered_per_second: float
    """`create_job`: guards, key, credits and job, one transaction each."""
    made_per_second: float
    """From the first claim to the last commit."""
    floor_per_second: float
    """A loop that writes one synced file and one transaction with as many rows."""
    faults: int
    """Faults that the ledger check found in `checked` entries."""
    checked: int

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class InstantProvider:
    """A provider that returns the same picture at once."""

    def __init__(self) -> None:
        file = io.BytesIO()
        Image.new("RGB", (64, 64), "teal").save(file, "PNG")
        self.picture = file.getvalue()

    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        del order, key
        return self.picture

    async def fetch(self, link: Link) -> bytes:
        raise NotImplementedError(link)


def measure(name: str, url: str, directory: Path, jobs: int) -> StudioResult:
    """Order and make this many images on an empty database."""
    provider, engine = InstantProvider(), make_engine(url)
    dependencies = Dependencies(
        PromptGuard.of(["no such word"]), None, provider, Originals.in_directory(directory / f"{name}-files")
    )
    studio = build(url, engine, dependencies)
    try:
        studio.migrate()
        floor = _floor(engine, directory / f"{name}-floor", provider.picture, jobs // 5)
        user = Users(studio).add("bench", credits=jobs)
        orders, began = Orders(studio), time.perf_counter()
        for number in range(jobs):
            orders.create_job(user.id, f"picture number {number}")
        ordered = time.perf_counter() - began
        made = asyncio.run(_run_worker(studio, jobs))
        checked, faults = ledger_check.check(studio)
        return StudioResult(name, jobs, jobs / ordered, jobs / made, floor, len(faults), checked)
    finally:
        studio.close()


async def _run_worker(studio: Studio, jobs: int) -> float:
    began = time.perf_counter()
    await studio.app.arun_until_idle(timeout=600)
    took = time.perf_counter() - began
    counts = studio.app.status().counts["image"]
    assert counts["completed"] == jobs, counts
    return took


def _floor(engine: Engine, directory: Path, picture: bytes, jobs: int) -> float:
    """The same durable writes, without lifecycle, lease or audit."""
    directory.mkdir()
    with engine.begin() as tx:
        tx.execute(text("CREATE TABLE studio_floor (id integer PRIMARY KEY, n integer, what text)"))
    began = time.perf_counter()
    for number in range(jobs):
        with (directory / str(number)).open("wb") as file:
            file.write(picture)
            file.flush()
            os.fsync(file.fileno())
        with engine.begin() as tx:
            for row in range(5):
                tx.execute(
                    text("INSERT INTO studio_floor VALUES (:id, :n, 'entry')"), {"id": number * 5 + row, "n": row}
                )
    took = time.perf_counter() - began
    with engine.begin() as tx:
        tx.execute(text("DROP TABLE studio_floor"))
    return jobs / took


def show(results: list[StudioResult], console: Console) -> None:
    table = Table("store", "images", "ordered/s", "made/s", "floor/s", "made ÷ floor", "faults in ledger entries")
    for each in results:
        table.add_row(
            each.store,
            f"{each.jobs:,}",
            f"{each.ordered_per_second:,.0f}",
            f"{each.made_per_second:,.0f}",
            f"{each.floor_per_second:,.0f}",
            f"{each.made_per_second / each.floor_per_second:.2f}",
            f"{each.faults:,} of {each.checked:,}",
        )
    console.print(table)
    console.print(
        "The studio with an instant provider. The floor is one synced file and one transaction of five rows per image."
    )
