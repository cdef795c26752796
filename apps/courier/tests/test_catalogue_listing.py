"""Listings that are large, change while they are read, or are wrong: their cost, and the stored rows."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, event

from apps.courier import tables
from apps.courier.catalogue import BATCH_SIZE, MAX_READS, MAX_REQUESTS, PAGE_LIMIT, Catalogue
from apps.courier.clients.yandex_disk import Listing
from apps.courier.tests.catalogue_helpers import FRESH_FOR, ROOT, CatalogueReader, StubDisk, file, folder, names
from apps.courier.tests.courier_kit import CourierKit
from apps.courier.tests.fake_yandex import GeneratedContent, Node
from interlock.testing import KitClock


@pytest.fixture
def reader(engine: Engine) -> CatalogueReader:
    clock = KitClock()
    return CatalogueReader(Catalogue(engine, ROOT, fresh_for=FRESH_FOR, now=clock.now), StubDisk(), clock)


@contextmanager
def counting(engine: Engine) -> Iterator[list[list[str]]]:
    """Record the statements of each transaction, by their first words."""
    told: list[list[str]] = []

    def begun(_: object) -> None:
        told.append([])

    def asked(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            told[-1].append(statement.split(maxsplit=1)[0])

    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", asked)
    yield told
    event.remove(engine, "begin", begun)
    event.remove(engine, "before_cursor_execute", asked)


def writes(told: list[list[str]]) -> list[list[str]]:
    """Return the statements of transactions that wrote something."""
    return [statements for statements in told if set(statements) & {"UPDATE", "INSERT", "DELETE"}]


def gone(engine: Engine) -> set[str]:
    with engine.begin() as tx:
        return {
            row.path.removeprefix(f"{ROOT}/") for row in tx.execute(tables.files.select().where(tables.files.c.gone))
        }


# ---------------------------------------------------------------- cost of a listing
def test_thousands_of_missing_entries_are_marked_in_a_few_short_transactions(
    reader: CatalogueReader, engine: Engine
) -> None:
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(2000)]
    reader.page()
    reader.disk.items[ROOT] = []
    with counting(engine) as told:
        assert reader.refresh_later().entries == []
    assert writes(told) == [["SELECT", "UPDATE"]] * (2000 // BATCH_SIZE + 1)
    assert sum(map(len, told)) < 20
    assert len(gone(engine)) == 2000


def test_unchanged_listing_writes_only_its_time(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk.items[ROOT] = [folder("Arts"), *(file(f"{n:04}") for n in range(1200))]
    before = reader.page()
    with counting(engine) as told:
        assert reader.refresh_later().entries == before.entries
    assert writes(told) == [["SELECT", "UPDATE"]]
    assert len(reader.disk.requests) == 4


def test_only_differences_of_a_listing_are_written(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(1200)]
    ids = reader.ids(reader.page(size=2000))
    reader.disk.items[ROOT][7] = file("0007", 99)
    reader.disk.items[ROOT].append(file("new"))
    with counting(engine) as told:
        reader.refresh_later()
    assert writes(told) == [["SELECT", "INSERT"], ["SELECT", "UPDATE"]]
    page = reader.page(size=2000)
    assert (page.entries[7].size, names(page)[-1], len(page.entries)) == (99, "new", 1201)
    assert ids.items() <= reader.ids(page).items()


def test_large_listing_is_stored_in_short_transactions_and_marked_fresh_last(
    reader: CatalogueReader, engine: Engine
) -> None:
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(1200)]
    reader.page()
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(100, 1300)]
    with counting(engine) as told:
        reader.refresh_later()
    assert writes(told) == [["SELECT", "UPDATE"], *[["SELECT", "INSERT"]] * 3, ["SELECT", "UPDATE"]]
    assert gone(engine) == {f"{n:04}" for n in range(100)}


def test_large_missing_branch_is_marked_from_its_leaves_in_short_transactions(
    reader: CatalogueReader, engine: Engine
) -> None:
    files = [file(f"Arts/Old/{n:03}") for n in range(BATCH_SIZE + 100)]
    reader.disk.items |= {
        ROOT: [folder("Arts")],
        f"{ROOT}/Arts": [folder("Arts/Old"), file("Arts/b")],
        f"{ROOT}/Arts/Old": files,
    }
    arts = reader.page().entries[0].id
    reader.page(reader.page(arts).entries[0].id)
    reader.disk.items[ROOT] = []
    with counting(engine) as told:
        reader.refresh_later()
    assert writes(told) == [["SELECT", "UPDATE"]] * 3
    assert gone(engine) == {"Arts", "Arts/b", "Arts/Old", *(f"Arts/Old/{n:03}" for n in range(BATCH_SIZE + 100))}


def test_interrupted_marking_is_continued_by_the_next_listing(reader: CatalogueReader, engine: Engine) -> None:
    files = [file(f"Arts/Old/{n:03}") for n in range(BATCH_SIZE + 100)]
    reader.disk.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [folder("Arts/Old")], f"{ROOT}/Arts/Old": files}
    reader.page(reader.page(reader.page().entries[0].id).entries[0].id)
    reader.disk.items[ROOT] = []
    updates = itertools.count(1)

    def stop(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE") and next(updates) == 2:
            raise InterruptedError

    event.listen(engine, "before_cursor_execute", stop)
    with pytest.raises(InterruptedError):
        reader.refresh_later()
    assert len(gone(engine)) == BATCH_SIZE
    reader.page()
    assert len(gone(engine)) == BATCH_SIZE + 102


# ---------------------------------------------------------------- changing and wrong listings
@dataclass
class Changing(StubDisk):
    """A disk on which each of the first `changes` listings loses its first entry after one page."""

    changes: int = 0

    async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
        listing = await super().list_folder(path, offset=offset, limit=limit)
        if offset == 0 and self.changes:
            self.changes -= 1
            self.items[path] = self.items[path][1:]
        return listing


def test_folder_that_changes_while_it_is_read_is_read_again(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk = Changing({ROOT: [file(f"{n:04}") for n in range(1500)]})
    reader.page()
    reader.disk.changes = 1
    page = reader.refresh_later()
    assert [offset for _, offset, _ in reader.disk.requests[2:]] == [0, PAGE_LIMIT, 0, PAGE_LIMIT]
    assert (page.pages, gone(engine)) == (188, {"0000"})


def test_folder_that_keeps_changing_marks_nothing_as_gone(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk = Changing({ROOT: [file(f"{n:04}") for n in range(1500)]})
    reader.page()
    reader.disk.changes = 10**6
    page = reader.refresh_later()
    assert (len(reader.disk.requests), page.stale, page.pages, gone(engine)) == (2 + 2 * MAX_READS, False, 188, set())
    reader.disk.changes = 0
    reader.refresh_later()
    assert gone(engine) == {f"{n:04}" for n in range(MAX_READS)}


class Lying(StubDisk):
    """A disk that reports a larger total than it lists."""

    async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
        listing = await super().list_folder(path, offset=offset, limit=limit)
        return Listing(listing.items, 10**18)


def test_incomplete_listing_marks_nothing_as_gone(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk.items[ROOT] = [file("a"), file("b")]
    reader.page()
    reader.disk = Lying({ROOT: [file("a"), file("c")]})
    assert names(reader.refresh_later()) == ["a", "b", "c"]
    assert (len(reader.disk.requests), gone(engine)) == (2, set())


def test_endless_listing_ends_after_the_request_limit(reader: CatalogueReader) -> None:
    class Endless(StubDisk):
        async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
            self.requests.append((path, offset, limit))
            assert len(self.requests) <= 1000, "it is asked for ever"
            return Listing([file(f"{offset:04}")], 10**18)

    reader.disk = Endless()
    assert (len(reader.page(size=100).entries), len(reader.disk.requests)) == (MAX_REQUESTS, MAX_REQUESTS)


def test_too_large_folder_is_truncated_and_marks_nothing_as_gone(
    reader: CatalogueReader, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(10, 2010)]
    reader.page()
    monkeypatch.setattr("apps.courier.catalogue.MAX_REQUESTS", 2)
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(2010)]
    page = reader.refresh_later()
    assert (page.pages, len(reader.disk.requests), gone(engine)) == (252, 4, set())
    assert PAGE_LIMIT * 2 == 2000


def test_skipped_entries_count_for_the_next_offset(reader: CatalogueReader, engine: Engine) -> None:
    class Partial(StubDisk):
        async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
            listing = await super().list_folder(path, offset=offset, limit=limit)
            kept = [item for item in listing.items if item.name >= "0005"]
            return Listing(kept, listing.total, len(listing.items) - len(kept))

    reader.disk = Partial({ROOT: [file(f"{n:04}") for n in range(1500)]})
    assert len(reader.page(size=2000).entries) == 1495
    assert [offset for _, offset, _ in reader.disk.requests] == [0, PAGE_LIMIT]
    reader.disk.items[ROOT].pop()
    reader.refresh_later()
    assert gone(engine) == {"1499"}


def test_one_unstorable_entry_does_not_hide_its_folder(kit: CourierKit) -> None:
    kit.yandex.put("/Library/good", b"good")
    kit.yandex.put("/Library/a\0b", b"evil")
    kit.yandex.nodes["/Library/vast"] = Node("/Library/vast", GeneratedContent(2**63))
    assert names(kit.browse()) == ["good"]
