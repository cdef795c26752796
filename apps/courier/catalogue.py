"""The catalogue: what the library's folder on the disk holds, as it was last seen there."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, RowMapping, and_, func, select, update

from apps.common.database import insert, reading

from . import tables
from .disk import Item, Listing
from .errors import Refusal, Trouble
from .tables import files

LISTED = 1000
"""Entries that one request asks for."""
PAGES = 50
"""Requests that one listing takes at most, so that a disk which comes to no end keeps nobody. Of a folder with more entries the rest is not shown."""
TAKES = 3
"""How often a folder is listed in a row if it changes while it is read."""
STORED = 500
"""Rows that one transaction writes: the engine's own writers wait for it on SQLite, and a database takes no more than so many values at once."""
PAUSE = timedelta(seconds=10)
"""For so long a disk that was away is not asked about the same folder again, if there is an older listing: to find it away may take long."""
TOLD = ("parent_id", "is_folder", "size", "md5", "position", "gone")
"""What a listing says of a path that is known already."""
T = TypeVar("T")
Write = Callable[[Connection], object]


class Lists(Protocol):
    """The disk, as far as the catalogue needs it. It lists no more than `limit` entries at once."""

    async def list(self, path: str, *, offset: int, limit: int) -> Listing: ...


@dataclass(frozen=True)
class Entry:
    """A file or a folder of the library. Its id means this path for ever."""

    id: int
    name: str
    is_folder: bool
    size: int
    """Bytes; of a folder, zero."""
    parent_id: int | None


@dataclass(frozen=True)
class Page:
    """Some entries of a folder: its folders first, then its files, each by name. Pages are counted from 1, and there is at least one."""

    folder: Entry
    parent_id: int | None
    """None if there is no way up from here."""
    entries: list[Entry]
    page: int
    pages: int
    stale: bool
    """The disk could not be asked, and this is what it held before."""


