"""A stub disk for catalogue tests, and a reader that browses it."""

import asyncio
from dataclasses import dataclass, field

from apps.courier.catalogue import Catalogue, Page
from apps.courier.clients.yandex_disk import Item, Listing
from apps.courier.errors import PermanentError
from interlock.testing import KitClock

ROOT = "disk:/Library"
FRESH_FOR = 60.0


def file(path: str, size: int = 10) -> Item:
    return Item(path.rpartition("/")[2], f"{ROOT}/{path}", is_folder=False, size=size, md5="m")


def folder(path: str) -> Item:
    return Item(path.rpartition("/")[2], f"{ROOT}/{path}", is_folder=True, size=0, md5=None)


@dataclass
class StubDisk:
    """A disk with given listings, in pages of any size."""

    items: dict[str, list[Item]] = field(default_factory=lambda: {ROOT: []})
    error: Exception | None = None
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
        self.requests.append((path, offset, limit))
        if self.gate:
            self.arrived.set()
            await self.gate.wait()
        if self.error:
            raise self.error
        if path not in self.items:
            raise PermanentError("not_found", "The folder is no longer on Yandex Disk.")
        return Listing(self.items[path][offset : offset + limit], len(self.items[path]))


@dataclass
class CatalogueReader:
    """Browses one catalogue."""

    catalogue: Catalogue
    disk: StubDisk
    clock: KitClock

    def page(self, folder_id: int | None = None, page: int = 1, size: int = 8) -> Page:
        return asyncio.run(self.catalogue.page(self.disk, folder_id, page, size))

    def refresh_later(self, folder_id: int | None = None, seconds: float = FRESH_FOR) -> Page:
        self.clock.advance(seconds)
        return self.page(folder_id)

    def ids(self, page: Page) -> dict[str, int]:
        return {entry.name: entry.id for entry in page.entries}


def names(page: Page) -> list[str]:
    return [entry.name for entry in page.entries]
