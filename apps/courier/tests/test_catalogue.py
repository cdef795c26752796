"""The catalogue: stable IDs, complete listings, answers while the disk is unreachable, nothing outside the library."""

import asyncio

import pytest
from sqlalchemy import Engine

from apps.courier import tables
from apps.courier.catalogue import PAGE_LIMIT, RETRY_AFTER, Catalogue, Entry, Page
from apps.courier.clients.yandex_disk import Item, Listing
from apps.courier.errors import PermanentError, TemporaryError
from apps.courier.tests.catalogue_helpers import FRESH_FOR, ROOT, CatalogueReader, StubDisk, file, folder, names
from apps.courier.tests.courier_kit import CourierKit
from interlock.testing import KitClock


@pytest.fixture
def reader(engine: Engine) -> CatalogueReader:
    clock = KitClock()
    return CatalogueReader(Catalogue(engine, ROOT, fresh_for=FRESH_FOR, now=clock.now), StubDisk(), clock)


# ---------------------------------------------------------------- pages
def test_folders_come_before_files_and_both_sort_by_name_without_case(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [
        file("b.pdf"),
        file("A.pdf"),
        folder("zoo"),
        file("Ёж.pdf"),
        folder("Arts"),
        folder("bees"),
        file("жук.pdf"),
    ]
    assert names(reader.page()) == ["Arts", "bees", "zoo", "A.pdf", "b.pdf", "Ёж.pdf", "жук.pdf"]


def test_entry_has_name_size_and_kind(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [folder("Arts"), file("emma.pdf", 2**31 + 5)]
    page = reader.page()
    arts, emma = page.entries
    assert (arts.is_folder, arts.size, arts.parent_id) == (True, 0, page.folder.id)
    assert (emma.is_folder, emma.size, emma.parent_id) == (False, 2**31 + 5, page.folder.id)
    assert (page.folder.name, page.folder.is_folder, page.parent_id, page.stale) == ("Library", True, None, False)
    assert reader.catalogue.entry(emma.id) == emma


def test_page_numbers_are_clamped_and_an_empty_folder_has_one_page(reader: CatalogueReader) -> None:
    empty = reader.page(page=5)
    assert (empty.entries, empty.page, empty.pages) == ([], 1, 1)
    reader.disk.items[ROOT] = [file(f"{n:02}") for n in range(17)]
    reader.clock.advance(FRESH_FOR)
    seen = {asked: reader.page(page=asked) for asked in (-3, 0, 1, 2, 3, 4, 10**9)}
    assert [(page.page, page.pages, len(page.entries)) for page in seen.values()] == [
        (1, 3, 8),
        (1, 3, 8),
        (1, 3, 8),
        (2, 3, 8),
        (3, 3, 1),
        (3, 3, 1),
        (3, 3, 1),
    ]
    assert names(seen[2]) == [f"{n:02}" for n in range(8, 16)]


def test_three_thousand_entries_take_three_requests(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file(f"{n:04}") for n in range(3000)]
    page = reader.page(page=375)
    assert reader.disk.requests == [(ROOT, 0, PAGE_LIMIT), (ROOT, 1000, PAGE_LIMIT), (ROOT, 2000, PAGE_LIMIT)]
    assert (page.pages, names(page)) == (375, [f"{n:04}" for n in range(2992, 3000)])


def test_listing_that_shrinks_while_it_is_read_ends(reader: CatalogueReader) -> None:
    class Shrinking(StubDisk):
        async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
            listing = await super().list_folder(path, offset=offset, limit=limit)
            return Listing(listing.items, 5000)

    reader.disk = Shrinking({ROOT: [file(f"{n:04}") for n in range(1500)]})
    assert reader.page().pages == 188
    assert [offset for _, offset, _ in reader.disk.requests] == [0, 1000, 1500]


def test_folder_leads_down_and_up_again(reader: CatalogueReader) -> None:
    reader.disk.items |= {
        ROOT: [folder("Arts")],
        f"{ROOT}/Arts": [folder("Arts/Old")],
        f"{ROOT}/Arts/Old": [file("Arts/Old/mona.pdf")],
    }
    root = reader.page()
    arts = reader.page(root.entries[0].id)
    old = reader.page(arts.entries[0].id)
    assert (names(old), old.parent_id, arts.parent_id) == (["mona.pdf"], arts.folder.id, root.folder.id)


# ---------------------------------------------------------------- stored listings
def test_fresh_listing_is_not_requested_again(reader: CatalogueReader) -> None:
    reader.page()
    reader.disk.items[ROOT] = [file("new.pdf")]
    assert names(reader.refresh_later(seconds=FRESH_FOR - 1)) == []
    assert len(reader.disk.requests) == 1
    assert names(reader.refresh_later(seconds=1)) == ["new.pdf"]
    assert len(reader.disk.requests) == 2


def test_ids_are_stable_and_missing_entries_are_gone(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a"), file("b"), file("c")]
    before = reader.ids(reader.page())
    reader.disk.items[ROOT] = [file("0"), file("a", 99), file("c")]
    after = reader.refresh_later()
    assert names(after) == ["0", "a", "c"]
    assert (reader.ids(after)["a"], reader.ids(after)["c"]) == (before["a"], before["c"])
    assert reader.ids(after)["0"] not in before.values()
    assert reader.catalogue.entry(before["b"]) is None
    assert reader.catalogue.entry(before["a"]) == Entry(before["a"], "a", False, 99, after.folder.id)


def test_path_that_returns_has_its_old_id(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a")]
    before = reader.ids(reader.page())
    reader.disk.items[ROOT] = []
    reader.refresh_later()
    reader.disk.items[ROOT] = [file("a"), file("b")]
    after = reader.ids(reader.refresh_later())
    assert after["a"] == before["a"]
    assert after["b"] != before["a"]


def test_content_of_a_missing_folder_is_gone_too(reader: CatalogueReader) -> None:
    reader.disk.items |= {
        ROOT: [folder("A_ts"), folder("Axts")],
        f"{ROOT}/A_ts": [file("A_ts/x")],
        f"{ROOT}/Axts": [file("Axts/y")],
    }
    root = reader.ids(reader.page())
    x, y = (reader.page(root[name]).entries[0].id for name in ("A_ts", "Axts"))
    reader.disk.items[ROOT] = [folder("Axts")]
    reader.refresh_later()
    assert [reader.catalogue.entry(id) is None for id in (root["A_ts"], x, root["Axts"], y)] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(PermanentError, match="no such folder"):
        reader.page(root["A_ts"])


def test_file_that_replaces_a_folder_removes_its_content(reader: CatalogueReader) -> None:
    reader.disk.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [file("Arts/x")]}
    arts = reader.page().entries[0].id
    x = reader.page(arts).entries[0].id
    reader.disk.items[ROOT] = [file("Arts")]
    reader.refresh_later()
    assert reader.catalogue.entry(x) is None
    assert reader.catalogue.entry(arts) == Entry(arts, "Arts", False, 10, reader.page().folder.id)


def test_concurrent_requests_list_a_folder_once(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a")]

    async def crowd() -> list[Page]:
        reader.disk.gate = asyncio.Event()
        first = asyncio.create_task(reader.catalogue.page(reader.disk, None, 1))
        await reader.disk.arrived.wait()
        asking = [asyncio.create_task(reader.catalogue.page(reader.disk, None, 1)) for _ in range(19)]
        assert not (await asyncio.wait(asking, timeout=0.3))[0]
        # A caller that gives up does not stop the refresh for the others.
        first.cancel()
        reader.disk.gate.set()
        return [await each for each in asking]

    assert [names(page) for page in asyncio.run(crowd())] == [["a"]] * 19
    assert len(reader.disk.requests) == 1


def test_late_older_listing_does_not_undo_a_newer_one(reader: CatalogueReader, engine: Engine) -> None:
    reader.page()
    other = CatalogueReader(
        Catalogue(engine, ROOT, fresh_for=FRESH_FOR, now=reader.clock.now),
        StubDisk({ROOT: [file("new")]}),
        reader.clock,
    )

    async def race() -> None:
        reader.clock.advance(FRESH_FOR)
        reader.disk.gate = asyncio.Event()
        slow = asyncio.create_task(reader.catalogue.page(reader.disk, None, 1))
        await reader.disk.arrived.wait()
        reader.clock.advance(1)
        await other.catalogue.page(other.disk, None, 1)
        reader.disk.gate.set()
        await slow

    asyncio.run(race())
    assert names(reader.page()) == ["new"]


# ---------------------------------------------------------------- errors of the disk
def test_unreachable_disk_shows_an_older_listing_as_stale(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a")]
    reader.page()
    reader.disk.error = TemporaryError("Yandex Disk did not answer in time.")
    old = reader.refresh_later()
    assert (names(old), old.stale) == (["a"], True)
    reader.disk.error = None
    back = reader.refresh_later(seconds=RETRY_AFTER.total_seconds())
    assert (names(back), back.stale) == (["a"], False)


def test_unreachable_disk_is_not_asked_at_every_click(reader: CatalogueReader) -> None:
    reader.page()
    reader.disk.error = TemporaryError("Yandex Disk did not answer in time.")
    assert [
        reader.refresh_later().stale,
        reader.page().stale,
        reader.refresh_later(seconds=RETRY_AFTER.total_seconds() - 1).stale,
    ] == [
        True,
        True,
        True,
    ]
    assert len(reader.disk.requests) == 2


def test_error_is_raised_without_an_older_listing(reader: CatalogueReader) -> None:
    reader.disk.error = TemporaryError("Yandex Disk did not answer in time.", status_code=503)
    with pytest.raises(TemporaryError, match="in time"):
        reader.page()
    reader.disk.error = None
    assert not reader.page().stale


def test_permanent_error_is_raised_despite_an_older_listing(reader: CatalogueReader) -> None:
    reader.page()
    reader.disk.error = PermanentError("disk_token_rejected", "Yandex Disk refuses the token.")
    with pytest.raises(PermanentError, match="token"):
        reader.refresh_later()


def test_missing_root_is_not_found_until_it_exists(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a")]
    root, a = (page := reader.page()).folder.id, page.entries[0].id
    del reader.disk.items[ROOT]
    for _ in range(2):
        with pytest.raises(PermanentError, match="no longer on Yandex Disk") as refused:
            reader.refresh_later()
        assert refused.value.code == "not_found"
    assert reader.catalogue.entry(a) is None
    reader.disk.items[ROOT] = [file("a")]
    assert reader.page(root).entries[0].id == a


def test_missing_folder_is_gone(reader: CatalogueReader) -> None:
    reader.disk.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [file("Arts/x")]}
    arts = reader.page().entries[0].id
    x = reader.page(arts).entries[0].id
    del reader.disk.items[f"{ROOT}/Arts"]
    with pytest.raises(PermanentError):
        reader.refresh_later(arts)
    assert (reader.catalogue.entry(arts), reader.catalogue.entry(x)) == (None, None)


@pytest.mark.parametrize("id", [404, 0, -1, 2**31, 2**70])
def test_unknown_id_is_not_found(reader: CatalogueReader, id: int) -> None:
    reader.page()
    assert reader.catalogue.entry(id) is None
    with pytest.raises(PermanentError):
        reader.page(id)


def test_file_is_not_a_folder(reader: CatalogueReader) -> None:
    reader.disk.items[ROOT] = [file("a")]
    id = reader.page().entries[0].id
    with pytest.raises(PermanentError, match="no such folder"):
        reader.page(id)
    assert len(reader.disk.requests) == 1


# ---------------------------------------------------------------- the library's boundary
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("secret", "disk:/Private/secret"),
        ("secret", "disk:/Library2/secret"),
        ("..", f"{ROOT}/.."),
        ("x", f"{ROOT}/../Private/x"),
        ("secret", f"{ROOT}/Arts/secret"),
        ("Library", ROOT),
        ("../x", f"{ROOT}/../x"),
        ("", f"{ROOT}/"),
        ("other", f"{ROOT}/name"),
    ],
)
def test_entries_outside_of_the_listed_folder_are_ignored(
    reader: CatalogueReader, engine: Engine, name: str, path: str
) -> None:
    reader.disk.items[ROOT] = [file("a"), Item(name, path, is_folder=True, size=0, md5=None)]
    assert names(reader.page()) == ["a"]
    with engine.begin() as tx:
        assert {row.path for row in tx.execute(tables.files.select())} == {ROOT, f"{ROOT}/a"}


def test_changed_folder_setting_hides_everything_outside(reader: CatalogueReader, engine: Engine) -> None:
    reader.disk.items |= {ROOT: [folder("Arts"), file("a")], f"{ROOT}/Arts": [file("Arts/x")]}
    root = reader.ids(reader.page())
    x = reader.page(root["Arts"]).entries[0].id
    narrow = CatalogueReader(Catalogue(engine, f"{ROOT}/Arts", now=reader.clock.now), reader.disk, reader.clock)
    arts = narrow.page()
    assert (names(arts), arts.parent_id, arts.folder.id) == (["x"], None, root["Arts"])
    assert [narrow.catalogue.entry(id) is None for id in (root["a"], root["Arts"], x)] == [True, False, False]
    with pytest.raises(PermanentError):
        narrow.page(reader.page().folder.id)


def test_whole_disk_can_be_the_library(engine: Engine) -> None:
    clock = KitClock()
    whole = CatalogueReader(
        Catalogue(engine, "disk:/", now=clock.now),
        StubDisk({"disk:/": [Item("a", "disk:/a", is_folder=False, size=1, md5=None)]}),
        clock,
    )
    assert names(whole.page()) == ["a"]


# ---------------------------------------------------------------- with the real disk client
def test_library_is_browsed_over_http(kit: CourierKit) -> None:
    kit.yandex.put("/Library/Arts/mona.pdf", b"mona")
    kit.yandex.put("/Library/emma.pdf", b"emma")
    kit.yandex.put("/Private/diary.txt", b"secret")
    root = kit.browse()
    assert names(root) == ["Arts", "emma.pdf"]
    arts = kit.browse(root.entries[0].id)
    assert [(entry.name, entry.size) for entry in arts.entries] == [("mona.pdf", 4)]
    kit.clock.advance(FRESH_FOR)
    kit.yandex.fail("resources", 503)
    assert kit.browse().stale
    kit.yandex.remove("/Library")
    kit.clock.advance(FRESH_FOR)
    with pytest.raises(PermanentError):
        kit.browse()
