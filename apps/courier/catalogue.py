"""The catalogue: the files and folders of the library as they were last listed on the disk."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, RowMapping, and_, func, select, update

from apps.common.database import insert, read_only

from . import tables
from .clients.yandex_disk import Item, Listing
from .errors import PermanentError, TemporaryError
from .tables import files

PAGE_LIMIT = 1000
"""Entries per request."""
MAX_REQUESTS = 50
"""Requests per listing at most. Further entries of a larger folder are not shown."""
MAX_READS = 3
"""Listings in a row at most, if a folder changes while it is listed."""
BATCH_SIZE = 500
"""Rows per transaction, so that the engine's writers do not wait long on SQLite, and within the databases' limits."""
RETRY_AFTER = timedelta(seconds=10)
"""After a failed request, an older listing is shown for this long before the disk is asked about the folder again."""
LISTED_COLUMNS = ("parent_id", "is_folder", "size", "md5", "position", "gone")
"""The columns of a known path that a listing updates."""
T = TypeVar("T")
Write = Callable[[Connection], object]


class FolderLister(Protocol):
    """The part of the disk client that the catalogue needs."""

    async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing: ...


@dataclass(frozen=True)
class Entry:
    """A file or a folder of the library. Its ID always means this path."""

    id: int
    name: str
    is_folder: bool
    size: int
    """Bytes; zero for a folder."""
    parent_id: int | None


@dataclass(frozen=True)
class Page:
    """A page of a folder: folders first, then files, each by name. Pages count from 1, and there is at least one."""

    folder: Entry
    parent_id: int | None
    """None for the root."""
    entries: list[Entry]
    page: int
    pages: int
    stale: bool
    """True if the disk was unreachable and the page shows an older listing."""


class Catalogue:
    """The library's folder and everything below it. Nothing outside of it is ever shown."""

    def __init__(
        self,
        engine: Engine,
        folder: str,
        *,
        fresh_for: float = 60.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine, self._read_engine = engine, read_only(engine)
        self._root, self._fresh_for, self._now = folder, timedelta(seconds=fresh_for), now
        self._refreshing: dict[str, asyncio.Task[bool]] = {}
        self._unreachable_since: dict[str, datetime] = {}

    async def page(self, disk: FolderLister, folder_id: int | None, page: int, size: int = 8) -> Page:
        """Return a page of this folder, or of the root. A page number out of range returns the nearest page.

        Raises `PermanentError` if the folder does not exist, and `TemporaryError` if the disk is unreachable and the
        folder was never listed.
        """
        folder = await asyncio.to_thread(self._folder, folder_id)
        stale = await self._refresh_once(disk, folder)
        return await asyncio.to_thread(self._page, folder["id"], page, size, stale=stale)

    def entry(self, file_id: int) -> Entry | None:
        """Return the entry with this ID, or None if it is gone or unknown."""
        with self._read_engine.begin() as tx:
            found = self._row(tx, file_id)
        return None if found is None else self._entry(found)

    # ------------------------------------------------------------ listing
    async def _refresh_once(self, disk: FolderLister, folder: RowMapping) -> bool:
        """Refresh a folder once for all concurrent callers. A caller that gives up does not stop the refresh for the
        others."""
        path = folder["path"]
        if (task := self._refreshing.get(path)) is None:
            task = self._refreshing[path] = asyncio.create_task(self._refresh(disk, folder))
            task.add_done_callback(lambda _: self._refreshing.pop(path, None))
        return await asyncio.shield(task)

    async def _refresh(self, disk: FolderLister, folder: RowMapping) -> bool:
        """Refresh the folder's listing if it is old. Return True if the listing is stale because the disk is
        unreachable."""
        started, path = self._now(), folder["path"]
        listed_at = await asyncio.to_thread(self._listed_at, folder["id"])
        if listed_at is not None and started - listed_at < self._fresh_for:
            return False
        if (
            listed_at is not None
            and path in self._unreachable_since
            and started - self._unreachable_since[path] < RETRY_AFTER
        ):
            return True
        try:
            items, complete = await _list_all(disk, path)
        except TemporaryError:
            if listed_at is None:
                raise
            self._unreachable_since[path] = self._now()
            return True
        except PermanentError as error:
            if error.code == "not_found":
                await asyncio.to_thread(self._mark_folder_gone, folder, started)
            raise
        self._unreachable_since.pop(path, None)
        await asyncio.to_thread(self._store, folder, items, started, complete=complete)
        return False

    def _listed_at(self, folder_id: int) -> datetime | None:
        with self._read_engine.begin() as tx:
            return tx.scalar(select(files.c.listed_at).where(files.c.id == folder_id))

    def _store(self, folder: RowMapping, items: Sequence[Item], started: datetime, *, complete: bool) -> None:
        """Store a listing. If it is complete, mark missing entries as gone. Only differences are written, `listed_at`
        last."""
        base = folder["path"].rstrip("/")
        # The disk is only trusted about the folder that was listed.
        here = {
            item.path: item
            for item in items
            if item.path == f"{base}/{item.name}" and item.name not in ("", ".", "..") and "/" not in item.name
        }
        ordered = sorted(
            here.values(), key=lambda item: (not item.is_folder, item.name.casefold().replace("ё", "е"), item.name)
        )
        with self._read_engine.begin() as tx:
            known = select(files.c.id, files.c.path, *(files.c[name] for name in LISTED_COLUMNS)).where(
                files.c.parent_id == folder["id"], ~files.c.gone
            )
            was = {row["path"]: row for row in tx.execute(known).mappings()}
            vanished = [row for path, row in was.items() if path not in here] if complete else []
            replaced = [
                row["id"] for path, row in was.items() if path in here and row["is_folder"] and not here[path].is_folder
            ]
            gone = [
                *_descendants(tx, [*replaced, *(row["id"] for row in vanished if row["is_folder"])]),
                *(row["id"] for row in vanished),
            ]
        rows = [_values(item, folder["id"], position) for position, item in enumerate(ordered)]
        differing = [
            row
            for row in rows
            if (old := was.get(row["path"])) is None or any(old[name] != row[name] for name in LISTED_COLUMNS)
        ]
        listed = update(files).where(files.c.id == folder["id"]).values(listed_at=started, gone=False)
        marks, upserts = (
            (partial(_mark_gone, ids=some) for some in _batches(gone)),
            (partial(_upsert, rows=some) for some in _batches(differing)),
        )
        self._write(folder["id"], started, [*marks, *upserts, lambda tx: tx.execute(listed)])

    def _mark_folder_gone(self, folder: RowMapping, started: datetime) -> None:
        with self._read_engine.begin() as tx:
            below = _descendants(tx, [folder["id"]])
        # The root keeps its row: the folder may be created again.
        itself = (
            update(files).where(files.c.id == folder["id"]).values(listed_at=None, gone=folder["path"] != self._root)
        )
        self._write(
            folder["id"],
            started,
            [*(partial(_mark_gone, ids=some) for some in _batches(below)), lambda tx: tx.execute(itself)],
        )

    def _write(self, folder_id: int, started: datetime, writes: Sequence[Write]) -> None:
        """Run each write in its own transaction, so that other writers do not wait long. Stop if a later listing is
        stored."""
        for write in writes:
            with self._engine.begin() as tx:
                if self._is_outdated(tx, folder_id, started):
                    return
                write(tx)

    def _is_outdated(self, tx: Connection, folder_id: int, started: datetime) -> bool:
        """Return whether a later listing is stored. There is one writer at a time."""
        # Lock the root, because two writers of one branch in different orders would deadlock.
        root = files.alias()
        stored = select(files.c.listed_at).select_from(root).join(files, files.c.id == folder_id)
        listed_at = tx.scalar(stored.where(root.c.path_hash == tables.path_hash(self._root)).with_for_update())
        return listed_at is not None and listed_at > started

    # ------------------------------------------------------------ stored entries
    def _folder(self, folder_id: int | None) -> RowMapping:
        at_root = select(files).where(
            files.c.path_hash == tables.path_hash(self._root), files.c.is_folder, ~files.c.gone
        )
        with self._read_engine.begin() as tx:
            found = tx.execute(at_root).mappings().one_or_none() if folder_id is None else self._row(tx, folder_id)
        if found is None and folder_id is None:
            with self._engine.begin() as tx:
                _upsert(
                    tx,
                    [
                        _values(
                            Item(self._root.rpartition("/")[2], self._root, is_folder=True, size=0, md5=None), None, 0
                        )
                    ],
                )
                found = tx.execute(at_root).mappings().one()
        if found is None or not found["is_folder"]:
            raise PermanentError("not_found", "The library has no such folder.")
        return found

    def _row(self, tx: Connection, id: int) -> RowMapping | None:
        found = (
            tx.execute(select(files).where(files.c.id == id, ~files.c.gone)).mappings().one_or_none()
            if 0 < id < 1 << 31
            else None
        )
        return found if found is not None and tables.is_inside(found["path"], self._root) else None

    def _page(self, folder_id: int, page: int, size: int, *, stale: bool) -> Page:
        here = and_(files.c.parent_id == folder_id, ~files.c.gone)
        with self._read_engine.begin() as tx:
            folder = self._row(tx, folder_id)
            if folder is None:
                raise PermanentError("not_found", "The library has no such folder.")
            pages = max(-(-(tx.scalar(select(func.count()).where(here)) or 0) // size), 1)
            page = min(max(page, 1), pages)
            rows = (
                tx.execute(
                    select(files)
                    .where(here)
                    .order_by(files.c.position, files.c.id)
                    .limit(size)
                    .offset((page - 1) * size)
                )
                .mappings()
                .all()
            )
        shown = self._entry(folder)
        return Page(shown, shown.parent_id, [self._entry(row) for row in rows], page, pages, stale)

    def _entry(self, row: RowMapping) -> Entry:
        return Entry(
            row["id"],
            row["name"],
            row["is_folder"],
            row["size"] or 0,
            None if row["path"] == self._root else row["parent_id"],
        )


async def _list_all(disk: FolderLister, path: str) -> tuple[list[Item], bool]:
    """List a folder. Return its entries, and whether they are certainly complete."""
    items, seen, totals = await _list_pages(disk, path)
    for _ in range(MAX_READS - 1):
        # An entry may have moved from one page to another between two requests.
        if len(totals) > 1:
            items, seen, totals = await _list_pages(disk, path)
    return items, totals == {seen}


async def _list_pages(disk: FolderLister, path: str) -> tuple[list[Item], int, set[int]]:
    """Return the entries, how many the disk sent, and every total that the disk reported."""
    items, seen, totals = list[Item](), 0, set[int]()
    for _ in range(MAX_REQUESTS):
        listing = await disk.list_folder(path, offset=seen, limit=PAGE_LIMIT)
        received = len(listing.items) + listing.left_out
        items += listing.items
        seen += received
        totals.add(listing.total)
        if not received or seen >= listing.total:
            break
    return items, seen, totals


def _batches(complete: Sequence[T]) -> Iterator[Sequence[T]]:
    return (complete[start : start + BATCH_SIZE] for start in range(0, len(complete), BATCH_SIZE))


def _values(item: Item, parent_id: int | None, position: int) -> Mapping[str, Any]:
    size, md5 = (None, None) if item.is_folder else (item.size, item.md5)
    return {
        "parent_id": parent_id,
        "path": item.path,
        "path_hash": tables.path_hash(item.path),
        "name": item.name,
        "is_folder": item.is_folder,
        "size": size,
        "md5": md5,
        "position": position,
        "gone": False,
    }


def _upsert(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    upsert = insert(tx, files).values(rows)
    tx.execute(
        upsert.on_conflict_do_update(
            index_elements=["path_hash"], set_={name: upsert.excluded[name] for name in LISTED_COLUMNS}
        )
    )


def _descendants(tx: Connection, folder_ids: Sequence[int]) -> list[int]:
    """Return everything below these folders, deepest first, so that an interrupted deletion can continue later."""
    levels, folders = list[list[int]](), folder_ids
    while folders:
        found = [
            row
            for some in _batches(folders)
            for row in tx.execute(
                select(files.c.id, files.c.is_folder).where(files.c.parent_id.in_(some), ~files.c.gone)
            )
        ]
        levels.append([row.id for row in found])
        folders = [row.id for row in found if row.is_folder]
    return [id for level in reversed(levels) for id in level]


def _mark_gone(tx: Connection, ids: Sequence[int]) -> None:
    tx.execute(update(files).where(files.c.id.in_(ids)).values(gone=True, listed_at=None))
