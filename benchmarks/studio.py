"""The studio against a provider that answers at once: what is left is the engine, the ledger and the originals. Beside it, the same writes by a bare loop."""

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

from apps.common.database import connect
from apps.studio import books
from apps.studio.counter import Counter
from apps.studio.jobs import Means, Studio, build
from apps.studio.order import Order
from apps.studio.originals import Originals
from apps.studio.people import People
from apps.studio.prompt_guard import PromptGuard
from apps.studio.providers import Link


@dataclass
class Drawn:
    """So many images, ordered one by one, then made by one worker process."""

    store: str
    jobs: int
    ordered_per_second: float
    """`createJob`: guards, key, credits and job, in a transaction each."""
    made_per_second: float
    """From the first claim to the last commit."""
    floor_per_second: float
    """One file, synced, and one transaction with as many rows, in a loop of one."""
    faults: int
    """In the books, of as many entries as `checked`."""
    checked: int

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Instant:
    """A provider that has its picture ready."""

    def __init__(self) -> None:
        drawn = io.BytesIO()
        Image.new("RGB", (64, 64), "teal").save(drawn, "PNG")
        self.picture = drawn.getvalue()

    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        del order, key
        return self.picture

    async def fetch(self, link: Link) -> bytes:
        raise NotImplementedError(link)


def draw(name: str, url: str, directory: Path, jobs: int) -> Drawn:
    """Order and make so many images on this database, which has nothing of the studio's yet."""
    provider, engine = Instant(), connect(url)
    means = Means(PromptGuard.of(["no such word"]), None, provider, Originals.in_directory(directory / f"{name}-files"))
    studio = build(url, engine, means)
    try:
        studio.migrate()
        floor = _floor(engine, directory / f"{name}-floor", provider.picture, jobs // 5)
        user = People(studio).add("bench", credits=jobs)
        counter, began = Counter(studio), time.perf_counter()
        for number in range(jobs):
            counter.create_job(user.id, f"picture number {number}")
        ordered = time.perf_counter() - began
        made = asyncio.run(_made(studio, jobs))
        checked, faults = books.check(studio)
        return Drawn(name, jobs, jobs / ordered, jobs / made, floor, len(faults), checked)
    finally:
        studio.close()


async def _made(studio: Studio, jobs: int) -> float:
    began = time.perf_counter()
    await studio.app.arun_until_idle(timeout=600)
    took = time.perf_counter() - began
    counts = studio.app.status().counts["image"]
    assert counts["completed"] == jobs, counts
    return took


def _floor(engine: Engine, directory: Path, picture: bytes, jobs: int) -> float:
    """The same durable writes, without a rule, a lease or an audit."""
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
                tx.execute(text("INSERT INTO studio_floor VALUES (:id, :n, 'entry')"), {"id": number * 5 + row, "n": row})
    took = time.perf_counter() - began
    with engine.begin() as tx:
        tx.execute(text("DROP TABLE studio_floor"))
    return jobs / took


def show(drawn: list[Drawn], console: Console) -> None:
    table = Table("store", "images", "ordered/s", "made/s", "floor/s", "made ÷ floor", "faults in the books, of entries")
    for each in drawn:
        table.add_row(
            each.store, f"{each.jobs:,}", f"{each.ordered_per_second:,.0f}", f"{each.made_per_second:,.0f}", f"{each.floor_per_second:,.0f}",
            f"{each.made_per_second / each.floor_per_second:.2f}", f"{each.faults:,} of {each.checked:,}")
    console.print(table)
    console.print("The studio, its provider answering at once. The floor is one synced file and one transaction of five rows per image, in the same run.")
