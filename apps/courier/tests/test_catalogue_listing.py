"""Listings that are large, that change while they are read, or that no honest disk would give: what they cost, and what becomes of the rows."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, event

from apps.courier import tables
from apps.courier.catalogue import LISTED, PAGES, STORED, TAKES, Catalogue
from apps.courier.disk import Listing
from apps.courier.tests.kit import Office
from apps.courier.tests.shelf import FRESH, ROOT, Reader, Shelf, file, folder, names
from apps.courier.tests.yandex import Generated, Node
from interlock.testing import KitClock


@pytest.fixture
def reader(engine: Engine) -> Reader:
    clock = KitClock()
    return Reader(Catalogue(engine, ROOT, fresh_for=FRESH, now=clock.now), Shelf(), clock)


@contextmanager
def counting(engine: Engine) -> Iterator[list[list[str]]]:
    """What each transaction asks of the database meanwhile, by its first words."""
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
    """The statements of those transactions that wrote anything."""
    return [statements for statements in told if set(statements) & {"UPDATE", "INSERT", "DELETE"}]


def gone(engine: Engine) -> set[str]:
    with engine.begin() as tx:
        return {row.path.removeprefix(f"{ROOT}/") for row in tx.execute(tables.files.select().where(tables.files.c.gone))}


# ---------------------------------------------------------------- what a listing costs
def test_thousands_that_vanish_are_marked_in_a_few_short_transactions(reader: Reader, engine: Engine) -> None:
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(2000)]
    reader.page()
    reader.shelf.items[ROOT] = []
    with counting(engine) as told:
        assert reader.later().entries == []
    assert writes(told) == [["SELECT", "UPDATE"]] * (2000 // STORED + 1)
    assert sum(map(len, told)) < 20
    assert len(gone(engine)) == 2000


def test_a_listing_that_changed_nothing_writes_only_that_it_was_taken(reader: Reader, engine: Engine) -> None:
    reader.shelf.items[ROOT] = [folder("Arts"), *(file(f"{n:04}") for n in range(1200))]
    before = reader.page()
    with counting(engine) as told:
        assert reader.later().entries == before.entries
    assert writes(told) == [["SELECT", "UPDATE"]]
    assert len(reader.shelf.asked) == 4


def test_of_a_listing_only_what_differs_is_written(reader: Reader, engine: Engine) -> None:
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(1200)]
    ids = reader.ids(reader.page(size=2000))
    reader.shelf.items[ROOT][7] = file("0007", 99)
    reader.shelf.items[ROOT].append(file("new"))
    with counting(engine) as told:
        reader.later()
    assert writes(told) == [["SELECT", "INSERT"], ["SELECT", "UPDATE"]]
    page = reader.page(size=2000)
    assert (page.entries[7].size, names(page)[-1], len(page.entries)) == (99, "new", 1201)
    assert ids.items() <= reader.ids(page).items()


def test_a_large_listing_is_stored_in_short_transactions_and_is_fresh_last(reader: Reader, engine: Engine) -> None:
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(1200)]
    reader.page()
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(100, 1300)]
    with counting(engine) as told:
        reader.later()
    assert writes(told) == [["SELECT", "UPDATE"], *[["SELECT", "INSERT"]] * 3, ["SELECT", "UPDATE"]]
    assert gone(engine) == {f"{n:04}" for n in range(100)}


def test_a_large_branch_that_went_is_marked_from_its_leaves_in_short_transactions(reader: Reader, engine: Engine) -> None:
    files = [file(f"Arts/Old/{n:03}") for n in range(STORED + 100)]
    reader.shelf.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [folder("Arts/Old"), file("Arts/b")], f"{ROOT}/Arts/Old": files}
    arts = reader.page().entries[0].id
    reader.page(reader.page(arts).entries[0].id)
    reader.shelf.items[ROOT] = []
    with counting(engine) as told:
        reader.later()
    assert writes(told) == [["SELECT", "UPDATE"]] * 3
    assert gone(engine) == {"Arts", "Arts/b", "Arts/Old", *(f"Arts/Old/{n:03}" for n in range(STORED + 100))}


def test_marking_that_is_stopped_halfway_is_taken_up_by_the_next_listing(reader: Reader, engine: Engine) -> None:
    files = [file(f"Arts/Old/{n:03}") for n in range(STORED + 100)]
    reader.shelf.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [folder("Arts/Old")], f"{ROOT}/Arts/Old": files}
    reader.page(reader.page(reader.page().entries[0].id).entries[0].id)
    reader.shelf.items[ROOT] = []
    updates = itertools.count(1)

    def stop(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE") and next(updates) == 2:
            raise InterruptedError

    event.listen(engine, "before_cursor_execute", stop)
    with pytest.raises(InterruptedError):
        reader.later()
    assert len(gone(engine)) == STORED
    reader.page()
    assert len(gone(engine)) == STORED + 102


# ---------------------------------------------------------------- a disk that changes, or lies
@dataclass
class Changing(Shelf):
    """Of the first `changes` listings that are begun, each loses its first entry once a page of it was read."""

    changes: int = 0

    async def list(self, path: str, *, offset: int, limit: int) -> Listing:
        listing = await super().list(path, offset=offset, limit=limit)
        if offset == 0 and self.changes:
            self.changes -= 1
            self.items[path] = self.items[path][1:]
        return listing


def test_a_folder_that_changes_while_it_is_read_is_read_anew(reader: Reader, engine: Engine) -> None:
    reader.shelf = Changing({ROOT: [file(f"{n:04}") for n in range(1500)]})
    reader.page()
    reader.shelf.changes = 1
    page = reader.later()
    assert [offset for _, offset, _ in reader.shelf.asked[2:]] == [0, LISTED, 0, LISTED]
    assert (page.pages, gone(engine)) == (188, {"0000"})


def test_of_a_folder_that_never_stops_changing_nothing_is_gone(reader: Reader, engine: Engine) -> None:
    reader.shelf = Changing({ROOT: [file(f"{n:04}") for n in range(1500)]})
    reader.page()
    reader.shelf.changes = 10**6
    page = reader.later()
    assert (len(reader.shelf.asked), page.stale, page.pages, gone(engine)) == (2 + 2 * TAKES, False, 188, set())
    reader.shelf.changes = 0
    reader.later()
    assert gone(engine) == {f"{n:04}" for n in range(TAKES)}


class Lying(Shelf):
    """Says that there is far more than it ever lists."""

    async def list(self, path: str, *, offset: int, limit: int) -> Listing:
        listing = await super().list(path, offset=offset, limit=limit)
        return Listing(listing.items, 10**18)


def test_of_a_folder_that_is_said_to_hold_more_nothing_is_gone(reader: Reader, engine: Engine) -> None:
    reader.shelf.items[ROOT] = [file("a"), file("b")]
    reader.page()
    reader.shelf = Lying({ROOT: [file("a"), file("c")]})
    assert names(reader.later()) == ["a", "b", "c"]
    assert (len(reader.shelf.asked), gone(engine)) == (2, set())


def test_a_disk_that_comes_to_no_end_is_left_after_so_many_requests(reader: Reader) -> None:
    class Endless(Shelf):
        async def list(self, path: str, *, offset: int, limit: int) -> Listing:
            self.asked.append((path, offset, limit))
            assert len(self.asked) <= 1000, "it is asked for ever"
            return Listing([file(f"{offset:04}")], 10**18)

    reader.shelf = Endless()
    assert (len(reader.page(size=100).entries), len(reader.shelf.asked)) == (PAGES, PAGES)


def test_of_a_folder_that_is_too_large_the_rest_is_left_out_and_nothing_is_gone(reader: Reader, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(10, 2010)]
    reader.page()
    monkeypatch.setattr("apps.courier.catalogue.PAGES", 2)
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(2010)]
    page = reader.later()
    assert (page.pages, len(reader.shelf.asked), gone(engine)) == (252, 4, set())
    assert LISTED * 2 == 2000


def test_entries_that_are_left_out_count_for_where_the_next_page_begins(reader: Reader, engine: Engine) -> None:
    class Partial(Shelf):
        async def list(self, path: str, *, offset: int, limit: int) -> Listing:
            listing = await super().list(path, offset=offset, limit=limit)
            kept = [item for item in listing.items if item.name >= "0005"]
            return Listing(kept, listing.total, len(listing.items) - len(kept))

    reader.shelf = Partial({ROOT: [file(f"{n:04}") for n in range(1500)]})
    assert len(reader.page(size=2000).entries) == 1495
    assert [offset for _, offset, _ in reader.shelf.asked] == [0, LISTED]
    reader.shelf.items[ROOT].pop()
    reader.later()
    assert gone(engine) == {"1499"}


def test_one_entry_that_cannot_be_kept_costs_no_folder(office: Office) -> None:
    office.yandex.put("/Library/good", b"good")
    office.yandex.put("/Library/a\0b", b"evil")
    office.yandex.nodes["/Library/vast"] = Node("/Library/vast", Generated(2**63))
    assert names(office.browse()) == ["good"]