class Catalogue:
    """The folder of the library and all below it. Nothing outside of it is ever shown."""

    def __init__(self, engine: Engine, folder: str, *, fresh_for: float = 60.0, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._engine, self._reading = engine, reading(engine)
        self._root, self._fresh_for, self._now = folder, timedelta(seconds=fresh_for), now
        self._asking: dict[str, asyncio.Task[bool]] = {}
        self._away: dict[str, datetime] = {}

    async def page(self, disk: Lists, folder_id: int | None, page: int, size: int = 8) -> Page:
        """A page of this folder, or of the root; the nearest there is, if the number is out of range.

        `Refusal` for a folder that is not there; `Trouble` if the disk cannot be asked about one that was never listed.
        """
        folder = await asyncio.to_thread(self._folder, folder_id)
        stale = await self._listed_once(disk, folder)
        return await asyncio.to_thread(self._page, folder["id"], page, size, stale=stale)

    def entry(self, file_id: int) -> Entry | None:
        """What has this id, unless it is gone, or was never there."""
        with self._reading.begin() as tx:
            found = self._row(tx, file_id)
        return None if found is None else self._entry(found)

    # ------------------------------------------------------------ the listing
    async def _listed_once(self, disk: Lists, folder: RowMapping) -> bool:
        """Of many who ask at once, one lists, and all have its answer. Whoever gives up waiting does not stop it for the others."""
        path = folder["path"]
        if (task := self._asking.get(path)) is None:
            task = self._asking[path] = asyncio.create_task(self._listed(disk, folder))
            task.add_done_callback(lambda _: self._asking.pop(path, None))
        return await asyncio.shield(task)

    async def _listed(self, disk: Lists, folder: RowMapping) -> bool:
        """See to it that the folder's listing is a fresh one; True if it is not, since the disk is away."""
        begun, path = self._now(), folder["path"]
        listed_at = await asyncio.to_thread(self._listed_at, folder["id"])
        if listed_at is not None and begun - listed_at < self._fresh_for:
            return False
        if listed_at is not None and path in self._away and begun - self._away[path] < PAUSE:
            return True
        try:
            items, whole = await _all(disk, path)
        except Trouble:
            if listed_at is None:
                raise
            self._away[path] = self._now()
            return True
        except Refusal as error:
            if error.code == "not_found":
                await asyncio.to_thread(self._vanished, folder, begun)
            raise
        self._away.pop(path, None)
        await asyncio.to_thread(self._store, folder, items, begun, whole=whole)
        return False

    def _listed_at(self, folder_id: int) -> datetime | None:
        with self._reading.begin() as tx:
            return tx.scalar(select(files.c.listed_at).where(files.c.id == folder_id))

    def _store(self, folder: RowMapping, items: Sequence[Item], begun: datetime, *, whole: bool) -> None:
        """Keep what was listed, and, if that was the whole, take away what was not. Only what differs is written; that it was listed, last of all."""
        base = folder["path"].rstrip("/")
        # The disk is believed in what it says of this folder, and in nothing about another.
        here = {item.path: item for item in items if item.path == f"{base}/{item.name}" and item.name not in ("", ".", "..") and "/" not in item.name}
        ordered = sorted(here.values(), key=lambda item: (not item.is_folder, item.name.casefold().replace("ё", "е"), item.name))
        with self._reading.begin() as tx:
            known = select(files.c.id, files.c.path, *(files.c[name] for name in TOLD)).where(files.c.parent_id == folder["id"], ~files.c.gone)
            was = {row["path"]: row for row in tx.execute(known).mappings()}
            vanished = [row for path, row in was.items() if path not in here] if whole else []
            replaced = [row["id"] for path, row in was.items() if path in here and row["is_folder"] and not here[path].is_folder]
            gone = [*_below(tx, [*replaced, *(row["id"] for row in vanished if row["is_folder"])]), *(row["id"] for row in vanished)]
        rows = [_values(item, folder["id"], position) for position, item in enumerate(ordered)]
        differing = [row for row in rows if (old := was.get(row["path"])) is None or any(old[name] != row[name] for name in TOLD)]
        listed = update(files).where(files.c.id == folder["id"]).values(listed_at=begun, gone=False)
        marks, upserts = (partial(_mark_gone, ids=some) for some in _parts(gone)), (partial(_upsert, rows=some) for some in _parts(differing))
        self._write(folder["id"], begun, [*marks, *upserts, lambda tx: tx.execute(listed)])

    def _vanished(self, folder: RowMapping, begun: datetime) -> None:
        with self._reading.begin() as tx:
            below = _below(tx, [folder["id"]])
        # The root keeps its row: it is where everything begins, and may be put there yet.
        itself = update(files).where(files.c.id == folder["id"]).values(listed_at=None, gone=folder["path"] != self._root)
        self._write(folder["id"], begun, [*(partial(_mark_gone, ids=some) for some in _parts(below)), lambda tx: tx.execute(itself)])

    def _write(self, folder_id: int, begun: datetime, writes: Sequence[Write]) -> None:
        """Each in a transaction of its own, so that nobody waits long. A listing that began later than this one stays."""
        for write in writes:
            with self._engine.begin() as tx:
                if self._overtaken(tx, folder_id, begun):
                    return
                write(tx)

    def _overtaken(self, tx: Connection, folder_id: int, begun: datetime) -> bool:
        """Whether a later listing is stored. There is one writer at a time."""
        # The root is locked, since two that write rows of one branch in different orders would wait for each other.
        root = files.alias()
        stored = select(files.c.listed_at).select_from(root).join(files, files.c.id == folder_id)
        listed_at = tx.scalar(stored.where(root.c.path_hash == tables.path_hash(self._root)).with_for_update())
        return listed_at is not None and listed_at > begun

    # ------------------------------------------------------------ what is stored
    def _folder(self, folder_id: int | None) -> RowMapping:
        at_root = select(files).where(files.c.path_hash == tables.path_hash(self._root), files.c.is_folder, ~files.c.gone)
        with self._reading.begin() as tx:
            found = tx.execute(at_root).mappings().one_or_none() if folder_id is None else self._row(tx, folder_id)
        if found is None and folder_id is None:
            with self._engine.begin() as tx:
                _upsert(tx, [_values(Item(self._root.rpartition("/")[2], self._root, is_folder=True, size=0, md5=None), None, 0)])
                found = tx.execute(at_root).mappings().one()
        if found is None or not found["is_folder"]:
            raise Refusal("not_found", "The library has no such folder.")
        return found

    def _row(self, tx: Connection, id: int) -> RowMapping | None:
        found = tx.execute(select(files).where(files.c.id == id, ~files.c.gone)).mappings().one_or_none() if 0 < id < 1 << 31 else None
        return found if found is not None and tables.inside(found["path"], self._root) else None

    def _page(self, folder_id: int, page: int, size: int, *, stale: bool) -> Page:
        here = and_(files.c.parent_id == folder_id, ~files.c.gone)
        with self._reading.begin() as tx:
            folder = self._row(tx, folder_id)
            if folder is None:
                raise Refusal("not_found", "The library has no such folder.")
            pages = max(-(-(tx.scalar(select(func.count()).where(here)) or 0) // size), 1)
            page = min(max(page, 1), pages)
            rows = tx.execute(select(files).where(here).order_by(files.c.position, files.c.id).limit(size).offset((page - 1) * size)).mappings().all()
        shown = self._entry(folder)
        return Page(shown, shown.parent_id, [self._entry(row) for row in rows], page, pages, stale)

    def _entry(self, row: RowMapping) -> Entry:
        return Entry(row["id"], row["name"], row["is_folder"], row["size"] or 0, None if row["path"] == self._root else row["parent_id"])


async def _all(disk: Lists, path: str) -> tuple[list[Item], bool]:
    """What a folder holds, and whether nothing can be missing."""
    items, seen, totals = await _read(disk, path)
    for _ in range(TAKES - 1):
        # An entry may have slipped from one page to another between the two requests.
        if len(totals) > 1:
            items, seen, totals = await _read(disk, path)
    return items, totals == {seen}


async def _read(disk: Lists, path: str) -> tuple[list[Item], int, set[int]]:
    """The entries from first to last, how many came, and how many there were said to be, each time that it was said."""
    items, seen, totals = list[Item](), 0, set[int]()
    for _ in range(PAGES):
        listing = await disk.list(path, offset=seen, limit=LISTED)
        came = len(listing.items) + listing.left_out
        items += listing.items
        seen += came
        totals.add(listing.total)
        if not came or seen >= listing.total:
            break
    return items, seen, totals


def _parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    return (whole[start : start + STORED] for start in range(0, len(whole), STORED))


def _values(item: Item, parent_id: int | None, position: int) -> Mapping[str, Any]:
    size, md5 = (None, None) if item.is_folder else (item.size, item.md5)
    return {
        "parent_id": parent_id, "path": item.path, "path_hash": tables.path_hash(item.path), "name": item.name, "is_folder": item.is_folder, "size": size,
        "md5": md5, "position": position, "gone": False,
    }


def _upsert(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    upsert = insert(tx, files).values(rows)
    tx.execute(upsert.on_conflict_do_update(index_elements=["path_hash"], set_={name: upsert.excluded[name] for name in TOLD}))


def _below(tx: Connection, folder_ids: Sequence[int]) -> list[int]:
    """All that is known in these folders, the deepest first: whoever marks it in this order, and is stopped halfway, can find the rest again."""
    levels, folders = list[list[int]](), folder_ids
    while folders:
        found = [row for some in _parts(folders) for row in tx.execute(select(files.c.id, files.c.is_folder).where(files.c.parent_id.in_(some), ~files.c.gone))]
        levels.append([row.id for row in found])
        folders = [row.id for row in found if row.is_folder]
    return [id for level in reversed(levels) for id in level]


def _mark_gone(tx: Connection, ids: Sequence[int]) -> None:
    tx.execute(update(files).where(files.c.id.in_(ids)).values(gone=True, listed_at=None))
