"""A disk of which a test says what it lists, and somebody who browses it."""

import asyncio
from dataclasses import dataclass, field

from apps.courier.catalogue import Catalogue, Page
from apps.courier.disk import Item, Listing
from apps.courier.errors import Refusal
from interlock.testing import KitClock

ROOT = "disk:/Library"
FRESH = 60.0


def file(path: str, size: int = 10) -> Item:
    return Item(path.rpartition("/")[2], f"{ROOT}/{path}", is_folder=False, size=size, md5="m")


def folder(path: str) -> Item:
    return Item(path.rpartition("/")[2], f"{ROOT}/{path}", is_folder=True, size=0, md5=None)


@dataclass
class Shelf:
    """A disk of which a test says what it lists, in pages as large as they are asked for."""

    items: dict[str, list[Item]] = field(default_factory=lambda: {ROOT: []})
    away: Exception | None = None
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def list(self, path: str, *, offset: int, limit: int) -> Listing:
        self.asked.append((path, offset, limit))
        if self.gate:
            self.arrived.set()
            await self.gate.wait()
        if self.away:
            raise self.away
        if path not in self.items:
            raise Refusal("not_found", "Yandex Disk has no such folder any more.")
        return Listing(self.items[path][offset : offset + limit], len(self.items[path]))


@dataclass
class Reader:
    """Somebody who turns the pages of one catalogue."""

    catalogue: Catalogue
    shelf: Shelf
    clock: KitClock

    def page(self, folder_id: int | None = None, page: int = 1, size: int = 8) -> Page:
        return asyncio.run(self.catalogue.page(self.shelf, folder_id, page, size))

    def later(self, folder_id: int | None = None, seconds: float = FRESH) -> Page:
        self.clock.advance(seconds)
        return self.page(folder_id)

    def ids(self, page: Page) -> dict[str, int]:
        return {entry.name: entry.id for entry in page.entries}


def names(page: Page) -> list[str]:
    return [entry.name for entry in page.entries]
